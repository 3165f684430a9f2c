"""The statements of a list: single items, short ones together, procedures; each with the line that governs the list."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from retrieval.statements.governing import announces_steps, denies, is_fragment, is_needed, turns_sentences, under
from retrieval.statements.grouping import Group, grouped, located
from retrieval.statements.lines import TextLine
from retrieval.statements.statement import Statement, num_words
from retrieval.text.sentences import ASKS, as_said
from retrieval.text.terms import CHINESE_JAPANESE

LONGEST_LIST = 60
"""Words of items that are told together, with their governing line."""
LONGEST_PROCEDURE = 120
"""Words of a procedure; a longer one is cut between steps."""

_LEAST = 4  # words of a step without a full stop
_SLACK = 20  # words by which a procedure may be longer and still stay whole
_SHORT = 15  # words of an item that is told together with its neighbours
_PLAIN = 4  # words of an item that commas part from the next
_FULL = 6  # words of a sentence that says something without the rest of its step
_FEW = 30  # words of the items below a step that are told with it
_QUESTION_LINK = re.compile(
    r"(?:how (?:to|do|does|can|long|much)|why (?:is|am|do|does|was|can)|what (?:is|are|if))\b"
    r"|(?:and )?(?:many )?more…?$",
    re.IGNORECASE,
)
_AND = re.compile(r"[,;，；、]?\s*\b(?:and|or|und|oder|and/or)$|[,;，；、。.]$")
_ENDED = re.compile(r"[.!。！]$")
_UNSPACED = re.compile(f"[{CHINESE_JAPANESE}]")


@dataclass(slots=True)
class _Entry:
    line: TextLine
    groups: Sequence[Group]  # what is said, without cross references
    said: str  # the same in one
    below: list["_Entry"] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.below[-1].end if self.below else self.line.end


def listed(lines: Sequence[TextLine], governing: str) -> Iterator[Statement]:
    """The statements of the items of one list, at all levels. governing: the line that introduces the list, with its
    colon, or the heading above; "" if there is none. Steps of several sentences are also given alone.
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
    """What an item says; "" for a mere link to another page."""
    if not groups or (len(groups) == 1 and _QUESTION_LINK.match(text) and is_fragment(text)):
        return ""
    return ("" if _UNSPACED.search(groups[0].text[-2:]) else " ").join(group.text for group in groups)


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
        introduction += "：" if _UNSPACED.search(introduction[-1:]) else ":"
    steps = [_step(item, "-" if number is None else f"{number}.") for item, number in zip(items, numbers, strict=True)]
    for first, last in _parts([num_words(step) for step in steps]):
        text = "\n".join([*filter(None, [introduction]), *steps[first:last]])
        yield Statement(as_said(text), items[first].line.start, items[last - 1].end, "procedure")
    turned = turns_sentences(governing)  # then nothing below it may be told alone
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


def _parts(words: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, behind the last) step of the parts of a procedure, about equally long. words: of its steps."""
    num_parts = max(1, -(-(sum(words) - _SLACK) // LONGEST_PROCEDURE))
    first = said = part = 0
    for n, more in enumerate(words):
        if n > first and said + more / 2 > (part + 1) * sum(words) / num_parts:
            yield first, n
            first, part = n, part + 1
        said += more
    yield first, len(words)


def _items(items: Sequence[_Entry], governing: str) -> Iterator[Statement]:
    """Runs of short items together, the others alone, each followed by what stands below it."""
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
    """Short items in one line; sentences stay sentences."""
    if len(items) == 1:
        return items[0]
    if all(_ENDED.search(item) for item in items):
        return ("" if _UNSPACED.search(items[0][-2:]) else " ").join(items)
    bare = [_AND.sub("", item) for item in items[:-1]] + [items[-1]]
    unspaced = _UNSPACED.search(bare[0][-1:])
    if any(num_words(item) > _PLAIN for item in bare) or any(
        mark in item for item in bare for mark in (",", ":", "，", "：", "、", ".")
    ):
        return ("；" if unspaced else "; ").join(bare)
    return ("、" if unspaced else ", ").join(bare)
