"""Divide the next forward pass among sequences of tokens. Each sequence is computed after the rows of the KV pool that
it reads. No tensors are used.

Generating sequences come first, one row each. Prompts and modules being encoded fill the rest in chunks, ordered by
arrival time plus their own remaining compute time, so a short prompt overtakes a long one, but a long one does not wait
forever. While many answers stream, short prompts sometimes get a pass of their own.
"""

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from cache.attention.items import Chunk, KVView, VisibleRange
from cache.memory.arena import Extent, join_extents, part_of, total_length
from cache.memory.device import CacheEntry
from cache.memory.prefix_tree import PathStep, PrefixNode, step_key
from cache.prompt.plan import Segment, Span


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens to compute. tokens[i] has position id positions[i], and its KV goes to slot i of `own`, which may be
    longer for generated tokens. Rows before `computed` are in the pool. arrived: arrival time, in seconds of any clock.
    """

    tokens: list[int]
    positions: list[int]
    own: list[Extent] = field(default_factory=list)
    views: list[KVView] = field(default_factory=list)
    computed: int = 0
    arrived: float = 0.0

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def missing_slots(self) -> int:
        return max(0, len(self.tokens) - total_length(self.own))

    @property
    def adjacent_slots(self) -> int:
        """Number of own slots that are adjacent in memory, from the slot of the next row on."""
        behind = part_of(self.own, self.computed, total_length(self.own))
        return behind[0].length if behind else 0

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.positions.append(self.positions[-1] + 1)

    def chunk(self, rows: int) -> Chunk:
        assert 0 < rows <= self.pending, (rows, self)
        part = slice(self.computed, self.computed + rows)
        return Chunk(self.tokens[part], self.positions[part], self.computed, self.own, self.views)


def path_of(spans: Many[Span], entries: Mapping[Segment, CacheEntry]) -> list[PathStep]:
    return [
        PathStep(
            start=span.start,
            tokens=span.tokens,
            key=None if span.segment is None else step_key(entries[span.segment].header.key, span.row),
        )
        for span in spans
    ]


def build_sequence(
    spans: Many[Span], path: Many[PathStep], entries: Mapping[Segment, CacheEntry], prefix: PrefixNode
) -> tuple[Sequence, list[tuple[PathStep, int]]]:
    """Return the sequence after a matched prefix, and its new steps of the path: computed steps with their first own
    row, modules with row -1. The sequence's own slots are still missing.
    """
    nodes = [*prefix.path()][::-1]
    matched = sum(len(node.step.tokens) for node in nodes)
    # rows of a conversation are mostly adjacent, and fewer views are faster
    computed = join_extents(extent for node in nodes for extent in node.extents)
    sequence = Sequence([], [], views=[KVView(extent) for extent in computed])
    fresh: list[tuple[PathStep, int]] = []
    visible: dict[tuple[Segment, int], list[VisibleRange]] = {}  # by segment and offset
    before = 0
    for span, step in zip(spans, path, strict=True):
        known = min(max(matched - before, 0), len(span.tokens))
        before += len(span.tokens)
        rows = len(sequence.tokens)
        if span.segment is not None:
            visible_range = VisibleRange(span.row, span.row + len(span.tokens), seen_from=rows)
            visible.setdefault((span.segment, span.offset), []).append(visible_range)
            if not known:
                fresh.append((step, -1))
        elif known < len(span.tokens):
            fresh.append((step.cut(known, len(step.tokens)), rows))
            sequence.tokens.extend(span.tokens[known:])
            sequence.positions.extend(range(span.start + known, span.end))
    sequence.views += [view_of(entries[segment].extent, at, ranges) for (segment, at), ranges in visible.items()]
    return sequence, fresh


def view_of(extent: Extent, offset: int, ranges: Many[VisibleRange]) -> KVView:
    """Return one view of a module. ranges: its visible rows, ascending. Other rows are recomputed and hidden."""
    first, seen_from = ranges[0].first, ranges[0].seen_from
    moved = tuple(VisibleRange(r.first - first, r.last - first, r.seen_from) for r in ranges)
    return KVView(extent.part(first, ranges[-1].last), offset, seen_from, moved if len(ranges) > 1 else ())


PASS_S, DECODING_PASS_S = 0.5, 0.125
"""Maximum seconds of a pass without and with streaming answers (the latter is the pause between two tokens)."""
LEAST_ROWS, MOST_ROWS = 64, 2048
"""Minimum and maximum rows of a pass: fewer waste its fixed cost, more need too much memory."""
MANY_ANSWERS = 24
"""Minimum number of answers for a separate pass of a prompt. With this number, sharing a pass doubles the time to the
first token. With fewer, reading the weights once more costs more than it saves.
"""


class Schedulable(Protocol):
    """Work for a forward pass, for example a `Sequence`."""

    @property
    def pending(self) -> int:
        """Rows still to compute."""

    @property
    def arrived(self) -> float:
        """Arrival time, in seconds of any clock."""


S = TypeVar("S", bound=Schedulable)


def schedule(sequences: Collection[S], row_seconds: float, pass_seconds: float = PASS_S) -> dict[S, int]:
    """Return the rows of each sequence in the next pass, in order. Every sequence has at least one pending row.
    row_seconds: cost of a row. pass_seconds: maximum time while no answer streams.
    """
    scheduled = {sequence: 1 for sequence in sequences if sequence.pending == 1}
    token_budget = rows_within(DECODING_PASS_S if scheduled else pass_seconds, row_seconds) - len(scheduled)
    for sequence in in_order(sequences, row_seconds):
        if token_budget > 0:
            scheduled[sequence] = min(token_budget, sequence.pending)
            token_budget -= scheduled[sequence]
    return scheduled


def schedule_alone(sequences: Collection[S], row_seconds: float) -> dict[S, int]:
    """Return prompts to compute completely in a separate pass while answers wait: rows by sequence. Empty if few
    answers wait, or if no prompt is short enough.
    """
    if sum(sequence.pending == 1 for sequence in sequences) < MANY_ANSWERS:
        return {}
    alone: dict[S, int] = {}
    token_budget = rows_within(DECODING_PASS_S / 2, row_seconds)
    for sequence in in_order(sequences, row_seconds):
        if sequence.pending <= token_budget:
            alone[sequence] = sequence.pending
            token_budget -= sequence.pending
    return alone


def in_order(sequences: Collection[S], row_seconds: float) -> list[S]:
    prompts = [sequence for sequence in sequences if sequence.pending > 1]
    return sorted(prompts, key=lambda prompt: prompt.arrived + prompt.pending * row_seconds)


def rows_within(seconds: float, row_seconds: float) -> int:
    return max(LEAST_ROWS, min(MOST_ROWS, int(seconds / row_seconds)))
