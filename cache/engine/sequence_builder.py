"""From the spans of a plan to a sequence: which rows are read from where, and which are computed.

Everything a plan's spans name is in the arena by now: modules as cache entries, the exact prefix as nodes of the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from cache.attention.items import View, VisibleRange
from cache.engine.sequence import Sequence
from cache.memory.allocator import Extent
from cache.memory.prefix_tree import Node, Step
from cache.memory.store import CacheEntry
from cache.prompt.plan import Segment, Span


def steps_of(spans: Many[Span], entries: Mapping[Segment, CacheEntry]) -> list[Step]:
    """The path of a plan through the prefix tree."""
    return [
        Step(
            start=span.start,
            tokens=span.tokens,
            key=None if span.segment is None else f"{entries[span.segment].header.key}/{span.row}",
        )
        for span in spans
    ]


@dataclass(slots=True)
class Placed:
    """Rows of one segment, in one place: `(first, last, own row from which they are seen)`, in ascending order."""

    extent: Extent
    offset: int
    parts: list[tuple[int, int, int]] = field(default_factory=list)

    def view(self) -> View:
        """One view, also of a module in which some rows are computed again: those are hidden."""
        first, last, seen_from = self.parts[0][0], self.parts[-1][1], self.parts[0][2]
        extent = self.extent.part(first, last)
        if len(self.parts) == 1:
            return View(extent, self.offset, seen_from)
        visible_ranges = tuple(VisibleRange(a - first, b - first, row) for a, b, row in self.parts)
        return View(extent, self.offset, seen_from, visible_ranges)


def build(
    spans: Many[Span], steps: Many[Step], entries: Mapping[Segment, CacheEntry], prefix: Node | None
) -> tuple[Sequence, list[tuple[Step, int]]]:
    """The sequence behind a matched prefix, and what it adds to the path: computed steps with their first own row,
    modules between them with row -1. The sequence's own extent is still missing.
    """
    nodes = [] if prefix is None else [*prefix.path()][::-1]
    matched = sum(len(node.step.tokens) for node in nodes)
    sequence = Sequence([], [], Extent(0, 0), [View(e) for e in joined(n.extent for n in nodes if n.step.key is None)])
    fresh: list[tuple[Step, int]] = []
    placed: dict[tuple[Segment, int], Placed] = {}
    before = 0
    for span, step in zip(spans, steps, strict=True):
        known = min(max(matched - before, 0), len(span.tokens))
        before += len(span.tokens)
        rows = len(sequence.tokens)
        if span.segment is not None:
            at = placed.setdefault((span.segment, span.offset), Placed(entries[span.segment].extent, span.offset))
            at.parts.append((span.row, span.row + len(span.tokens), rows))
            if not known:
                fresh.append((step, -1))
        elif known < len(span.tokens):
            fresh.append((step.cut(known, len(step.tokens)), rows))
            sequence.tokens.extend(span.tokens[known:])
            sequence.positions.extend(range(span.start + known, span.end))
    sequence.views += [one.view() for one in placed.values()]
    return sequence, fresh


def joined(extents: Iterable[Extent]) -> list[Extent]:
    """Neighbours in memory as one extent: a conversation's rows were mostly computed side by side."""
    found: list[Extent] = []
    for extent in extents:
        if found and found[-1].end == extent.start:
            found[-1] = Extent(found[-1].start, found[-1].length + extent.length)
        elif extent.length:
            found.append(extent)
    return found
