"""Splits a text into sentences and statements, for quotations and checks in a document's own words.

Sentences end where sentencex says so for the language, with its abbreviations. A list item or a table row is a
sentence, however it ends. A statement is one sentence, or several if one cannot be understood without the one before
it (English only).
"""

import re
from collections.abc import Iterable, Iterator

from sentencex import segment

from retrieval.text.language import language_of
from retrieval.text.terms import CHINESE_JAPANESE

# Full stops that end no sentence, which sentencex does not know, and what must follow them.
NO_ENDS = (
    (re.compile(r"\b(?:approx|aprox|ca|env|excl|incl|inkl|max|min|pp?)\.\s*$"), re.compile(r"\d")),
    (re.compile(r"\b[ap]\.m\.\s*$"), re.compile("Mon|Tue|Wed|Thu|Fri|Sat|Sun")),
    (re.compile(r"\bM\.\s*$"), re.compile(r"[^\W\d_]")),  # Monsieur
)
CLOSES = re.compile(r"[*_\"'”’)\]]+\s+")  # belongs to the sentence before
BEGINS = re.compile(r"[^\w\s.,:;!?|，、；：。！？]*([^\W_])")  # quotation marks, brackets, and the first letter
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


def sentences(text: str, language: str | None = None) -> list[str]:
    """Sentences in their order, without list markers; spaces are single, line breaks inside a sentence are spaces.
    language: of the text, for its abbreviations; told by the text itself if not given.
    """
    return [sentence for _, sentence in parted(text, language)]


def parted(text: str, language: str | None = None) -> Iterator[tuple[str, str]]:
    """Sentences, each with what separates it from the one before: a space, or line breaks and a list marker."""
    language = language or language_of(text)
    gap = ""
    for number, line in enumerate(joined_lines(text)):
        marker = MARKER.match(line)
        start = marker.end() if marker else 0
        gap += "\n" * (number > 0) + line[:start]
        for sentence in filter(None, map(str.strip, _split(line[start:], language))):
            yield gap or " ", sentence
            gap = ""


def statements(text: str) -> Iterator[str]:
    """The parts of a passage that can be an answer: sentences, each with the following ones that depend on it, list
    items, table rows, and lists of fragments with the line before them. No questions, headings or parts without a word.
    """
    lead, listed, language = "", "", language_of(text)
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
        said = sentences(line, language)
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


def complete(text: str, language: str | None = None) -> tuple[list[tuple[str, str]], str]:
    """The sentences of a growing text that have ended, as by `parted`, and the rest."""
    language = language or language_of(text)
    line = text.rfind("\n") + 1
    marker = MARKER.match(text, line)
    *before, growing = _split(text[marker.end() if marker else line :], language) or [""]
    ended = text[: len(text) - len(growing) if before else line].rstrip()
    return list(parted(ended, language)), text[len(ended) :]


def _split(line: str, language: str) -> list[str]:
    """The sentences of one line with the spaces behind them. None begins with a small letter or a mark."""
    found = [""]
    for part in segment(language, line):
        closed = CLOSES.match(part)
        before, rest = found[-1], part[closed.end() :] if closed else part
        begins = BEGINS.match(rest)
        if not begins or begins[1].islower() or any(end.search(before) and next_.match(rest) for end, next_ in NO_ENDS):
            found[-1] += part
        else:
            found[-1] += part[: len(part) - len(rest)]
            found.append(rest)
    return list(filter(None, found))


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
