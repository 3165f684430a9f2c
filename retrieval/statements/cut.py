"""Cuts a passage's text into its statements, in order."""

from collections.abc import Iterator, Sequence

from retrieval.statements.grouping import (
    Statement,
    announces_steps,
    denies,
    governing_heading,
    grouped,
    located,
    needs_before,
    num_words,
    turns_sentences,
    under,
)
from retrieval.statements.lines import TextLine, lines_of, listed
from retrieval.statements.references import is_furniture, lists_links
from retrieval.statements.rows import row_statements
from retrieval.text.sentences import as_said

VERSION = 2
"""Increased whenever texts are cut differently than before. Vectors of their statements are then computed again."""
_LONGEST_INTRODUCTION = 30  # words
_SHORT = 15  # words; a longer sentence contains its own denial


def statements_of(text: str, heading_path: Sequence[str]) -> tuple[Statement, ...]:
    """Return the statements of a passage, each once. Questions, headings, cross references and page furniture are
    skipped.

    heading_path: the headings above the text, from the document's title down. Spans do not overlap, except that the
    later sentences of a procedure's steps are also statements of their own.
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
        if line.kind == "heading" or line.text in heading_path:
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
    """Return the text of a line without its last sentence, and that sentence, if it introduces the next lines.
    Otherwise return the line and "".
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
        whole = under(governing, said) if needs else said
        if not whole.rstrip(".。").endswith((":", "：", "?", "？")):  # also if a full stop follows by mistake
            yield Statement(as_said(whole), line.start + start, line.start + end, "sentence")
