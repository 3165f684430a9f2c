"""Splits a text into sentences and statements, for quotations and checks in a document's own words.

By rules for Western, Chinese and Japanese punctuation. A list item or a table row is a sentence, however it ends. A
statement is one sentence, or several if one cannot be understood without the one before it (English only).
"""

import re
from collections.abc import Iterable, Iterator

from retrieval.text.terms import CHINESE_JAPANESE

ABBREVIATIONS = r"[A-Z] Mr Ms Mrs Dr St No vs e\.g i\.e incl excl"
BEFORE_NUMBERS = "max min ca approx Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec"
NO_END = (  # a full stop here ends no sentence
    "".join(rf"(?<!\b{word}\.)" for word in ABBREVIATIONS.split())
    + "".join(rf"(?<!\b{word}\.(?=\s\d))" for word in BEFORE_NUMBERS.split())
    + r"(?<!\b[ap]\.m\.(?=\s(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)))"
)
UPPER = "A-ZÀ-ÖØ-ÞΆ-ΏΑ-ΫЀ-Я"  # Latin, Greek and Cyrillic
ENDS = re.compile(
    rf"(?<=[.!?])(?m:(?<!^\d\.)(?<!^\d\d\.)){NO_END}"
    rf"[\"'”’)]*\s+(?=[\"'“‘(]?[0-9{UPPER}])"
    r"|(?<=[。！？])[」』”]*"
)
CONTINUES = re.compile(r"[a-zß-öø-ÿ]")  # a line that begins so continues the sentence of the line before
MARKER = re.compile(r"(?:[-*•]|\d+[.)]) ")
STANDS_ALONE = re.compile(MARKER.pattern + r"|\w[^.!?]*: ")  # a list item or a table row
ROW = re.compile(r"\w[^.!?;]*: [^;]*; \w[^.!?;]*: ")  # of a table of two columns or more, as the loaders write it
WRAPPED = 55  # a line of so many characters without an end was wrapped
SHORT = 60  # a line of at most so many characters without an end is a heading
ENDED = re.compile(r"[.!。！…][\"'”’)」』]*$")
ASKS = re.compile(r"[?？:：][\"'”’)」』]*$")  # questions, and lines that introduce a list
LETTER = re.compile(r"[^\W\d_]")
DEPENDS = re.compile(  # beginnings of sentences that cannot be understood without the one before
    r"(?:It|They|This|That|These|Those|Then|Otherwise|Its|Their|Both|Instead|There|In that case|But|And|So|For example"
    r"|(?:After|Before) that|Until then|If (?:it|they|not|so|this|that)|If you [^,]*, (?:it|they))\b"
)
POINTS_BACK = re.compile(  # refers to the sentence before: "for that time"
    r"\b(?:after|as|at|before|by|during|for|from|in|of|on|to|until|with|within) (?:that|those) "
    r"(?!(?:are|cannot|from|in|is|it|not|of|that|the|they|we|which|who|with|you)\b)[a-z]+"
)
TOGETHER = 60  # most words of a statement; a Chinese or Japanese character counts as a word
COUNTED = re.compile(rf"[{CHINESE_JAPANESE}]|[^\W{CHINESE_JAPANESE}]+")
UNSPACED = re.compile(f"[{CHINESE_JAPANESE}]")  # no spaces between items, and a full stop of its own
PARTED = re.compile(r"[,;:.，；：、。]$")  # no comma is needed after such an item
DENIES = re.compile(  # a line before a list that negates its items
    r"\b(?:never|not|no|nor|without|except|unless|avoid|cannot)\b|n't\b|[不没无未勿别禁]", re.IGNORECASE
)


def sentences(text: str) -> list[str]:
    """Sentences in their order, without list markers; spaces are single, line breaks inside a sentence are spaces."""
    return [sentence for _, sentence in parted(text)]


def parted(text: str) -> Iterator[tuple[str, str]]:
    """Sentences, each with what separates it from the one before: a space, or line breaks and a list marker."""
    gap = ""
    for number, line in enumerate(joined_lines(text)):
        marker = MARKER.match(line)
        start = marker.end() if marker else 0
        gap += "\n" * (number > 0) + line[:start]
        for end in (*(end.end() for end in ENDS.finditer(line, start)), len(line)):
            if sentence := line[start:end].strip():
                yield gap or " ", sentence
                gap = ""
            start = end


def statements(text: str) -> Iterator[str]:
    """The parts of a passage that can be an answer: sentences, each with the following ones that depend on it, list
    items, table rows, and lists of fragments with the line before them. No questions, headings or parts without a word.
    """
    lead, listed = "", ""
    for line in filter(None, joined_lines(text)):
        marker = MARKER.match(line)
        item = line[marker.end() :] if marker else ""
        if item and lead and _needs(lead, listed, item):
            if listed and _is_long(_with_item(listed, item)):
                yield listed
                listed = ""
            listed = _with_item(listed or lead, item)
            continue
        if listed:
            yield listed
        said = sentences(line)
        listed = ""
        if line.endswith((":", "：")):
            lead = said[-1]
        elif not item:
            lead = ""
        is_heading = len(line) <= SHORT and not ENDED.search(line) and not STANDS_ALONE.match(line)
        if (item or ROW.match(line)) and not _is_long(line) and not any(map(ASKS.search, said)):
            if LETTER.search(line):
                yield item or line
        elif not is_heading:
            yield from _statements_of(said)
    if listed:
        yield listed


def as_said(statement: str) -> str:
    """A statement as it is quoted: with a full stop, also if it is a list item or a table row."""
    if ENDED.search(statement):
        return statement
    open_end = statement.rstrip(",;:，；：、")
    return open_end + ("。" if UNSPACED.search(open_end[-1:]) else ".")


def _needs(lead: str, listed: str, item: str) -> bool:
    """Whether a list item cannot be understood without the line before the list."""
    is_fragment = CONTINUES.match(item) or not ENDED.search(item) or listed.endswith((",", ";", "，", "；", "、"))
    return bool(is_fragment or DENIES.search(lead)) and not ASKS.search(item)


def _with_item(listed: str, item: str) -> str:
    comma, space = ("、", "") if UNSPACED.match(item) else (",", " ")
    return listed + ("" if PARTED.search(listed) else comma) + space + item


def _is_long(text: str) -> bool:
    return len(COUNTED.findall(text)) > TOGETHER


def _statements_of(said: Iterable[str]) -> Iterator[str]:
    """The sentences of one line, each with the following ones that depend on it."""
    statement = ""
    for sentence in said:
        together = f"{statement} {sentence}"
        depends = DEPENDS.match(sentence) or POINTS_BACK.search(sentence)
        if statement and depends and not ASKS.search(sentence) and not _is_long(together):
            statement = together
            continue
        if statement:
            yield statement
        statement = sentence if LETTER.search(sentence) and not ASKS.search(sentence) else ""
    if statement:
        yield statement


def complete(text: str) -> tuple[list[tuple[str, str]], str]:
    """The sentences of a growing text that have ended, as by `parted`, and the rest."""
    end = max((0, text.rfind("\n"), *(end.end() for end in ENDS.finditer(text))))
    ended = text[:end].rstrip()
    return list(parted(ended)), text[len(ended) :]


def joined_lines(text: str) -> list[str]:
    """The lines of a text; wrapped lines are joined."""
    lines: list[str] = []
    for line in (" ".join(line.split()) for line in text.splitlines()):
        if lines and lines[-1] and line and goes_on(lines[-1], line):
            lines[-1] += " " + line
        else:
            lines.append(line)
    return lines


def goes_on(line: str, following: str) -> bool:
    """Whether a sentence continues in the next line."""
    if CONTINUES.match(following):
        return True
    is_open = len(line) >= WRAPPED and line[-1] not in '.!?:;。！？"”'
    return is_open and not STANDS_ALONE.match(line) and not STANDS_ALONE.match(following)
