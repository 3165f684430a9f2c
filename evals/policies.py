"""The arms of the quality harness: each says which passages are read, how they were encoded, where they stand, and what
is computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from app.domain.policies import BALANCED_SHARE, LINKS
from cache.engine.recomputation import Link
from cache.engine.request import Reuse
from cache.prompt.plan import Plan, Span, Unit
from evals.cases import Case, Tokens

SLOT = 256
FIRST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """behind: what a passage sees while it is encoded; "neighbours" as the desk encodes it, behind the system text and
    as many neighbours as it is set to. placement: "slotted" begins passages at multiples of `SLOT`, "unions" gives them
    slots that count whole, as unions of a schema do (text behind them begins behind the last slot). reads: which
    passages of a case are there at all; "best" takes the most relevant ones as long as they cost no more than
    recomputing `BALANCED_SHARE` of all, one at least.
    """

    says: str
    behind: Literal["neighbours", "system", "stub", "nothing"] = "neighbours"
    placement: Literal["contiguous", "slotted", "unions", "shared"] = "contiguous"
    link: Link = field(default_factory=Link)
    reuse: Reuse = "on"
    reads: Literal["all", "best", "gold", "none"] = "all"


BY_QUESTION = LINKS["balanced"]
POLICIES: dict[str, Policy] = {
    "full": Policy(says="full attention, exact prefixes reused", reuse="prefix"),
    "exact": Policy(says="profile exact", link=LINKS["exact"]),
    "balanced": Policy(says="profile balanced: as fast, 15 % by question", link=BY_QUESTION),
    "fast": Policy(says="profile fast: system text and neighbours before each passage, contiguous", link=LINKS["fast"]),
    "random": Policy(says="as balanced, rows by chance (control)", link=replace(BY_QUESTION, by="random")),
    "first": Policy(says=f"as fast, first {FIRST} tokens of each passage again", link=Link(first=FIRST)),
    "alone": Policy(says="as fast, without neighbours", behind="system"),
    "slotted": Policy(says=f"as fast, in slots of {SLOT}", placement="slotted"),
    "shared": Policy(says="as fast, all passages at one start", placement="shared"),
    "stub": Policy(says="short stub before each passage", behind="stub"),
    "naive": Policy(says="nothing before a passage, contiguous", behind="nothing"),
    "prompt_cache": Policy(
        says=f"Prompt Cache's layout: nothing before, unions of {SLOT} ids", behind="nothing", placement="unions"
    ),
    "fewer": Policy(says="full attention over fewer passages at the cost of balanced", reuse="prefix", reads="best"),
    "gold": Policy(says="full attention over the one right passage", reuse="prefix", reads="gold"),
    "none": Policy(says="no passages", reuse="prefix", reads="none"),
}


def plans(case: Case, policy: Policy, system: Tokens, stub: Tokens) -> Iterator[tuple[Plan, Tokens]]:
    """Every turn of a case: what is asked, and the answer that was given, none for the last turn."""
    spans = [Span(start=0, tokens=system, unit=Unit(name="system", tokens=system))]
    for turn in case.earlier:
        passages = [] if policy.reads == "none" else list(zip(turn.modules, turn.leads, strict=True))
        at = place(spans, passages, policy, system, stub)
        spans.append(Span(start=at, tokens=turn.question))
        yield Plan(spans=tuple(spans)), turn.answer
        spans[-1] = Span(start=spans[-1].start, tokens=turn.question + turn.answer)
    at = place(spans, read(case, policy), policy, system, stub)
    yield Plan(spans=(*spans, Span(start=at, tokens=case.question))), ()


def read(case: Case, policy: Policy) -> list[tuple[Tokens, Tokens]]:
    """Passages that a policy reads, each with its lead."""
    pairs = list(zip(case.modules, case.leads, strict=True))
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
    spans: list[Span], modules: Sequence[tuple[Tokens, Tokens]], policy: Policy, system: Tokens, stub: Tokens
) -> int:
    """Append modules behind what stands there; gives the position id at which text goes on."""
    base = at = end(spans)
    for tokens, lead in modules:
        if policy.placement in ("slotted", "unions"):
            at += -(at - base) % SLOT
        elif policy.placement == "shared":
            at = base
        spans.append(Span(start=at, tokens=tokens, unit=unit_of(tokens, lead, policy, system, stub)))
        at = spans[-1].end
    return at + -(at - base) % SLOT if policy.placement == "unions" else end(spans)


def unit_of(tokens: Tokens, lead: Tokens, policy: Policy, system: Tokens, stub: Tokens) -> Unit:
    """A passage as it is encoded."""
    if policy.behind == "nothing":
        return Unit(name="passage", tokens=tokens)
    prefix = Unit(name="stub", tokens=stub) if policy.behind == "stub" else Unit(name="system", tokens=system)
    lead = lead if policy.behind == "neighbours" else ()
    return Unit(name="passage", tokens=tokens, start=prefix.end + len(lead), prefix=prefix, lead=lead)


def end(spans: Sequence[Span]) -> int:
    """Position id behind everything."""
    return max(span.end for span in spans)
