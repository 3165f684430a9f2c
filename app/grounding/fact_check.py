"""What is wrong with the facts of a sentence: they are not in the passages, or they belong to something else there.

A fact stands in the right place if the words around it in the sentence fit the statement that it is taken from no worse
than a statement of another fact of its kind.
"""

from app.grounding.claim import Claim
from app.grounding.evidence import StatedUnit
from app.grounding.fact import Fact

CHANGED, OTHER_FACT, OTHER_UNIT, NAME = 0.03, 0.1, 0.3, 0.3
"""How much better the words around a fact may fit a statement of another one, as a share of their weight; less
where the sentence rewords that statement; more for one with another unit (days, working days), or for a statement
without a name."""
NOWHERE = 0.6
"""The same where the passages do not state the fact and the sentence only implies it ("a year")."""
REWORDED = 0.85
"""Share of the other words from which on a sentence is a statement's own with a fact or name changed."""
FAR, BEFORE = 0.5, 0.25
"""How much words in other clauses and in the sentence before count."""
FEW = 2
"""So many words, or fewer, do not tell what a fact belongs to."""
KIND_NAMES = {"code": "name", "weekday": "day"}


def fact_problem(claim: Claim) -> str | None:
    """What is wrong with the facts of a sentence."""
    different = {fact.key: fact for fact in claim.said.facts}.values()
    return next((found for fact in different if (found := problem_of(fact, claim))), None)


def problem_of(fact: Fact, claim: Claim) -> str | None:
    """What is wrong with one fact of a sentence."""
    is_year = fact.kind == "number" and not fact.is_bound and not fact.unit
    kind = "date" if is_year else KIND_NAMES.get(fact.kind, fact.kind)
    if fact.kind in ("name", "code"):
        return name_problem(fact, kind, claim)
    places = claim.evidence.stating(fact)
    if not places and (fact.is_bound or is_year):
        return f'the {kind} "{fact.text}" is not in the passages'
    if is_year or (places and not fact.is_bound):
        return None
    for rival in better_placed(fact, claim):
        # of two facts of the sentence, each must be in the place of the other
        if rival.key not in claim.said.words or fact.key in {other.key for other in better_placed(rival, claim)}:
            return f'the passages say "{rival.text}" there, not "{fact.text}"'
    return None


def better_placed(fact: Fact, claim: Claim) -> list[Fact]:
    """Other facts of the same kind that the words around a fact fit clearly better; if the fact is nowhere, well."""
    same = {other.key for other in claim.said.facts if other.measures == fact.measures}
    near = next((clause.words for clause in claim.said.clauses if fact.key in clause.words), frozenset()) - same
    shares = {**dict.fromkeys(claim.before, BEFORE), **dict.fromkeys(claim.said.words, FAR), **dict.fromkeys(near, 1.0)}
    weights = {word: share * claim.weights[word] for word, share in shares.items() if word not in same}
    bare = {word: weight for word, weight in weights.items() if not word.startswith("#")}
    weights = bare if len(bare) > FEW else weights  # the other figures may be wrong as well
    if len(weights) < FEW:
        return []
    here = max((fit(unit, other, weights) for unit, other in claim.evidence.stating(fact)), default=None)
    around = near & weights.keys()
    total = sum(weights[word] for word in (around if len(around) > FEW else weights))
    found = []
    for unit, other in claim.evidence.rivals(fact):
        is_reworded = fact.key not in unit.said.words and unit.share(weights, weights) >= REWORDED
        is_alike = other.unit == fact.unit
        limit = NOWHERE if here is None else CHANGED if is_reworded else OTHER_FACT if is_alike else OTHER_UNIT
        if fit(unit, other, weights) - (here or 0.0) > limit * total:
            found.append(other)
    return found


def fit(unit: StatedUnit, fact: Fact, weights: dict[str, float]) -> float:
    """How well some words fit the place where a statement gives a fact."""
    clauses = [clause for clause in unit.said.clauses if fact.key in clause.words]
    return max((unit.weight(weights, weights, clause) for clause in clauses), default=0.0)


def name_problem(fact: Fact, kind: str, claim: Claim) -> str | None:
    """What is wrong with a name or a model number. Headings may state it for all text below them."""
    name = fact.value if fact.kind == "name" else fact.key
    stating = claim.evidence.holding(name)
    if not stating and fact.text not in claim.evidence.text:
        return f'the {kind} "{fact.text}" is not in the passages'
    words = claim.said.words - {name}
    total = sum(claim.weights[word] for word in words)
    here = max((unit.weight(words, claim.weights) for unit in stating), default=total)
    there = max((unit.weight(words, claim.weights) for unit in claim.evidence.nearest(words)), default=0.0)
    if there - here > (NAME if there < REWORDED * total else OTHER_FACT) * total:
        return f'the {kind} "{fact.text}" stands for something else in the passages'
    return None
