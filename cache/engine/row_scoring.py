"""How much a question looks at the rows of its modules, computed as a sequence of the common passes.

The rows are computed for their attention alone: their keys and values are given back, since they have not seen what
will be recomputed because of the scores. Not covered: what is selected by the scores (`cache.engine.recomputation`).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from cache.attention.scoring import Placed, ScoredChunk
from cache.engine.recomputation import RowSelection
from cache.engine.sequence import build_sequence, path_of
from cache.memory.allocator import Extent
from cache.memory.device import CacheEntry
from cache.memory.store import Store
from cache.prompt.plan import Segment, Span


class RowScoring:
    """The scores that a selection needs. sequence: what is to be computed; once nothing of it is pending, the scores
    are there. It holds rows and a pinned prefix until it is released.
    """

    def __init__(
        self, selection: RowSelection, entries: Mapping[Segment, CacheEntry], tenant: str, store: Store, num_layers: int
    ) -> None:
        """entries: the plan's modules, pinned for as long. num_layers: that are scored. Raises CapacityError."""
        self.selection, self._entries = selection, entries
        self._plan, self._spans = selection.scored_spans()
        path = path_of(self._plan.spans, entries)
        self._prefix = store.device.pin_prefix(tenant, path[:-1])  # reserving memory may evict
        self.sequence, _ = build_sequence(self._plan.spans, path, entries, self._prefix)
        self._placed = [self._placed_of(self._plan.spans[i]) for i in self._spans]
        device = store.arena.device
        try:
            self._squares = {one: torch.zeros(num_layers, one[0].length, device=device) for one in self._placed}
            self._of_pass: dict[Placed, Tensor] = {}
            self.sequence.own = store.device.reserve_rows(len(self.sequence.tokens))
        except Exception:
            store.device.release_prefix(self._prefix)
            raise

    def scored(self, index: int, rows: int) -> ScoredChunk:
        """What the next `rows` rows of the sequence score, as chunk `index` of a pass: those of the question."""
        behind = self.sequence.pending - rows
        self._of_pass = {placed: torch.zeros_like(squares) for placed, squares in self._squares.items()}
        return ScoredChunk(index, max(0, min(rows, len(self._plan.spans[-1].tokens) - behind)), self._of_pass)

    def add_pass(self) -> None:
        """The last pass went well: what it scored counts. Of one that failed, some layers may have been scored."""
        for placed, squares in self._of_pass.items():
            self._squares[placed] += squares

    def scores(self) -> list[Tensor]:
        """How much the question looks at each candidate of the selection: float32 `[rows]`, on the host."""
        scores = [self._squares[placed].sqrt().mean(0).cpu() for placed in self._placed]
        slots = [self._slots_of(self._plan.spans[i]) for i in self._spans]
        return [
            score[rows.start - extent.start : rows.end - extent.start]
            for score, (extent, _), rows in zip(scores, self._placed, slots, strict=True)
        ]

    def release(self, store: Store) -> None:
        """Give everything back."""
        store.device.free(self.sequence.own)
        store.device.release_prefix(self._prefix)

    def _slots_of(self, span: Span) -> Extent:
        assert span.segment is not None
        return self._entries[span.segment].extent.part(span.row, span.row + len(span.tokens))

    def _placed_of(self, span: Span) -> Placed:
        """The extent of which the sequence reads a span's rows, and where."""
        rows, views = self._slots_of(span), self.sequence.views
        views = [view for view in views if view.offset == span.offset]
        return next((v.extent, v.offset) for v in views if v.extent.start <= rows.start < v.extent.end)
