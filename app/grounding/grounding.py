"""Check each sentence of an answer against the one statement that it cites.

A language model may mix up its input. So the facts and nearly all words of a sentence must be in its statement or the
headings above that, in the same places, and the sentence must not say the opposite. So a sentence about another thing
fails, and so does a sentence that mixes two statements. A sentence that fails is replaced by its statement.

A sentence cites its statement by number ("[2] You have 30 days."). Else it cites the statement with most of its words.
Opposites are found by a negation, or by a word and its opposite, and only between clauses about the same topic. Two
opposites cancel each other: "not closed" is "open". A text is read as clauses with words and facts. The same rules,
with short lists and without grammar, apply to answers and documents. Out of scope: conclusions by calculation or common
sense, paraphrases in completely different words, irony, negation by an ordinary verb ("we refuse to").
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

from app.grounding.facts import Fact, all_words, content_words, facts, stem, without
from retrieval.text.terms import language_of

_PAIRS = """
    above below, active inactive, add remove, after before, approve reject, atleast atmost, automatic manual,
    begin end finish, buy sell, cheap expensive, continue stop, correct incorrect wrong, decrease increase,
    different same, disable enable, early late, easy difficult hard, empty full, external internal, fail succeed,
    fast slow, find lose, first last, high low, higher lower, in out, inside outside, large small, larger smaller,
    less more, lock unlock, long short, longer shorter, lower raise, mandatory optional voluntary, maximum minimum,
    most least, new old, newer older, off on, offline online, optional require, overthan underthan, permanent temporary,
    personal share, private public, raise reduce, receive send, right left, safe dangerous, start stop end, strong weak,
    up down, upload download, valid expire, visible hide
"""
OPPOSITES = frozenset(
    frozenset((stem(first), stem(other)))
    for first, *others in (group.split() for group in _PAIRS.split(","))
    for other in others
)
SIGNALS = frozenset(word for pair in OPPOSITES for word in pair)
"""Words to compare, although search treats some of them as too common."""
PREFIX = re.compile(r"(?:un|in|im|ir|il|dis|non)(?=\w{4})")
_AMOUNT = r"(?= [$€£]?\w*\s?\d)"
BOUNDS = {
    "atleast": r"at least|not? (?:less|fewer|earlier) than|a minimum of",
    "atmost": r"at most|not? (?:more|later|longer) than|up to|a maximum of",
    "overthan": rf"(?:(?:more|longer|later|higher|greater) than|over|above|exceed(?:s|ing)?){_AMOUNT}",
    "underthan": rf"(?:(?:less|fewer|shorter|earlier|lower) than|under|below){_AMOUNT}",
}
"""Phrases for limits of an amount, each list after its normal form."""


def with_bounds(text: str) -> str:
    for word, forms in BOUNDS.items():
        text = re.sub(rf"\b(?:{forms})\b", word, text, flags=re.IGNORECASE)
    return text


def are_opposite(one: str, other: str) -> bool:
    """Return whether two stems are opposite: by the list, or because one is the other with "un" or a similar prefix."""
    return frozenset((one, other)) in OPPOSITES or other == PREFIX.sub("", one, 1) or one == PREFIX.sub("", other, 1)


MARKUP = re.compile(r"\*\*|__|`|^#{1,6}\s|\[\d{1,2}\]|^\s*(?:[-*•]|\d{1,3}[.)])\s+", re.MULTILINE)
"""Markdown, references to sources and list markers, which have no meaning."""
DENIAL = re.compile(
    r"\b(?:not|no|never|cannot|none|nor|neither|nobody|nothing|nowhere|without|unless|except|closed|denied"
    r"|exclud(?:ed?s?|ing)|forbid(?:s|den)?|prohibit(?:s|ed)?|refused?s?|reject(?:s|ed)?)\b"
    r"|n['’]t\b|(?:[不没未無无勿禁]|ません|ない)",
    re.IGNORECASE,
)
HARMLESS = re.compile(
    r"\b(?:not only|no matter|no doubt|no problem|no worries|or not|(?:do not|don['’]t) (?:worry|hesitate)|why not)\b",
    re.IGNORECASE,
)
"""Expressions that look like a negation, but are not."""
HEAD = re.compile(
    r"(?P<lists>(?:what|which|who|where|items|products|goods|things|you|we|never|not?|do(?:n['’]| no)t)\b"
    r"(?!.*\b(?:have|need) to\b))?"
    r"[^.;:]{1,90}?(?:(?P<row> –)|:)\s",
    re.IGNORECASE,
)
"""The text before a list, or in the first cell of a table row, belongs to all items after it. "You cannot return:"
negates all of them, "The light does not come on:" does not.
"""
BORDER = re.compile(
    r"[;!?()。！？；，、]|\.(?=\s|$)"
    r"|\b(?=(?:but|because|if|unless|although|though|while|when|until|which|where|whereas|except|including|without"
    r"|instead)\b)"
    r"|(?:,|\b(?:and|or|so))\s(?=(?:(?:and|so)\s)?(?:i|you|we|they|it|this|that|there|your|our|the|please|do|does|can|is"
    r"|are|has|have)\b)",
    re.IGNORECASE,
)
"""The end of a clause: punctuation, a conjunction, or a comma or "and" before a new clause."""


@dataclass(frozen=True, slots=True)
class Clause:
    """A part of a text. words: its topic words, with its facts as words. signals: words that have an opposite, even
    common ones. begins: its first word, in lower case.
    """

    words: frozenset[str]
    signals: frozenset[str]
    denies: bool
    begins: str


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A text with its clauses. words, signals: the union over its clauses."""

    facts: tuple[Fact, ...]
    clauses: tuple[Clause, ...]
    words: frozenset[str]
    signals: frozenset[str]


# the same passages come with every turn of a conversation
@lru_cache(maxsize=4096)
def read(text: str, language: str) -> Reading:
    body = with_bounds(MARKUP.sub("", text))
    found = tuple(facts(body, language))
    stated = [fact for fact in found if fact.kind != "name"]  # names are words already
    blank = HARMLESS.sub(lambda match: " " * len(match[0]), without(body, stated))
    head = HEAD.match(blank)
    spread = content_words(head[0]) if head and (head["lists"] or head["row"]) else frozenset()
    is_denied = bool(head and head["lists"] and DENIAL.search(head[0]))
    borders = sorted(
        {0, *(match.end() for match in BORDER.finditer(blank)), *([head.end()] if head else ()), len(body)}
    )
    clauses = tuple(
        Clause(
            words=content_words(blank[start:end]).union(
                spread, (fact.key for fact in stated if start <= fact.place < end)
            ),
            signals=SIGNALS.intersection(all_words(blank[start:end])),
            denies=bool(DENIAL.search(blank[start:end])) or is_denied,
            begins=blank[start:end].strip(" ,").partition(" ")[0].lower(),
        )
        for start, end in pairwise(borders)
        if body[start:end].strip(" .,:;")
    )
    words = frozenset(word for clause in clauses for word in clause.words)
    signals = frozenset(word for clause in clauses for word in clause.signals)
    return Reading(found, clauses, words, signals)


def plain(text: str) -> str:
    """Return a text without list marker, Markdown and final punctuation, with single spaces."""
    return " ".join(MARKUP.sub("", text).split()).rstrip(".!")


ECHO = (
    r"[,.]?\s(?:I|you|we|they|it|that|this|there)\s(?:can|could|may|must|do|does|did|is|are|was|were|will|wo|would|should)"
    r"(?:\s?not|n?['’]t)?"
)
"""Text that only repeats the yes or no before it: "Yes, you can."."""
YES_NO = re.compile(rf"^\s*(?P<word>yes|no|yep|nope)\s*(?:{ECHO}\s*(?:[.!]|$)|[,.!:;–—-]|$)\s*", re.IGNORECASE)
ALONE = re.compile(rf"\W*(?:yes|no|yep|nope)\b(?:{ECHO}\b)?\W*", re.IGNORECASE)
"""A yes or no that has a meaning only with the next sentence."""
CITED = re.compile(r"\s*\[(\d{1,2})\]")

ENOUGH = 0.6  # share of a sentence's words that its statement must have
NEW = 2  # this many words from neither statement nor question are an addition, for example "in any condition"
ALIKE = 0.5  # minimum share of a clause's words in a clause of the statement with the same topic
NOT_SAID = "the statement does not say this"
ONLY_ASKED = "the sentence only repeats the question"
DENIED, NOT_DENIED = "the statement denies this", "the statement does not deny this"


@dataclass(frozen=True)
class Source:
    """A statement to cite. headings: the headings above it, which name its topic."""

    text: str
    headings: str = ""

    @cached_property
    def said(self) -> Reading:
        return read(self.text, language_of(self.text))

    @cached_property
    def around(self) -> Reading:
        return read(self.headings, language_of(self.text))

    @cached_property
    def words(self) -> frozenset[str]:
        return self.said.words.union(self.around.words, all_words(f"{self.text}\n{self.headings}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSentence:
    """A sentence of an answer. source: index of the statement it cites, None if it cites none. score: 0 to 1, the share
    of its words in the statement, at most 0.5 if there is a problem. problem: one short reason, or None. shown: the
    text that a reader may see: the sentence, its statement, or "".
    """

    source: int | None
    score: float
    problem: str | None
    shown: str


def score(checked: Sequence[CheckedSentence]) -> float:
    """Return the score of the weakest sentence, because one wrong statement spoils an answer. 0 for an empty answer."""
    return min((sentence.score for sentence in checked), default=0.0)


class AnswerChecker:
    """Checks the sentences of one answer. sources: the statements it may cite, the first is number 1."""

    def __init__(self, question: str, sources: Sequence[Source]) -> None:
        self.sources = sources
        self._language = language_of("\n".join(source.text for source in sources))
        self._asked = read(question, self._language).words.union(all_words(question))

    def check(self, sentence: str) -> CheckedSentence:
        text = CITED.sub("", sentence).strip()
        said = read(YES_NO.sub("", text, count=1), self._language)
        source = self._cited(sentence, said)
        if source is None:
            return CheckedSentence(source=None, score=0.0, problem=NOT_SAID, shown="")
        cited = self.sources[source]
        if plain(text) == plain(cited.text):
            return CheckedSentence(source=source, score=1.0, problem=None, shown=text)
        share = len(said.words & cited.words) / (len(said.words) or 1)
        problem = self._problem(text, said, cited, share)
        shown, share = (cited.text, min(share, 0.5)) if problem else (text, share)
        return CheckedSentence(source=source, score=share, problem=problem, shown=shown)

    def _cited(self, sentence: str, said: Reading) -> int | None:
        numbers = [int(number) - 1 for number in CITED.findall(sentence)]
        if named := [number for number in numbers if 0 <= number < len(self.sources)]:
            return named[0]
        shared = [said.words & source.words for source in self.sources]
        told = [(sum(word[0] != "#" for word in words), len(words)) for words in shared]  # facts may be wrong
        return told.index(max(told)) if any(shared) else None

    def _problem(self, text: str, said: Reading, cited: Source, share: float) -> str | None:
        new = [word for word in said.words - cited.words - self._asked if not word.startswith("#")]
        if share < ENOUGH or len(new) >= NEW or text.endswith(("?", "？")):
            return NOT_SAID
        if said.words <= self._asked:  # small models confirm what they are asked
            return ONLY_ASKED
        found = (fact_problem(fact, said, cited) for fact in said.facts)
        return next(filter(None, found), None) or opposite_problem(text, said, cited.said)


def fact_problem(fact: Fact, said: Reading, cited: Source) -> str | None:
    if fact.kind in ("name", "code"):
        is_there = (fact.value if fact.kind == "name" else fact.key) in cited.words or fact.text in cited.text
        return None if is_there else f'the name "{fact.text}" is not in the statement'
    rivals = [other for other in cited.said.facts if other.is_bound and other.measures == fact.measures]
    same = [other for other in (*cited.said.facts, *cited.around.facts) if _is_same(other, fact)]
    is_year = not fact.is_bound and fact.kind == "number" and not fact.unit
    if not same and (fact.is_bound or is_year or rivals):
        return f'the {fact.kind} "{fact.text}" is not in the statement'
    here = max((_fit(other, fact, said, cited.said) for other in same), default=0)
    for rival in rivals:
        if not _is_same(rival, fact) and rival.key not in said.words and _fit(rival, fact, said, cited.said) > here:
            return f'the statement says "{rival.text}" there, not "{fact.text}"'
    return None


def _is_same(one: Fact, other: Fact) -> bool:
    """Return whether two facts are equal, or equal numbers if one has no unit (it may be in a table's header)."""
    is_amount = one.as_written == other.as_written != "" and not (one.unit and other.unit)
    return one.key == other.key or is_amount


def _fit(place: Fact, fact: Fact, said: Reading, statement: Reading) -> int:
    """Return how many words of a fact's clauses are also in a clause of the statement with the fact `place`."""
    near = frozenset[str]().union(*(clause.words for clause in said.clauses if fact.key in clause.words)) - {fact.key}
    return max((len(near & clause.words) for clause in statement.clauses if place.key in clause.words), default=0)


def opposite_problem(text: str, said: Reading, statement: Reading) -> str | None:
    lead = YES_NO.match(text)
    if lead and lead["word"].lower() in ("yes", "yep") and said.clauses and all(one.denies for one in said.clauses):
        return 'the statement denies what "yes" confirms'
    for clause in said.clauses:
        if clause.begins == "until":  # "until it is packed" means "as long as it is not packed"
            continue
        found = [_difference(clause, other, said, statement) for other in _nearest(clause, statement)]
        if found and all(found):
            return found[0]
    return None


def _nearest(clause: Clause, statement: Reading) -> list[Clause]:
    shared = [len(clause.words & other.words) for other in statement.clauses]
    most = max(shared, default=0)
    if most < ALIKE * len(clause.words) or not most:
        return []
    return [other for other, count in zip(statement.clauses, shared, strict=True) if count == most]


def _difference(clause: Clause, other: Clause, said: Reading, statement: Reading) -> str | None:
    mine = (clause.words | clause.signals) - other.words - other.signals
    theirs = (other.words | other.signals) - said.words - said.signals
    turned = [(one, two) for one in mine for two in theirs if are_opposite(one, two)]
    if (clause.denies + other.denies + len(turned)) % 2 == 0:
        return None
    if turned:
        return f'the statement says the opposite of "{turned[0][0]}"'
    # the denial may be in another clause of the sentence or the statement
    denied = sum(one.denies for one in said.clauses)
    there = sum(one.denies and 2 * len(one.words & said.words) >= len(one.words) for one in statement.clauses)
    return NOT_DENIED if clause.denies and denied > there else DENIED if other.denies and denied < there else None
