"""A sentence of an answer with what the evidence says nearest to it.

Sentences of an answer that state nothing and need no support: politeness and bare introductions.

What is wrong with the facts of a sentence: they are not in the passages, or they belong to something else there.

A fact stands in the right place if the words around it in the sentence fit the statement that it is taken from no worse
than a statement of another fact of its kind.

Whether a clause says the opposite of the statement it is nearest to: by a denial, or by a word and its opposite.

Compared are only clauses about the same, so that a paraphrase is not taken for a contradiction. Two opposites cancel
out: "not closed" is "open".

Whether the passages speak of what a sentence says at all. Not covered: whether they say the opposite.

What checking an answer gives: each sentence with its score, its problem and the passage's own statement.

Whether each sentence of an answer is what the passages say: its facts, its words, and not the opposite.

A language model may mix up what it was given. Here every sentence is held against the statements of the passages.
`CHECKS` is the one list of what is checked; answers that are shown and answers that are measured both pass an
`AnswerChecker`, so what is measured is what readers get. Not covered: what follows from several passages by
calculation or common sense, and paraphrase with other words throughout.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from app.grounding.evidence import Clause, Evidence, Reading, StatedUnit, plain, read
from app.grounding.facts import Fact, content_words
from app.grounding.opposites import are_opposite
from retrieval.text.sentences import sentences

OPENING = re.compile(r"(?:please\s)?(?:note|be aware|keep in mind|remember)\s(?:also\s)?that\s", re.IGNORECASE)
ECHO = (
    r"[,.]?\s(?:I|you|we|they|it|that|this|there)\s(?:can|could|may|must|do|does|did|is|are|was|were|will|wo|would|should)"
    r"(?:\s?not|n?['’]t)?"
)
"""What says no more than the yes or no before it: "Yes, you can."."""
YES_NO = re.compile(rf"^\s*(?P<word>yes|no|yep|nope)\s*(?:{ECHO}\s*(?:[.!]|$)|[,.!:;–—-]|$)\s*", re.IGNORECASE)
ALONE = re.compile(rf"\W*(?:yes|no|yep|nope)\b(?:{ECHO}\b)?\W*", re.IGNORECASE)
"""A yes or no that means something only with the next sentence."""


@dataclass(frozen=True)
class Claim:
    """A sentence to check. question: what the answer answers. before: words of the sentence before, which "it" or "the
    link" may speak of.
    """

    text: str
    evidence: Evidence
    question: str = ""
    before: frozenset[str] = frozenset()

    @cached_property
    def lead(self) -> str:
        """The yes or no that it begins with, in small letters."""
        lead = YES_NO.match(self.text)
        return lead["word"].lower() if lead else ""

    @cached_property
    def said(self) -> Reading:
        """What it says behind a yes or no and words that open it."""
        return read(OPENING.sub("", YES_NO.sub("", self.text, count=1), count=1), self.evidence.language)

    @cached_property
    def weights(self) -> dict[str, float]:
        """How much each word of it, and of the sentence before, counts."""
        return self.evidence.weights(self.said.words | self.before)

    @cached_property
    def nearest(self) -> list[StatedUnit]:
        """What shares most with it, best first."""
        return self.evidence.nearest(self.said.words)

    @property
    def support(self) -> str | None:
        """What shares most with it, as text."""
        return self.nearest[0].said.text if self.nearest else None

    @property
    def coverage(self) -> float:
        """0 to 1: the share of its words that the evidence holds in one place."""
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
    """Whether a sentence is politeness alone. "Of course you can." is none, and neither is "Support is free."."""
    said = claim.said.text
    words = content_words(said)
    if not words <= POLITE | FILLERS or claim.said.facts or STATES.search(said):
        return False
    return bool(words & POLITE) or said.rstrip().endswith((":", "?")) or bool(INTERJECTION.fullmatch(claim.text))


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


ENOUGH_WORDS = 0.5
"""Share of a sentence's words that the passages must hold in one place."""
UNKNOWN = 2
"""So many words that stand nowhere in the passages are an addition, such as "in any condition"."""
BARE = "a bare yes or no cannot be checked"
NOT_SAID = "the passages do not say this"


def support_problem(claim: Claim) -> str | None:
    """Whether a sentence says only yes or no, or too few of its words stand in the passages."""
    if ALONE.fullmatch(claim.text):
        return BARE
    unknown = [word for word in claim.said.words - claim.evidence.known if not word.startswith("#")]
    return NOT_SAID if claim.coverage < ENOUGH_WORDS or len(unknown) >= UNKNOWN else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSentence:
    """A sentence of an answer. score: 0 to 1, the share of its words that the passages hold, at most 0.5 if there is a
    problem. problem: one short reason, or None. shown: what a reader may be told: the sentence, a quotation in its
    place, or "". support: the nearest statement of the passages, if any.
    """

    text: str
    score: float
    problem: str | None = None
    shown: str = ""
    support: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounding:
    """An answer's sentences, checked."""

    sentences: tuple[CheckedSentence, ...]

    @property
    def score(self) -> float:
        """That of the weakest sentence: one wrong statement spoils an answer. 0 for an empty answer."""
        return min((sentence.score for sentence in self.sentences), default=0.0)

    @property
    def is_supported(self) -> bool:
        """Whether there is something and nothing in it lacks support."""
        return bool(self.sentences) and all(sentence.problem is None for sentence in self.sentences)


ENOUGH_TO_QUOTE = 0.4
"""Share of the words of sentence and question that a quotation in place of the sentence must hold."""
FIGURES = ("#number", "#time", "#date")
"""How the facts begin, as words, that are wrong most often."""
AnswerCheck: TypeAlias = Callable[[Claim], str | None]
"""One check of answers: takes a sentence with its evidence, returns what is wrong with it, or None.

To add one, write a file with such a function and name it in `CHECKS`. Returns a short reason for people, such as 'the
number "45 days" is not in the passages'. `NOT_SAID` means that the passages neither say nor deny it; every other reason
is measured as a contradiction.

The checks are asked in the order of `CHECKS` until one finds a problem. They are not asked about sentences that
stand in the passages word for word, nor about politeness. They may be called from several threads at once and must
not change what they are given.
"""
CHECKS: tuple[AnswerCheck, ...] = (
    fact_problem,
    support_problem,
    opposite_problem,
)
"""Everything that is checked, in this order."""


class AnswerChecker:
    """Checks one answer against the passages it was made from, a sentence or more at a time as they are said."""

    def __init__(self, question: str, passages: Sequence[str], checks: Sequence[AnswerCheck] = CHECKS) -> None:
        """passages: each below its heading path."""
        self._question, self._evidence, self._checks = question, Evidence(passages), checks
        self._before: frozenset[str] = frozenset()

    def check(self, text: str) -> Grounding:
        """Check the next sentences of the answer. What was said before them is known."""
        return Grounding(sentences=tuple(self._checked(sentence) for sentence in sentences_of(text)))

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
        """The statement that shares most with a sentence and its question; "" if none shares enough."""
        said = Claim(f"{text}\n{self._question}", self._evidence).said
        words = [word for word in said.words if not word.startswith(FIGURES)]  # a wrong one must not choose it
        found = [unit for unit in self._evidence.nearest(words) if unit.is_statement]
        is_near = found and found[0].share(words, self._evidence.weights(words)) >= ENOUGH_TO_QUOTE
        return found[0].said.text if is_near else ""


def sentences_of(answer: str) -> Iterator[str]:
    """Sentences of an answer; "Yes." stays with the sentence it belongs to."""
    before = ""
    for text in sentences(answer):
        if ALONE.fullmatch(text) and not before:
            before = text + " "
        else:
            yield before + text
            before = ""
    if before:
        yield before.strip()
