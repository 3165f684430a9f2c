"""Whether the clauses of a sentence deny, restrict or call free what the passages do not, or the other way round.

A denial is compared only with a clause that is about the same and speaks of what is denied, so that a paraphrase is not
taken for a contradiction. Not covered: contradiction without a word of denial ("open" for "sold out").
"""

import re
from collections.abc import Sequence
from typing import TypeAlias

from app.grounding.amounts import SIGNS
from app.grounding.claims import Claim
from app.grounding.clauses import ALLOWED, Clause
from app.grounding.evidence import Evidence
from app.grounding.evidence_units import EvidenceUnit
from app.grounding.words import stem

ALIKE = 0.6
"""Share of a clause's words from which on a clause of a passage says the same or the opposite."""
REWORDED = 0.8
"""Share from which on a sentence is a rewording of one unit and is compared only with that unit."""
HALF, MOST = 0.5, 0.75
"""Shares of the words of an exception, and of a clause with "only", from which on a clause speaks of it."""
SAME_CLAUSE = 0.05
"""How much less of a clause's words than the nearest clause another one may hold to count as equally near."""
DENIED = "the passages deny this"
BURDEN = re.compile(
    r"\b(?:needs?|needed|require[sd]?|have to|must|costs?|charge[sd]?|fees?|pay|free|reason|wait|limit|minimum|"
    r"appointment|only|instead|except|unless|until)\b",
    re.IGNORECASE,
)
"""After these words, "yes" and "no" both make sense, with and without "not"."""
FREE = stem("free")
Near: TypeAlias = tuple[EvidenceUnit, Clause]
"""A clause of the passages that is about the same as one of the sentence, with its unit."""


def denial_problem(claim: Claim, evidence: Evidence) -> str | None:
    """What a sentence denies, restricts or calls free otherwise than the passages."""
    for part in claim.clauses:
        if near := alike(part, claim, evidence):
            problem = opposite_problem(part, near) or only_problem(part, near, claim)
            if problem := problem or free_problem(part, near, claim, evidence):
                return problem
    return None


def opposite_problem(part: Clause, near: Sequence[Near]) -> str | None:
    """Whether every clause about the same says the opposite, or an exception is stated as the rule."""
    exceptions = [(unit, other) for unit, _ in near for other in unit.clauses if other.is_exception]
    if all(opposes(other, part) for _, other in near):
        if part.denies and all(other.words.isdisjoint(part.words) for _, other in exceptions):
            return "the passages do not deny this"
        # a list item that is quoted without its introduction denies nothing
        if part.denies is False and (part.has_verb or not all(other.inherits for _, other in near)):
            return DENIED
    if not part.denies and any(holds(part, unit.only_in(other), HALF) for unit, other in exceptions):
        return DENIED
    return None


def only_problem(part: Clause, near: Sequence[Near], claim: Claim) -> str | None:
    """Whether "only" was added, or left out of a sentence that otherwise repeats the passage."""
    if part.says_only:
        limits = any(other.limits or other.denies for unit, _ in near for other in unit.clauses)
        return None if limits else 'the passages do not say "only"'
    if any(other.limits or other.denies for other in claim.clauses):
        return None
    repeats = all(
        unit.rewords(claim.words, claim.weights) >= REWORDED and other.says_only and holds(part, other.words, MOST)
        for unit, other in near
    )
    return 'the passages say "only"' if repeats else None


def free_problem(part: Clause, near: Sequence[Near], claim: Claim, evidence: Evidence) -> str | None:
    """Whether something is called free that has a price, or the other way round."""
    best = [evidence.units[i] for i in claim.nearest[:3]]
    if part.says_free:
        units = (*best, *(unit for unit, _ in near))
        if not any(FREE in unit.around or any(other.says_free for other in unit.clauses) for unit in units):
            return 'the passages do not say "free"'
    around = [other for unit, _ in near for other in unit.clauses]
    if not all(other.says_free for _, other in near) or any(other.says_not_free for other in around):
        return None
    has_price = any(other.says_paid or names_a_price(other) for other in around) or names_a_price(part)
    if part.says_not_free or (part.says_paid and not part.says_free and not has_price):
        return 'the passages say "free"'
    return None


def holds(part: Clause, words: frozenset[str], share: float) -> bool:
    """Whether a clause holds at least this share of some words."""
    return bool(words) and len(words & part.words) >= share * len(words)


def names_a_price(part: Clause) -> bool:
    """Whether a clause names an amount of money."""
    return any(word.endswith(currency) for word in part.words for currency in SIGNS if word.startswith("#number"))


def opposes(other: Clause, part: Clause) -> bool:
    """Whether a clause of the passages denies what the sentence affirms, or the other way round. If it is unknown
    whether a list's introduction denies its items, a denial has to name words of the introduction.
    """
    if other.denies is None:
        return bool(part.denies and other.inherits and other.inherits.isdisjoint(part.words))
    # "until it is packed" may stand for "as long as it is not packed"
    if other.denies == part.denies or part.is_until != other.is_until:
        return False
    denial, statement = (part, other) if part.denies else (other, part)
    return other.is_verdict or denial.anchors <= {ALLOWED} or not denial.anchors.isdisjoint(statement.all_words)


def alike(part: Clause, claim: Claim, evidence: Evidence) -> list[Near]:
    """Clauses of the passages that are about the same as a clause, each with its unit. Empty if none is near enough."""
    total = sum(claim.weights[word] for word in part.words)
    rest = claim.words - part.words
    same = [i for i in claim.nearest if evidence.units[i].rewords(claim.words, claim.weights) >= REWORDED]
    places = set(same) if same else {*evidence.best(part.words), *claim.nearest}
    fits = [
        (evidence.units[i].cover(part.words, claim.weights, other), evidence.units[i], other)
        for i in places
        if not evidence.units[i].is_heading
        for other in evidence.units[i].clauses
    ]
    most_facts = max((shared_facts(part, other) for *_, other in fits), default=0)
    fits = [found for found in fits if shared_facts(part, found[2]) == most_facts]
    top = max((own for own, *_ in fits), default=0.0)
    if not total or top < ALIKE * total:
        return []
    likely = [
        (unit.cover(rest, claim.weights), unit, other) for own, unit, other in fits if own >= top - SAME_CLAUSE * total
    ]
    most = max(more for more, *_ in likely)
    margin = SAME_CLAUSE * sum(claim.weights[word] for word in rest)
    near = [(unit, other) for more, unit, other in likely if more >= most - margin]
    return [(unit, other) for unit, _ in near for other in verdicts(unit, part)] or near


def shared_facts(part: Clause, other: Clause) -> int:
    """How many facts two clauses have in common."""
    return sum(word.startswith("#") for word in part.words & other.words)


def verdicts(unit: EvidenceUnit, part: Clause) -> list[Clause]:
    """The cells of a table row that answer yes or no to what a clause speaks of."""
    return [cell for cell in unit.clauses if cell.is_verdict and not part.words.isdisjoint(unit.only_in(cell))]


def yes_no_problem(claim: Claim, evidence: Evidence) -> str | None:
    """Whether a leading "yes" or "no" goes with what follows and with the passage."""
    if not claim.yes_no or not claim.nearest or BURDEN.search(claim.body):
        return None
    best = evidence.units[claim.nearest[0]]
    if claim.yes_no == "yes" and all(part.denies for part in claim.clauses):
        return 'the passages deny what "yes" confirms'
    affirms = not any(part.denies or part.says_free or part.says_only for part in (*claim.clauses, *best.clauses))
    if claim.yes_no == "no" and affirms and "no" not in best.around:
        return 'the passages confirm what "no" denies'
    return None
