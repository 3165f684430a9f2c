"""The lines of a passage's text, with what each of them is and where it stands.

Lists and tables come as the loaders write them (see `retrieval.documents.document.Block`). Headings carry no mark in
the text of a passage: a short line without an end is one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from retrieval.text.language import language_of
from retrieval.text.sentences import ENDED, goes_on

LineKind: TypeAlias = Literal["text", "heading", "item", "row"]

_MARKED = re.compile(r"( *)([-*•·–]|\d{1,3}[.)])[ \t]+(?=\S)")
_NAMED = r"[^\s:;][^:;]{0,59}: "  # the name of a column
_ROW = re.compile(rf"(?:[^;:]*; )?{_NAMED}[^;]*; {_NAMED}")  # two named cells, perhaps behind one without a name
_LONGEST_HEADING = 80  # characters
_SENTENCES = re.compile(r"[.!?。！？](?:\s+|(?<=[。！？]))(?=\S)")  # more than one
_WIDEST = 120  # characters of a line in a text that is wrapped; in others, a line ends where its author ended it
_CODE = re.compile(r"[{}<>=$\\|]|^[#/@.]|\(\)|;$|^\w+ --?\w")
_CONTENT = re.compile(r"[^\W_]")
_FULL_STOP = re.compile(r"[,;，；、]$")


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line without its list marker; wrapped lines are one. start, end: its characters in the passage's text, which
    are as many as those of `text`. language: of the passage. marker: "-", "3.", or "". level: of the list, from 0.
    """

    text: str
    start: int
    end: int
    kind: LineKind
    language: str
    marker: str = ""
    level: int = 0

    @property
    def number(self) -> int | None:
        """The number of an item in a numbered list."""
        return int(self.marker[:-1]) if self.marker[:-1].isdigit() else None


def lines_of(text: str) -> list[TextLine]:
    """The lines that hold letters or digits, in their order."""
    spans = _spans(text)
    rows = _in_tables([text[start:end] for start, end in spans])
    language = language_of(text)
    lines = [_line(text, start, end, is_row, language) for (start, end), is_row in zip(spans, rows, strict=True)]
    for n in range(len(lines) - 1):
        if _names_what_follows(text, lines[n], lines[n + 1]):
            lines[n] = replace(lines[n], kind="heading")
    return lines


def _spans(text: str) -> list[tuple[int, int]]:
    """First and last character of every line; a wrapped line goes on in the next."""
    spans: list[tuple[int, int]] = []
    at, is_open = 0, False
    is_wrapped = max(map(len, text.split("\n"))) <= _WIDEST
    for raw in text.splitlines(keepends=True):
        line = raw.strip()
        if _CONTENT.search(line):
            start = at + len(raw) - len(raw.lstrip())
            indent = start - at
            may_go_on = is_open and (is_wrapped or line[0].islower()) and not _MARKED.match(raw)
            if may_go_on and goes_on(text[spans[-1][0] : spans[-1][1]], line):
                spans[-1] = spans[-1][0], start + len(line)
            else:
                spans.append((start - indent, start + len(line)))
        is_open = _CONTENT.search(line) is not None
        at += len(raw)
    return spans


def _in_tables(lines: Sequence[str]) -> list[bool]:
    """Which lines are rows: those with two named cells, and their neighbours that are written alike."""
    rows = [_ROW.match(line) is not None and not _MARKED.match(line) for line in lines]
    names = {line.split(": ", 1)[0] for line, is_row in zip(lines, rows, strict=True) if is_row}
    rows = [is_row or line.split(": ", 1)[0] in names for line, is_row in zip(lines, rows, strict=True)]
    bare = [line.count("; ") if not (_MARKED.match(line) or ENDED.search(line)) else 0 for line in lines]
    return [
        is_row or (bare[n] > 0 and bare[n] in (*bare[max(0, n - 1) : n], *bare[n + 1 : n + 2]))
        for n, is_row in enumerate(rows)
    ]


def _line(text: str, start: int, end: int, is_row: bool, language: str) -> TextLine:
    marked = _MARKED.match(text, start, end)
    first = marked.end() if marked else start + len(text[start:end]) - len(text[start:end].lstrip())
    content = text[first:end].replace("\n", " ").replace("\t", " ")
    if marked:
        return TextLine(content, first, end, "item", language, marked[2], len(marked[1]) // 2)
    kind: LineKind = "row" if is_row else "heading" if _is_heading(content) else "text"
    return TextLine(content, first, end, kind, language)


def _is_heading(line: str) -> bool:
    if line.endswith(("?", "？")) and not _SENTENCES.search(line):
        return True
    if len(line) > _LONGEST_HEADING or _CODE.search(line) or _FULL_STOP.search(line) or ": " in line:
        return False
    return not (ENDED.search(line) or line.endswith(("?", "？", ":", "：")))


def _names_what_follows(text: str, line: TextLine, following: TextLine) -> bool:
    """Whether a line with a colon inside ("Once a month: the heating element") is a heading: it is directly followed by
    another kind of line.
    """
    is_like_heading = line.kind == "text" and ": " in line.text and _is_heading(line.text.replace(": ", " ", 1))
    if not is_like_heading or text.count("\n", line.end, following.start) != 1:
        return False
    return following.kind == "item" or (following.kind == "text" and ENDED.search(following.text) is not None)
