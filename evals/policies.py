"""The arms of the quality harness: each says which passages are read, how they were encoded, where they stand, and what
is computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from app.domain.policies import BALANCED_SHARE, RECOMPUTATIONS
from cache.engine.recomputation import SelectiveRecomputation
from cache.engine.request import Reuse
from cache.prompt.plan import Plan, Segment, Span
from evals.cases import Case, Tokens

SLOT = 256
FIRST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """behind: what a passage sees while it is encoded; "neighbours" as the desk encodes it, behind the system text and
    as many neighbours as it is set to. placement: "slotted" begins passages at multiples of `SLOT`, "unions" gives them
    slots that count whole, as unions of a schema do (text behind them begins behind the last slot). reads: which
    passages of a case are there at all; "best" takes the most relevant ones as long as they cost no more than
    recomputing `BALANCED_SHARE` of all, one at least.
    """

    says: str
    behind: Literal["neighbours", "system", "sink_prefix", "nothing"] = "neighbours"
    placement: Literal["contiguous", "slotted", "unions", "shared"] = "contiguous"
    recomputation: SelectiveRecomputation = field(default_factory=SelectiveRecomputation)
    reuse: Reuse = "on"
    reads: Literal["all", "best", "gold", "none"] = "all"


BY_QUESTION = RECOMPUTATIONS["balanced"]
ARMS: dict[str, Arm] = {
    "full": Arm(says="full attention, exact prefixes reused", reuse="prefix"),
    "exact": Arm(says="profile exact", recomputation=RECOMPUTATIONS["exact"]),
    "balanced": Arm(says="profile balanced: as fast, 15 % by question", recomputation=BY_QUESTION),
    "fast": Arm(
        says="profile fast: system text and neighbours before each passage, contiguous",
        recomputation=RECOMPUTATIONS["fast"],
    ),
    "random": Arm(says="as balanced, rows by chance (control)", recomputation=replace(BY_QUESTION, by="random")),
    "first": Arm(
        says=f"as fast, first {FIRST} tokens of each passage again", recomputation=SelectiveRecomputation(first=FIRST)
    ),
    "alone": Arm(says="as fast, without neighbours", behind="system"),
    "slotted": Arm(says=f"as fast, in slots of {SLOT}", placement="slotted"),
    "shared": Arm(says="as fast, all passages at one start", placement="shared"),
    "sink_prefix": Arm(says="a short sink prefix before each passage", behind="sink_prefix"),
    "naive": Arm(says="nothing before a passage, contiguous", behind="nothing"),
    "prompt_cache": Arm(
        says=f"Prompt Cache's layout: nothing before, unions of {SLOT} ids", behind="nothing", placement="unions"
    ),
    "fewer": Arm(says="full attention over fewer passages at the cost of balanced", reuse="prefix", reads="best"),
    "gold": Arm(says="full attention over the one right passage", reuse="prefix", reads="gold"),
    "none": Arm(says="no passages", reuse="prefix", reads="none"),
}


def plans(case: Case, policy: Arm, system: Tokens, sink_prefix: Tokens) -> Iterator[tuple[Plan, Tokens]]:
    """Every turn of a case: what is asked, and the answer that was given, none for the last turn."""
    spans = [Span(start=0, tokens=system, segment=Segment(name="system", tokens=system))]
    for turn in case.earlier:
        passages = [] if policy.reads == "none" else list(zip(turn.modules, turn.left_contexts, strict=True))
        at = place(spans, passages, policy, system, sink_prefix)
        spans.append(Span(start=at, tokens=turn.question))
        yield Plan(spans=tuple(spans)), turn.answer
        spans[-1] = Span(start=spans[-1].start, tokens=turn.question + turn.answer)
    at = place(spans, read(case, policy), policy, system, sink_prefix)
    yield Plan(spans=(*spans, Span(start=at, tokens=case.question))), ()


def read(case: Case, policy: Arm) -> list[tuple[Tokens, Tokens]]:
    """Passages that a policy reads, each with its left context."""
    pairs = list(zip(case.modules, case.left_contexts, strict=True))
    if policy.reads == "none":
        return []
    if policy.reads == "gold":
        return pairs if case.right is None else [pairs[case.right]]
    if policy.reads == "best":
        budget = BALANCED_SHARE * sum(map(len, case.modules))
        first = len(pairs) - 1
        while first > 0 and sum(len(module) for module, _ in pairs[first - 1 :]) <= budget:
            first -= 1
        return pairs[first:]
    return pairs


def place(
    spans: list[Span], modules: Sequence[tuple[Tokens, Tokens]], policy: Arm, system: Tokens, sink_prefix: Tokens
) -> int:
    """Append modules behind what stands there; gives the position id at which text goes on."""
    base = at = end(spans)
    for tokens, left_context in modules:
        if policy.placement in ("slotted", "unions"):
            at += -(at - base) % SLOT
        elif policy.placement == "shared":
            at = base
        spans.append(
            Span(start=at, tokens=tokens, segment=segment_of(tokens, left_context, policy, system, sink_prefix))
        )
        at = spans[-1].end
    return at + -(at - base) % SLOT if policy.placement == "unions" else end(spans)


def segment_of(tokens: Tokens, left_context: Tokens, policy: Arm, system: Tokens, sink_prefix: Tokens) -> Segment:
    """A passage as it is encoded."""
    if policy.behind == "nothing":
        return Segment(name="passage", tokens=tokens)
    prefix = (
        Segment(name="sink prefix", tokens=sink_prefix)
        if policy.behind == "sink_prefix"
        else Segment(name="system", tokens=system)
    )
    left_context = left_context if policy.behind == "neighbours" else ()
    return Segment(
        name="passage", tokens=tokens, start=prefix.end + len(left_context), prefix=prefix, left_context=left_context
    )


def end(spans: Sequence[Span]) -> int:
    """Position id behind everything."""
    return max(span.end for span in spans)
