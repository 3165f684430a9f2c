"""The sentences of a line, each with the following ones that cannot be understood without it."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from retrieval.statements.references import without_references
from retrieval.statements.statement import num_words
from retrieval.text.sentences import ASKS, LETTER, sentences
from retrieval.text.terms import CHINESE_JAPANESE

TOGETHER = 60
"""Most words of sentences that are kept together."""

_DEPENDS = re.compile(
    r"(?:They|These|Those|Then|Otherwise|Its|Their|Both|Instead|In (?:that|this) case|But|And|So|For example|Or"
    r"|It(?! (?:is|was|may|can) (?:\w+ ){1,2}(?:to|that)\b)|(?:This|That|Such)(?! (?:page|article|guide|section)\b)"
    r"|(?:After|Before) that|Until then|Without (?:it|them)|If (?:it|they|not|so|this|that|you do)\b"
    r"|If you [^,]*, (?:it|they)"
    r"|Dies(?:e[rsnm]?)?|Dann|Danach|Dadurch|Dafür|Dabei|Deshalb|Sonst|Andernfalls|Aber|Und|Beide|In diesem Fall)\b"
    r"|[这该此其它]|否则|但是?|因此|所以|届时|之后"
)
_POINTS_BACK = re.compile(  # refers to the sentence before: "for that time"
    r"\b(?:after|as|at|before|by|during|for|from|in|of|on|to|until|with|within) (?:that|those) "
    r"(?!(?:are|cannot|from|in|is|it|not|of|that|the|they|we|which|who|with|you)\b)[a-z]+"
)
_CONDITION = re.compile(  # "Away for more than a month? Charge it to two lights."
    r"(?!(?:how|what(?! if)|which|who|where|why|when|wie|was|welche[rsnm]?|wer|wo|warum|wann)\b)"
    r"[^:]*[?？][\"'”’)」』]*",
    re.IGNORECASE,
)
_SHORT = 15  # words of a question that sets a condition for the next sentence
_UNSPACED = re.compile(f"[{CHINESE_JAPANESE}]")
_INNER_END = re.compile(r"[.!?…][^\w\s]*\s+\S|[。！？][^\w]*\w")
_BARE = re.compile(r"(?:Yes|No|Ja|Nein|Sure|Of course|是的?|不是?|可以|不可以|不能|没有)\W*")


class Group(NamedTuple):
    """Sentences that are told together, and the characters of the line that they stand for."""

    text: str
    start: int
    end: int


def located(text: str, language: str) -> Iterator[tuple[str, int, int]]:
    """The sentences of a line with the characters they stand for."""
    if not _INNER_END.search(text):  # as most items and cells
        yield text.strip(), 0, len(text)
        return
    at = 0
    for sentence in sentences(text, language):
        start, length = text.find(sentence, at), len(sentence)
        if start < 0:  # spaces differ
            found = re.compile(r"\s+".join(map(re.escape, sentence.split()))).search(text, at)
            start, length = (found.start(), len(found[0])) if found else (at, 0)
        at = start + length
        yield sentence, start, at


def grouped(text: str, language: str) -> Iterator[Group]:
    """What a line says in parts that can be understood alone. Cross references are left out, and questions that set no
    condition for the sentence behind them.
    """
    group, condition = Group("", 0, 0), Group("", 0, 0)
    for sentence, start, end in located(text, language):
        if ASKS.search(sentence):
            sets_condition = _CONDITION.fullmatch(sentence) and num_words(sentence) <= _SHORT
            condition = Group(sentence if sets_condition else "", start, end)
            continue
        said = without_references(sentence) if LETTER.search(sentence) else ""
        if not said:
            continue
        following = Group(said, start, end)
        if condition.text:
            following, condition = _joined(condition, following), Group("", 0, 0)
        if group.text and _depends(following.text, group.text):
            group = _joined(group, following)
            continue
        if group.text:
            yield group
        group = following
    if group.text and not _BARE.fullmatch(group.text):
        yield group


def needs_before(sentence: str) -> bool:
    """Whether a sentence speaks of what the one before it said."""
    return bool(_DEPENDS.match(sentence) or _POINTS_BACK.search(sentence))


def _depends(sentence: str, before: str) -> bool:
    """Whether a sentence cannot be understood without the one before it, or that one not without it."""
    depends = needs_before(sentence) or _BARE.fullmatch(before)
    is_rest = " " not in sentence and not _UNSPACED.search(sentence)
    return bool(depends or is_rest) and num_words(before) + num_words(sentence) <= TOGETHER


def _joined(first: Group, second: Group) -> Group:
    space = "" if first.text.endswith(("。", "！", "？")) else " "
    return Group(first.text + space + second.text, first.start, second.end)
