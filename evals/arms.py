"""The arms of the quality measurement: which passages each one reads, how they are encoded, where they stand in the
prompt, and what is computed again. A new arm is a line in `ARMS`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from app.domain.policies import BALANCED_SHARE, RECOMPUTATIONS
from cache.engine.recomputation import SelectiveRecomputation
from cache.engine.request import Reuse
from cache.prompt.plan import Plan, Segment, Span
from evals.cases import Case, Tokens

SLOT = 256
"""Position ids of a slot, for arms that place passages in slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to read the passages of a case.

    behind: what a passage sees while it is encoded: the system text and its neighbours (as in the desk), the system
    text alone, or nothing.
    placement: contiguous; slotted (each passage begins at a multiple of `SLOT`); unions (slots too, but the question
    begins behind the end of the last slot, as it does behind a union of a PML schema); shared (all passages begin at
    the same position id).
    reads: all passages of the case; the best ones, as many as cost no more than recomputing `BALANCED_SHARE` of all,
    but at least one; only the gold passage; none.
    """

    says: str
    behind: Literal["neighbours", "system", "nothing"] = "neighbours"
    placement: Literal["contiguous", "slotted", "unions", "shared"] = "contiguous"
    recomputation: SelectiveRecomputation = field(default_factory=SelectiveRecomputation)
    reuse: Reuse = "on"
    reads: Literal["all", "best", "gold", "none"] = "all"


BALANCED = RECOMPUTATIONS["balanced"]
ARMS: dict[str, Arm] = {
    "full": Arm(says="full attention, exact prefixes reused", reuse="prefix"),
    "exact": Arm(says="policy exact", recomputation=RECOMPUTATIONS["exact"]),
    "balanced": Arm(says="policy balanced: as fast, and 15 % chosen by the question", recomputation=BALANCED),
    "fast": Arm(
        says="policy fast: system text and neighbours before each passage, contiguous",
        recomputation=RECOMPUTATIONS["fast"],
    ),
    "random": Arm(
        says="as balanced, but the 15 % are chosen at random (control)", recomputation=replace(BALANCED, by="random")
    ),
    "alone": Arm(says="as fast, without neighbours", behind="system"),
    "slotted": Arm(says=f"as fast, in slots of {SLOT}", placement="slotted"),
    "shared": Arm(says="as fast, all passages from the same position id on", placement="shared"),
    "prompt_cache": Arm(
        says=f"Prompt Cache's layout: nothing before, unions of {SLOT} ids", behind="nothing", placement="unions"
    ),
    "fewer": Arm(says="full attention over fewer passages, at the cost of balanced", reuse="prefix", reads="best"),
    "gold": Arm(says="full attention over the gold passage alone", reuse="prefix", reads="gold"),
    "none": Arm(says="no passages", reuse="prefix", reads="none"),
}


def plans(case: Case, arm: Arm, system: Tokens) -> Iterator[tuple[Plan, Tokens]]:
    """For every turn of a case: its prompt and the answer that was given, which is empty for the last turn.
    system: the system text as tokens.
    """
    system_segment = Segment(name="system", tokens=system)
    spans = [Span(start=0, tokens=system, segment=system_segment)]
    for turn in case.earlier:
        passages = [] if arm.reads == "none" else zip(turn.modules, turn.left_contexts, strict=True)
        start = place(spans, passages, arm, system_segment)
        spans.append(Span(start=start, tokens=turn.question))
        yield Plan(spans=tuple(spans)), turn.answer
        spans[-1] = Span(start=start, tokens=turn.question + turn.answer)
    start = place(spans, passages_read(case, arm), arm, system_segment)
    yield Plan(spans=(*spans, Span(start=start, tokens=case.question))), ()


def passages_read(case: Case, arm: Arm) -> list[tuple[Tokens, Tokens]]:
    """The passages that an arm reads for the last question, each with its left context."""
    pairs = list(zip(case.modules, case.left_contexts, strict=True))
    if arm.reads == "none":
        return []
    if arm.reads == "gold":
        return pairs if case.right is None else [pairs[case.right]]
    if arm.reads == "best":
        budget = BALANCED_SHARE * sum(map(len, case.modules))
        first = len(pairs) - 1
        while first > 0 and sum(len(module) for module, _ in pairs[first - 1 :]) <= budget:
            first -= 1
        return pairs[first:]
    return pairs


def place(spans: list[Span], passages: Iterable[tuple[Tokens, Tokens]], arm: Arm, system: Segment) -> int:
    """Append passages to `spans`. Returns the position id at which the text behind them begins."""
    base = position = end(spans)
    for tokens, left_context in passages:
        if arm.placement in ("slotted", "unions"):
            position += -(position - base) % SLOT
        elif arm.placement == "shared":
            position = base
        prefix = None if arm.behind == "nothing" else system
        left_context = left_context if arm.behind == "neighbours" else ()
        segment = Segment(
            name="passage",
            tokens=tokens,
            start=(prefix.end if prefix else 0) + len(left_context),
            prefix=prefix,
            left_context=left_context,
        )
        spans.append(Span(start=position, tokens=tokens, segment=segment))
        position = spans[-1].end
    return position + -(position - base) % SLOT if arm.placement == "unions" else end(spans)


def end(spans: Sequence[Span]) -> int:
    """The position id behind all spans."""
    return max(span.end for span in spans)
