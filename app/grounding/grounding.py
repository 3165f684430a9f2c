"""Check each sentence of an answer against the passages: its facts, its words, and contradictions.

A language model may mix up its input, so every sentence is compared with the statements of the passages. `CHECKS` lists
all checks. Answers that are shown and answers that are measured use the same `AnswerChecker`.

A fact is in the right place if the words around it fit its statement at least as well as a statement of another fact of
its kind. Opposites are found by a negation, or by a word and its opposite, and only between clauses about the same
topic, so that a paraphrase is not a contradiction. Two opposites cancel out: "not closed" is "open". Politeness and
bare introductions need no support.

Out of scope: conclusions from several passages by calculation or common sense, and paraphrases in completely different
words.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from app.grounding.evidence import Clause, Evidence, Reading, StatedUnit, are_opposite, plain, read
from app.grounding.facts import Fact, content_words
from retrieval.text.sentences import sentences

OPENING = re.compile(r"(?:please\s)?(?:note|be aware|keep in mind|remember)\s(?:also\s)?that\s", re.IGNORECASE)
ECHO = (
    r"[,.]?\s(?:I|you|we|they|it|that|this|there)\s(?:can|could|may|must|do|does|did|is|are|was|were|will|wo|would|should)"
    r"(?:\s?not|n?['’]t)?"
)
"""Text that only repeats the yes or no before it: "Yes, you can."."""
YES_NO = re.compile(rf"^\s*(?P<word>yes|no|yep|nope)\s*(?:{ECHO}\s*(?:[.!]|$)|[,.!:;–—-]|$)\s*", re.IGNORECASE)
ALONE = re.compile(rf"\W*(?:yes|no|yep|nope)\b(?:{ECHO}\b)?\W*", re.IGNORECASE)
"""A yes or no that has a meaning only with the next sentence."""


@dataclass(frozen=True)
class Claim:
    """A sentence to check. question: the customer's. before: words of the previous sentence, to which "it" or "the
    link" may refer.
    """

    text: str
    evidence: Evidence
    question: str = ""
    before: frozenset[str] = frozenset()

    @cached_property
    def lead(self) -> str:
        lead = YES_NO.match(self.text)
        return lead["word"].lower() if lead else ""

    @cached_property
    def said(self) -> Reading:
        return read(OPENING.sub("", YES_NO.sub("", self.text, count=1), count=1), self.evidence.language)

    @cached_property
    def weights(self) -> dict[str, float]:
        return self.evidence.weights(self.said.words | self.before)

    @cached_property
    def nearest(self) -> list[StatedUnit]:
        return self.evidence.nearest(self.said.words)

    @property
    def support(self) -> str | None:
        return self.nearest[0].said.text if self.nearest else None

    @property
    def coverage(self) -> float:
        """The share of its words that one place of the evidence contains, 0 to 1."""
        return max((unit.share(self.said.words, self.weights) for unit in self.nearest), default=0.0)


POLITE = content_words(
    "happy glad pleased welcome hello hi dear thanks thank sorry apologise apologize help assist assistance support "
    "question questions contact us let know feel further else anything hope best regards day nice moment hesitate "
    "reach inconvenience understand information following follows summary customer service team look"
)
FILLERS = content_words("of course sure great certainly absolutely unfortunately free")
INTERJECTION = re.compile(r"\W*(?:of course|sure|great|certainly|absolutely)\W*", re.IGNORECASE)
STATES = re.compile(r"\b(?:possible|available|allowed|permitted|(?<!feel )free)\b", re.IGNORECASE)


def is_courtesy(claim: Claim) -> bool:
    """Return whether a sentence is only politeness. "Of course you can." is not, and neither is "Support is free."."""
    said = claim.said.text
    words = content_words(said)
    if not words <= POLITE | FILLERS or claim.said.facts or STATES.search(said):
        return False
    return bool(words & POLITE) or said.rstrip().endswith((":", "?")) or bool(INTERJECTION.fullmatch(claim.text))


CHANGED, OTHER_FACT, OTHER_UNIT, NAME = 0.03, 0.1, 0.3, 0.3
"""How much better the words around a fact may fit a statement with another fact, as a share of their weight; less if
the sentence rewords that statement; more for another unit (days, working days), or a statement without a name.
"""
NOWHERE = 0.6  # the same if the passages do not state the fact and the sentence only implies it ("a year")
REWORDED = 0.85  # share of the other words from which on a sentence is a statement with a changed fact or name
FAR, BEFORE = 0.5, 0.25  # weight of words in other clauses and in the previous sentence
FEW = 2  # at most this many words do not identify what a fact belongs to
KIND_NAMES = {"code": "name", "weekday": "day"}


def fact_problem(claim: Claim) -> str | None:
    different = {fact.key: fact for fact in claim.said.facts}.values()
    return next((found for fact in different if (found := problem_of(fact, claim))), None)


def problem_of(fact: Fact, claim: Claim) -> str | None:
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
    """Return facts of the same kind that fit the words around it clearly better, or well if it is in no passage."""
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
    clauses = [clause for clause in unit.said.clauses if fact.key in clause.words]
    return max((unit.weight(weights, weights, clause) for clause in clauses), default=0.0)


def name_problem(fact: Fact, kind: str, claim: Claim) -> str | None:
    """Return the problem with a name or a model number, or None. A heading may name it for all text below."""
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


ALIKE = 0.6  # share of a clause's words from which on a clause of a passage has the same topic
AS_NEAR = 0.05  # a clause with this much less of the words than the nearest clause counts as equally near
DENIED, NOT_DENIED = "the passages deny this", "the passages do not deny this"


def opposite_problem(claim: Claim) -> str | None:
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
    mine = (clause.words | clause.signals) - other.words - other.signals
    theirs = (other.words | other.signals) - claim.said.words - claim.said.signals
    turned = [(one, two) for one in mine for two in theirs if are_opposite(one, two)]
    if (clause.denies + other.denies + len(turned)) % 2 == 0:
        return None
    if turned:
        return f'the passages say the opposite of "{turned[0][0]}"'
    # the denial may be in another clause, here or there
    said = sum(one.denies for one in claim.said.clauses)
    there = sum(one.denies and 2 * len(one.words & claim.said.words) >= len(one.words) for one in unit.said.clauses)
    return NOT_DENIED if clause.denies and said > there else DENIED if other.denies and said < there else None


def alike(clause: Clause, claim: Claim) -> list[tuple[StatedUnit, Clause]]:
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
    return sum(word.startswith("#") for word in words)


ENOUGH_WORDS = 0.5  # share of a sentence's words that the passages must have in one place
UNKNOWN = 2  # this many words that are nowhere in the passages are an addition, such as "in any condition"
BARE = "a bare yes or no cannot be checked"
NOT_SAID = "the passages do not say this"


def support_problem(claim: Claim) -> str | None:
    if ALONE.fullmatch(claim.text):
        return BARE
    unknown = [word for word in claim.said.words - claim.evidence.known if not word.startswith("#")]
    return NOT_SAID if claim.coverage < ENOUGH_WORDS or len(unknown) >= UNKNOWN else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSentence:
    """A sentence of an answer. score: 0 to 1, the share of its words in the passages, at most 0.5 if there is a
    problem. problem: one short reason, or None. shown: the text that a reader may see: the sentence, a quotation
    instead, or "". support: the nearest statement of the passages, if any.
    """

    text: str
    score: float
    problem: str | None = None
    shown: str = ""
    support: str | None = None


def score(checked: Sequence[CheckedSentence]) -> float:
    """Return the score of the weakest sentence, because one wrong statement spoils an answer. 0 for an empty answer."""
    return min((sentence.score for sentence in checked), default=0.0)


ENOUGH_TO_QUOTE = 0.4  # share of the words of sentence and question that a quotation must contain
FIGURES = ("#number", "#time", "#date")
"""Prefixes of the kinds of facts that are wrong most often."""
AnswerCheck: TypeAlias = Callable[[Claim], str | None]
"""Takes a sentence with its evidence; returns the problem as a short reason for people, or None. `NOT_SAID` means that
the passages neither say nor deny it; every other reason is counted as a contradiction. Called from several threads.
"""
CHECKS: tuple[AnswerCheck, ...] = (fact_problem, support_problem, opposite_problem)
"""They run in this order until one finds a problem. Politeness and literal text of the passages are not checked."""


class AnswerChecker:
    """Checks one answer against its passages, one or more sentences at a time as they arrive."""

    def __init__(self, question: str, passages: Sequence[str], checks: Sequence[AnswerCheck] = CHECKS) -> None:
        """passages: each after its heading path."""
        self._question, self._evidence, self._checks = question, Evidence(passages), checks
        self._before: frozenset[str] = frozenset()

    def check(self, text: str) -> list[CheckedSentence]:
        """Check the next sentences of the answer. The earlier ones are known."""
        return [self._checked(sentence) for sentence in sentences_of(text)]

    def _checked(self, text: str) -> CheckedSentence:
        before, self._before = self._before, content_words(text)
        claim = Claim(text, self._evidence, self._question, before)
        if plain(text) in self._evidence.said:
            return CheckedSentence(text=text, score=1.0, shown=text, support=claim.support)
        if is_courtesy(claim):
            return CheckedSentence(text=text, score=1.0, shown=text)
        problem = next((found for check in self._checks if (found := check(claim))), None)
        score = min(claim.coverage, 0.5) if problem else claim.coverage
        shown = self._quotation(text) if problem else text
        return CheckedSentence(text=text, score=score, problem=problem, shown=shown, support=claim.support)

    def _quotation(self, text: str) -> str:
        """Return the statement most similar to a sentence and its question; "" if none is similar enough."""
        said = Claim(f"{text}\n{self._question}", self._evidence).said
        words = [word for word in said.words if not word.startswith(FIGURES)]  # a wrong fact must not choose it
        found = [unit for unit in self._evidence.nearest(words) if unit.is_statement]
        is_near = found and found[0].share(words, self._evidence.weights(words)) >= ENOUGH_TO_QUOTE
        return found[0].said.text if is_near else ""


def sentences_of(answer: str) -> Iterator[str]:
    """Return the sentences of an answer. "Yes." stays with the next sentence."""
    before = ""
    for text in sentences(answer):
        if ALONE.fullmatch(text) and not before:
            before = text + " "
        else:
            yield before + text
            before = ""
    if before:
        yield before.strip()
