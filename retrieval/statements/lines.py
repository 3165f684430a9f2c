"""The lines of a passage's text, and the statements of its lists.

Lists and tables are written as loaders write them (see `retrieval.documents.Block`). Headings have no mark in
the text of a passage, so a short line without a sentence end is a heading.

The statements of a list are single items, runs of short items, and procedures, each with the line that governs the
list.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from retrieval.statements.grouping import (
    Group,
    Statement,
    announces_steps,
    denies,
    grouped,
    is_fragment,
    is_needed,
    located,
    num_words,
    turns_sentences,
    under,
)
from retrieval.text.sentences import ASKS, ENDED, UNSPACED, as_said, goes_on
from retrieval.text.terms import language_of

LineKind: TypeAlias = Literal["text", "heading", "item", "row"]

_MARKED = re.compile(r"( *)([-*•·–]|\d{1,3}[.)])[ \t]+(?=\S)")
_NAMED = r"[^\s:;][^:;]{0,59}: "  # a column's name
_ROW = re.compile(rf"(?:[^;:]*; )?{_NAMED}[^;]*; {_NAMED}")  # two named cells, perhaps after an unnamed one
_LONGEST_HEADING = 80  # characters
_SENTENCES = re.compile(r"[.!?。！？](?:\s+|(?<=[。！？]))(?=\S)")  # more than one
_WIDEST = 120  # maximum characters of a line in a wrapped text; in other texts the author ended the lines
_CODE = re.compile(r"[{}<>=$\\|]|^[#/@.]|\(\)|;$|^\w+ --?\w")
_CONTENT = re.compile(r"[^\W_]")
_FULL_STOP = re.compile(r"[,;，；、]$")


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line without its list marker. Wrapped lines are joined. start, end: character span in the passage's text, as
    long as `text`. language: the passage's. marker: "-", "3.", or "". level: the list's, from 0.
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
        return int(self.marker[:-1]) if self.marker[:-1].isdigit() else None


def lines_of(text: str) -> list[TextLine]:
    spans = _spans(text)
    rows = _in_tables([text[start:end] for start, end in spans])
    language = language_of(text)
    lines = [_line(text, start, end, is_row, language) for (start, end), is_row in zip(spans, rows, strict=True)]
    for n in range(len(lines) - 1):
        if _names_what_follows(text, lines[n], lines[n + 1]):
            lines[n] = replace(lines[n], kind="heading")
    return lines


def _spans(text: str) -> list[tuple[int, int]]:
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
    """Return which lines are rows: lines with two named cells, and neighbours with the same form."""
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
    is_like_heading = line.kind == "text" and ": " in line.text and _is_heading(line.text.replace(": ", " ", 1))
    if not is_like_heading or text.count("\n", line.end, following.start) != 1:
        return False
    return following.kind == "item" or (following.kind == "text" and ENDED.search(following.text) is not None)


LONGEST_LIST = 60  # maximum number of words of joined items, with their governing line

_LEAST = 4  # words of a step without a full stop
_SHORT = 15  # words of an item that is joined with its neighbours
_PLAIN = 4  # words of an item that is followed by a comma
_FULL = 6  # words of a sentence that is useful without the rest of its step
_FEW = 30  # words of the items below a step that are added to it
_QUESTION_LINK = re.compile(
    r"(?:how (?:to|do|does|can|long|much)|why (?:is|am|do|does|was|can)|what (?:is|are|if))\b"
    r"|(?:and )?(?:many )?more…?$",
    re.IGNORECASE,
)
_AND = re.compile(r"[,;，；、]?\s*\b(?:and|or|und|oder|and/or)$|[,;，；、。.]$")
_ENDED = re.compile(r"[.!。！]$")


@dataclass(slots=True)
class _Entry:
    line: TextLine
    groups: Sequence[Group]  # its text, without cross references
    said: str  # the groups as one text
    below: list["_Entry"] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.below[-1].end if self.below else self.line.end


def listed(lines: Sequence[TextLine], governing: str) -> Iterator[Statement]:
    """Yield the statements of one list, at all levels. governing: the line that introduces the list, with its colon, or
    the heading above; "" if there is none. The later sentences of a step are also separate statements.
    """
    items = _tree(lines)
    if _is_procedure(items, governing):
        yield from _procedure(items, governing)
    else:
        yield from _items(items, governing)


def _tree(lines: Sequence[TextLine]) -> list[_Entry]:
    roots: list[_Entry] = []
    path: list[_Entry] = []
    for line in lines:
        groups = list(grouped(line.text, line.language))
        item = _Entry(line, groups, _said(line.text, groups))
        while path and path[-1].line.level >= line.level:
            path.pop()
        (path[-1].below if path else roots).append(item)
        path.append(item)
    return roots


def _said(text: str, groups: Sequence[Group]) -> str:
    if not groups or (len(groups) == 1 and _QUESTION_LINK.match(text) and is_fragment(text)):
        return ""
    return ("" if UNSPACED.search(groups[0].text[-2:]) else " ").join(group.text for group in groups)


def _is_procedure(items: Sequence[_Entry], governing: str) -> bool:
    if len(items) < 2:
        return False
    names = sum(not _ENDED.search(item.line.text) and num_words(item.said) < _LEAST for item in items)
    if 2 * names > len(items) or any(item.line.text[:1].islower() for item in items):
        return False
    if items[0].line.number is not None:
        return not (
            denies(governing) and governing.endswith((":", "：")) and all(is_fragment(i.line.text) for i in items)
        )
    return announces_steps(governing)


def _procedure(items: Sequence[_Entry], governing: str) -> Iterator[Statement]:
    numbers = [item.line.number for item in items]
    if len(set(numbers)) == 1 and numbers[0] is not None:  # Markdown lets authors number every step 1
        numbers = list(range(1, len(items) + 1))
    introduction = governing.rstrip(":：.。 ")
    if introduction and not introduction.endswith(("?", "？")):
        introduction += "：" if UNSPACED.search(introduction[-1:]) else ":"
    steps = [_step(item, "-" if number is None else f"{number}.") for item, number in zip(items, numbers, strict=True)]
    text = "\n".join([*filter(None, [introduction]), *steps])
    yield Statement(as_said(text), items[0].line.start, items[-1].end, "procedure")
    turned = turns_sentences(governing)  # then nothing below it may be a statement alone
    for item in items:
        for said, start, end in item.groups[1:]:
            if num_words(said) >= _FULL and not turned:
                yield Statement(as_said(said), item.line.start + start, item.line.start + end, "item")
        if item.below and not _is_told_with_step(item):
            yield from _below(item, governing if turned else "")


def _step(item: _Entry, marker: str) -> str:
    lines = [f"{marker} {item.said or item.line.text}"]
    if _is_told_with_step(item):
        lines = [f"{marker} {item.line.text}", *(f"   - {below.said}" for below in item.below if below.said)]
    return "\n".join(lines)


def _is_told_with_step(item: _Entry) -> bool:
    short = sum(num_words(below.line.text) for below in item.below) <= _FEW and not any(b.below for b in item.below)
    return bool(item.below) and (short or ASKS.search(item.line.text) is not None)


def _items(items: Sequence[_Entry], governing: str) -> Iterator[Statement]:
    """Yield runs of short items together and other items alone, each followed by the items below it."""
    run: list[_Entry] = []
    for item in items:
        fits = num_words(governing) + sum(num_words(i.said) for i in run) + num_words(item.said) <= LONGEST_LIST
        alike = not run or _is_told_under(run[-1], governing) == _is_told_under(item, governing)
        if run and not (_is_short(item) and fits and alike):
            yield _told(run, governing)
            run = []
        if _is_short(item):
            run.append(item)
        elif item.said:
            yield _told([item], governing)
        if item.below:
            yield from _below(item, governing)
    if run:
        yield _told(run, governing)


def _below(item: _Entry, governing: str) -> Iterator[Statement]:
    above = item.line.text
    if (
        above.endswith((":", "：", "?", "？"))
        or (is_fragment(above) and num_words(above) <= _SHORT)
        or all(is_fragment(i.line.text) for i in item.below)
    ):
        *_, (above, _, _) = located(above, item.line.language)
        governing = under(governing, above) if denies(governing) else above
    yield from listed([line for child in item.below for line in _lines(child)], governing)


def _lines(item: _Entry) -> Iterator[TextLine]:
    yield item.line
    for child in item.below:
        yield from _lines(child)


def _is_short(item: _Entry) -> bool:
    is_one = len(item.groups) == 1 and num_words(item.said) <= _SHORT
    return is_one and bool(item.said) and not item.below


def _is_told_under(item: _Entry, governing: str) -> bool:
    return is_needed(governing, item.said)


def _told(run: Sequence[_Entry], governing: str) -> Statement:
    text = _joined([item.said for item in run])
    if _is_told_under(run[0], governing):
        text = under(governing, text)
    return Statement(as_said(text), run[0].line.start, run[-1].line.end, "list" if len(run) > 1 else "item")


def _joined(items: Sequence[str]) -> str:
    if len(items) == 1:
        return items[0]
    if all(_ENDED.search(item) for item in items):
        return ("" if UNSPACED.search(items[0][-2:]) else " ").join(items)
    bare = [_AND.sub("", item) for item in items[:-1]] + [items[-1]]
    unspaced = UNSPACED.search(bare[0][-1:])
    if any(num_words(item) > _PLAIN for item in bare) or any(
        mark in item for item in bare for mark in (",", ":", "，", "：", "、", ".")
    ):
        return ("；" if unspaced else "; ").join(bare)
    return ("、" if unspaced else ", ").join(bare)
