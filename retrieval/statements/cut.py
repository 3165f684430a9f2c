"""Cuts a passage's text into its statements, in order.

**Lines.** Lists and tables are written as loaders write them (see `retrieval.documents.Block`). Headings have no mark
in the text of a passage, so a short line without a sentence end is a heading.

**Lists.** The statements of a list are single items, runs of short items, and procedures, each with the line or heading
above the list if it is needed (`is_needed`).

**Rows.** A row of a table is read as a sentence. Its first cell is the subject, the other cells describe it: "Eco –
Running time: 35 minutes". Names and values are never changed.
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
    governing_heading,
    grouped,
    is_fragment,
    is_furniture,
    is_needed,
    lists_links,
    located,
    needs_before,
    num_words,
    turns_sentences,
    under,
    with_its_question,
    without_references,
)
from retrieval.text.sentences import ASKS, ENDED, LETTER, UNSPACED, as_said, goes_on
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
    """A line without its list marker. Wrapped lines are joined. start, end: its place in the passage's text, as many
    characters as `text`. language: of the passage. marker: "-", "3.", or "". level: nesting of the list, from 0.
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
    """Return for each line whether it is a row: it has two named cells, or the form of a row or of its neighbour."""
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
    turned = turns_sentences(governing)  # then no text below it may be a statement alone
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
        alike = not run or is_needed(governing, run[-1].said) == is_needed(governing, item.said)
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


def _told(run: Sequence[_Entry], governing: str) -> Statement:
    text = _joined([item.said for item in run])
    if is_needed(governing, run[0].said):
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


_NAME = re.compile(r"([^\s:;][^:;]{0,59}): ")
_NOTHING = re.compile(r"[-–—/.\s]*|n/?a|none given", re.IGNORECASE)
_SHORT_SUBJECT = re.compile(  # means nothing without the name of its column
    r"(?:(?:from|up to|over|under|above|below|until|more than|less than|ab|bis|über|unter|mehr als) )?"
    r"[€$£]?(?:EUR )?\d.*"
    r"|[!-~]{1,2}|[A-Za-z]{1,2}-?\d+|(?:yes|no|ja|nein)",
    re.IGNORECASE,
)

Cell = tuple[str, str]


def row_statements(lines: Sequence[TextLine], heading: str) -> Iterator[Statement]:
    names = _names([line.text for line in lines])
    governing = heading if turns_sentences(heading) else ""
    for line in lines:
        cells = _cells(line.text, names)
        if said := sentence_of(cells):
            subject = cells[0][1] if len(cells) > 1 else ""  # a row of one cell is a sum or a note
            yield Statement(as_said(under(governing, said)), line.start, line.end, "row", subject)


def _names(rows: Sequence[str]) -> frozenset[str]:
    found = [{match[1] for cell in row.split("; ") if (match := _NAME.match(cell))} for row in rows]
    if len(found) < 2:
        return frozenset().union(*found)
    return frozenset(name for names in found for name in names if sum(name in other for other in found) > 1)


def _cells(row: str, names: frozenset[str]) -> list[Cell]:
    cells: list[Cell] = []
    for part in row.split("; "):
        match = _NAME.match(part)
        if match and match[1] in names:
            cells.append((match[1], part[match.end() :].strip()))
        elif cells and cells[-1][0]:
            cells[-1] = cells[-1][0], f"{cells[-1][1]}; {part}"  # the semicolon belongs to the value
        else:
            cells.append(("", part.strip()))
    return cells


def sentence_of(cells: Sequence[Cell]) -> str:
    """Return a row as a sentence without its full stop; "" if it has no content. cells: names and values."""
    (name, subject), *others = cells
    told = [
        (other, value)
        for other, given in others
        if not _NOTHING.fullmatch(given) and (value := without_references(given)) and not value.endswith(("?", "？"))
    ]
    if not LETTER.search(subject + "".join(value for _, value in told)):
        return ""
    unspaced = bool(UNSPACED.search(subject + "".join(value for _, value in told)))
    if not told:
        return subject if not others and num_words(subject) > 1 else ""
    if name and _SHORT_SUBJECT.fullmatch(subject):
        subject = name + ("" if unspaced and UNSPACED.search(name[-1:]) else " ") + subject
    parts = [f"{other}{'：' if unspaced else ': '}{value}" if other else value for other, value in told]
    is_named = any(other for other, _ in told)
    mark = ("——" if is_named else "：") if unspaced else " – " if is_named else ": "
    return subject + mark + ("；" if unspaced else "; ").join([*(part.rstrip(".。") for part in parts[:-1]), parts[-1]])


VERSION = 5
"""Increase it when texts are cut differently. Vectors of their statements are then computed again."""
_LONGEST_INTRODUCTION = 30  # words
_SHORT_SENTENCE = 15  # words; a longer one contains its own denial


def statements_of(text: str, heading_path: Sequence[str]) -> tuple[Statement, ...]:
    """Return the statements of a passage, each once. Questions, headings, cross references and page furniture are
    skipped. heading_path: the headings above the text, from the document's title down. Spans do not overlap, except
    that the later sentences of a procedure's steps are also separate statements.
    """
    found: dict[str, Statement] = {}
    for statement in _statements(lines_of(text), heading_path):
        found.setdefault(statement.text, statement)
    return tuple(sorted(found.values(), key=lambda statement: (statement.start, -statement.end)))


def _statements(lines: Sequence[TextLine], heading_path: Sequence[str]) -> Iterator[Statement]:
    headings = list(heading_path)
    introduction = ""
    at = 0
    while at < len(lines):
        line = lines[at]
        group = _alike(lines, at) if line.kind in ("item", "row") else [line]
        at += len(group)
        following = lines[at].kind if at < len(lines) else None
        if is_furniture(line.text):
            continue
        if line.kind == "heading" and introduction and line.start - lines[at - 2].end == 1:
            yield from listed(group, introduction)  # "Pay to this account:", and the account in the next line
        elif line.kind == "heading" or line.text in heading_path:
            headings = list(heading_path) if line.text in heading_path else [*heading_path, line.text]
        elif line.kind == "row":
            yield from row_statements(group, governing_heading(headings))
        elif line.kind == "item":
            if not lists_links(introduction or (headings[-1] if headings else "")):
                yield from listed(group, introduction or governing_heading(headings))
        else:
            text, introduction = _parted(line, following)
            if introduction and following != "item":  # it introduces more than a list
                headings = [*heading_path, introduction]
            yield from _sentences(text, line, governing_heading(headings))
            continue
        introduction = ""


def _alike(lines: Sequence[TextLine], at: int) -> list[TextLine]:
    first, group = lines[at], [lines[at]]
    for line in lines[at + 1 :]:
        if line.kind != first.kind or (
            _first_column(line) != _first_column(first) if line.kind == "row" else _starts(line, group)
        ):
            break
        group.append(line)
    return group


def _first_column(row: TextLine) -> str:
    name, named, _ = row.text.partition(": ")
    return name if named and "; " not in name else ""


def _starts(item: TextLine, group: Sequence[TextLine]) -> bool:
    if item.level:
        return False
    restarts = item.number == 1 and (group[-1].number or 1) > 1
    return restarts or (item.number is None) != (group[0].number is None)


def _parted(whole: TextLine, following: str | None) -> tuple[str, str]:
    """If a line's last sentence introduces the next lines, return the text before it, and the sentence. Otherwise
    return the line and "".
    """
    line = whole.text
    if following != "item" and not line.endswith((":", "：")):
        return line, ""
    last, start, _ = list(located(line, whole.language))[-1]
    before = list(located(line[:start], whole.language))
    if before and needs_before(last) and num_words(line[before[-1][1] :]) <= _LONGEST_INTRODUCTION:
        start = before[-1][1]  # "Scammers write to you. They may:"
    introduces = last.endswith((":", "：")) or (
        following == "item" and (last.endswith(("?", "？")) or announces_steps(last))
    )
    return (line[:start], line[start:]) if introduces else (line, "")


def _sentences(text: str, line: TextLine, heading: str) -> Iterator[Statement]:
    governing = heading if turns_sentences(heading) else ""
    for said, start, end in grouped(text, line.language):
        needs = governing and not denies(said) and num_words(said) <= _SHORT_SENTENCE
        whole = under(governing, said) if needs else with_its_question(said, heading)
        if not whole.rstrip(".。").endswith((":", "：", "?", "？")):  # also if a full stop follows by mistake
            yield Statement(as_said(whole), line.start + start, line.start + end, "sentence")
