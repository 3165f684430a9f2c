"""Cuts a passage's text into its statements, in order, and reads the rows of tables as sentences.

The first cell of a row is the subject, the other cells describe it: "Eco – Running time: 35 minutes". Names and values
are never changed.
"""

import re
from collections.abc import Iterator, Sequence

from retrieval.statements.grouping import (
    Statement,
    announces_steps,
    denies,
    governing_heading,
    grouped,
    is_furniture,
    lists_links,
    located,
    needs_before,
    num_words,
    turns_sentences,
    under,
    with_its_question,
    without_references,
)
from retrieval.statements.lines import TextLine, lines_of, listed
from retrieval.text.sentences import LETTER, UNSPACED, as_said

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
_SHORT = 15  # words; a longer sentence contains its own denial


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
            if introduction and following != "item":  # it is above more than a list
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
        needs = governing and not denies(said) and num_words(said) <= _SHORT
        whole = under(governing, said) if needs else with_its_question(said, heading)
        if not whole.rstrip(".。").endswith((":", "：", "?", "？")):  # also if a full stop follows by mistake
            yield Statement(as_said(whole), line.start + start, line.start + end, "sentence")
