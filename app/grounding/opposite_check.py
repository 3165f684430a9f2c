"""Whether a clause says the opposite of the statement it is nearest to: by a denial, or by a word and its opposite.

Compared are only clauses about the same, so that a paraphrase is not taken for a contradiction. Two opposites cancel
out: "not closed" is "open".
"""

from app.grounding.claim import Claim
from app.grounding.evidence import StatedUnit
from app.grounding.opposites import are_opposite
from app.grounding.reading import Clause

ALIKE = 0.6
"""Share of a clause's words from which on a clause of a passage is about the same."""
AS_NEAR = 0.05
"""How much less of the words than the nearest clause another one may hold to count as equally near."""
DENIED, NOT_DENIED = "the passages deny this", "the passages do not deny this"


def opposite_problem(claim: Claim) -> str | None:
    """What a sentence says the opposite of."""
    if claim.lead in ("yes", "yep") and claim.said.clauses and all(clause.denies for clause in claim.said.clauses):
        return 'the passages deny what "yes" confirms'
    for clause in claim.said.clauses:
        if clause.begins == "until":  # "until it is packed" is "as long as it is not packed"
            continue
        found = [difference(clause, claim, *place) for place in alike(clause, claim)]
        if found and all(found):
            return found[0]
    return None


def difference(clause: Clause, claim: Claim, unit: StatedUnit, other: Clause) -> str | None:
    """How a clause of the evidence says the opposite, or None."""
    mine = (clause.words | clause.signals) - other.words - other.signals
    theirs = (other.words | other.signals) - claim.said.words - claim.said.signals
    turned = [(one, two) for one in mine for two in theirs if are_opposite(one, two)]
    if (clause.denies + other.denies + len(turned)) % 2 == 0:
        return None
    if turned:
        return f'the passages say the opposite of "{turned[0][0]}"'
    # the denial may stand in another clause, here or there
    said = sum(one.denies for one in claim.said.clauses)
    there = sum(one.denies and 2 * len(one.words & claim.said.words) >= len(one.words) for one in unit.said.clauses)
    return NOT_DENIED if clause.denies and said > there else DENIED if other.denies and said < there else None


def alike(clause: Clause, claim: Claim) -> list[tuple[StatedUnit, Clause]]:
    """Clauses of the evidence that are about the same as a clause, each with its statement."""
    total = sum(claim.weights[word] for word in clause.words)
    units = dict.fromkeys((*claim.evidence.nearest(clause.words), *claim.nearest))
    places = [(unit, other) for unit in units if unit.is_statement for other in unit.said.clauses]
    most = max((facts_in(clause.words & other.words) for _, other in places), default=0)
    places = [(unit, other) for unit, other in places if facts_in(clause.words & other.words) == most]
    fits = [(unit.weight(clause.words, claim.weights, other), unit, other) for unit, other in places]
    top = max((fit for fit, *_ in fits), default=0.0)
    if not total or top < ALIKE * total:
        return []
    near = [(unit, other) for fit, unit, other in fits if fit >= top - AS_NEAR * total]
    rest = [unit.weight(claim.said.words, claim.weights) for unit, _ in near]
    return [place for place, more in zip(near, rest, strict=True) if more >= max(rest) - AS_NEAR * total]


def facts_in(words: frozenset[str]) -> int:
    """How many of some words are facts."""
    return sum(word.startswith("#") for word in words)
