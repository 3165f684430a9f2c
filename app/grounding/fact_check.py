"""What is wrong with the facts of a sentence: they are not in the passages, or they belong to something else there.

A fact stands in the right place if the words around it in the sentence stand around it in the passage, and not around
another fact of its kind. Not covered: "before" for "after", "at least" for "at most".
"""

from collections.abc import Sequence
from typing import TypeAlias

from app.grounding.claims import Claim
from app.grounding.evidence import Evidence
from app.grounding.evidence_units import EvidenceUnit
from app.grounding.fact import Fact
from app.grounding.words import content_words

ELSEWHERE, IN_SAME_UNIT, OTHER_UNIT = 0.1, 0.03, 0.3
"""How much better the words around a fact may fit another fact of its kind, as a share of their weight. The limit is
lower if both facts stand in the same sentence of a passage, and higher if their units differ (days, working days)."""
SAME_PLACE = 0.05
"""Places that fit a fact almost as well as the best one, by the same measure, count as its own too."""
BESIDE, SWAPPED = 0.4, 0.1
"""Share of the words beside a fact that may stand beside another fact in the passage instead. The limit is lower if the
sentence states both facts, because then it is tested for both."""
FAR, BEFORE = 0.5, 0.25
"""How much words in other clauses and in the sentence before count."""
MENTIONED = 0.1
"""Share of the words around a fact that its place in the passages must hold."""
NAME_ELSEWHERE = 0.3
"""How much better the other words may fit a unit without the name, as a share of their weight."""
REWORDED = 0.85
"""Share of the other words from which on a sentence is a passage's own with a name or a number changed."""
FEW = 2
"""So many words, or fewer, do not tell what a fact belongs to."""
FIGURES = ("#number", "#time")
"""How the keys of numbers and times begin."""
KIND_NAMES = {"code": "name", "weekday": "day"}
Place: TypeAlias = tuple[int, Fact]
"""A unit's number with a fact that it states."""


def fact_problem(claim: Claim, evidence: Evidence) -> str | None:
    """What is wrong with the facts of a sentence: one is nowhere, or it belongs to something else."""
    different = {(fact.key, fact.beside): fact for fact in claim.facts}.values()
    return next((found for fact in different if (found := problem_of(fact, claim, evidence))), None)


def problem_of(fact: Fact, claim: Claim, evidence: Evidence) -> str | None:
    """What is wrong with one fact of a sentence."""
    kind = "date" if is_year(fact) else KIND_NAMES.get(fact.kind, fact.kind)
    if fact.kind in ("name", "code"):
        return name_problem(fact, kind, claim, evidence)
    if fact.kind == "number" and fact.unit and not fact.is_bound:  # an amount without a number, such as "a week"
        rival = None if evidence.stating(fact) else in_its_place(fact, claim, evidence)
        return f'the passages say "{rival.text}" there, not "{fact.text}"' if rival else None
    if not fact.is_bound and not is_year(fact):
        return None
    places = evidence.stating(fact)
    if not places:
        return f'the {kind} "{fact.text}" is not in the passages'
    if not fact.is_bound:
        return None
    weights = surroundings(fact, claim)
    rival = in_its_place(fact, claim, evidence) or better_placed(fact, places, claim, evidence, weights)
    if not rival and sum(not word.startswith(FIGURES) for word in claim.words) > FEW:
        # the other figures may be wrong as well
        bare = {word: weight for word, weight in weights.items() if not word.startswith(FIGURES)}
        rival = better_placed(fact, places, claim, evidence, bare)
    if rival:
        return f'the passages say "{rival.text}" there, not "{fact.text}"'
    here = max(fit(evidence.units[i], other, weights) for i, other in places)
    if len(claim.words) > FEW and here < MENTIONED * sum(weights.values()):
        return f'the {kind} "{fact.text}" stands for something else in the passages'
    return None


def is_year(fact: Fact) -> bool:
    """Whether a fact is the year of a date."""
    return fact.kind == "number" and not fact.is_bound and not fact.unit


def better_placed(
    fact: Fact, places: Sequence[Place], claim: Claim, evidence: Evidence, weights: dict[str, float]
) -> Fact | None:
    """Another fact of the same kind that the words around a fact fit clearly better. places: where it is stated."""
    total = sum(weights.values())
    fits = [(fit(evidence.units[i], other, weights), i) for i, other in places]
    here = max(value for value, _ in fits)
    homes = {i for value, i in fits if value >= here - SAME_PLACE * total}
    clause = claim.clauses[home_of(fact, claim)]
    rivals = [(fit(evidence.units[i], rival, weights) - here, i, rival) for i, rival in evidence.rivals(fact)]
    for gain, i, rival in sorted(rivals, key=lambda found: -found[0]):
        if rival.key in clause.words:
            is_better = is_swapped(fact, (i, rival), places, claim, evidence)
        elif rival.unit != fact.unit:
            is_better = gain > OTHER_UNIT * total
        else:
            is_better = gain > (IN_SAME_UNIT if i in homes else ELSEWHERE) * total or (
                (i in homes or gain >= 0) and goes_with(fact, (i, rival), places, evidence, BESIDE)
            )
        if is_better:
            return rival
    return None


def in_its_place(fact: Fact, claim: Claim, evidence: Evidence) -> Fact | None:
    """The fact of the same kind in a unit that the sentence rewords, if that unit does not state the given one."""
    words = frozenset(word for word in claim.words if not word.startswith("#"))
    if not fact.is_bound:
        words -= content_words(fact.text)
    units = [evidence.units[i] for i in claim.nearest[:3]]
    same = [unit for unit in units if unit.rewords(words, claim.weights) >= REWORDED]
    if any(unit.mentions(fact.key) for unit in same):
        return None
    claim_keys = [other.key for other in claim.facts]
    for unit in same:
        keys = [other.key for other in unit.facts]
        for other in unit.facts:
            is_rival = other.is_bound and other.measures == fact.measures
            if is_rival and keys.count(other.key) > claim_keys.count(other.key):
                return other
    return None


def home_of(fact: Fact, claim: Claim) -> int:
    """The clause of a sentence that states a fact."""
    return next((i for i, part in enumerate(claim.clauses) if fact.key in part.words), 0)


def surroundings(fact: Fact, claim: Claim) -> dict[str, float]:
    """The words around a fact with their weights. Words of its clause count most; words of clauses without a fact of
    its kind count less, and words of the sentence before least.
    """
    rivals = {other.key for other in claim.facts if other.measures == fact.measures}
    home = home_of(fact, claim)
    others = [i for i, part in enumerate(claim.clauses) if i != home and not rivals.isdisjoint(part.words)]
    # a clause between two facts of a kind belongs to the earlier one
    first = home if any(i < home for i in others) else 0
    last = min((i for i in others if i > home), default=len(claim.clauses))
    far = {word for part in claim.clauses[first:last] for word in part.words}
    near = claim.clauses[home].words
    shares = {**dict.fromkeys(claim.before, BEFORE), **dict.fromkeys(far, FAR), **dict.fromkeys(near, 1.0)}
    return {word: share * claim.weights[word] for word, share in shares.items() if word != fact.key}


def is_swapped(fact: Fact, rival: Place, places: Sequence[Place], claim: Claim, evidence: Evidence) -> bool:
    """Whether a sentence states two facts of a kind, each with what belongs to the other."""
    others = (other for other in claim.facts if other.key == rival[1].key)
    return goes_with(fact, rival, places, evidence, SWAPPED) and any(
        goes_with(other, places[0], [rival], evidence, SWAPPED) for other in others
    )


def goes_with(fact: Fact, rival: Place, stated: Sequence[Place], evidence: Evidence, by: float) -> bool:
    """Whether more of the words beside a fact in the sentence stand beside the rival in the passages than beside it."""
    weights = evidence.weights(fact.beside)
    here = max(sum(weights[word] for word in fact.beside & evidence.beside(*other)) for other in stated)
    there = sum(weights[word] for word in fact.beside & evidence.beside(*rival))
    return there - here > by * sum(weights.values())


def fit(unit: EvidenceUnit, fact: Fact, weights: dict[str, float]) -> float:
    """How well the words around a fact fit the place where a unit states it."""
    homes = [part for part in unit.clauses if fact.key in part.words] or list(unit.clauses)
    return max((unit.cover(weights, weights, part) for part in homes), default=0.0)


def name_problem(fact: Fact, kind: str, claim: Claim, evidence: Evidence) -> str | None:
    """What is wrong with a name or a model number. Like other facts, but a heading may state it for all text below."""
    name = fact.value if fact.kind == "name" else fact.key
    words = claim.words - {name}
    total = sum(claim.weights[word] for word in words)
    found = evidence.best(words)
    if name not in evidence.known:
        stands_for = found and not fact.is_bound and took_a_name(evidence.units[found[0]], words, claim, evidence)
        return f'the {kind} "{fact.text}" is not in the passages' if fact.is_bound or stands_for else None
    if not fact.is_bound and fact.text not in evidence.proper:
        return None
    covers_of = {i: evidence.units[i].cover(words, claim.weights) for i in {*found, *evidence.with_word.get(name, ())}}
    there = max((covers_of[i] for i in found), default=0.0)
    own = max((value for i, value in covers_of.items() if evidence.units[i].states(name)), default=0.0)
    here = max((value for i, value in covers_of.items() if evidence.units[i].mentions(name)), default=0.0)
    is_taken = there - own > ELSEWHERE * total and took_a_name(evidence.units[found[0]], words, claim, evidence)
    if is_taken or there - here > NAME_ELSEWHERE * total:
        return f'the {kind} "{fact.text}" stands for something else in the passages'
    return None


def took_a_name(unit: EvidenceUnit, words: frozenset[str], claim: Claim, evidence: Evidence) -> bool:
    """Whether a unit says the same as the sentence with another name in place of the one given."""
    names = {f.value for f in unit.facts if f.kind == "name" and f.value in evidence.names}
    names |= {f.key for f in unit.facts if f.kind == "code"}
    return not names <= claim.words and unit.rewords(words, claim.weights) > REWORDED
