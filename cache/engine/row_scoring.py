"""How much a question looks at the rows of its modules, computed as a sequence of the common passes.

The rows are computed for their attention alone: their keys and values are given back, since they have not seen what
will be recomputed because of the scores. Not covered: what is selected by the scores (`cache.engine.recomputation`).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from cache.attention.scoring import ScoredChunk
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
        self._extents = [self._extent_of(self._plan.spans[i]) for i in self._spans]
        device = store.arena.device
        try:
            self._squares = {one: torch.zeros(num_layers, one.length, device=device) for one in self._extents}
            self._of_pass: dict[Extent, Tensor] = {}
            self.sequence.own = store.device.reserve_rows(len(self.sequence.tokens))
        except Exception:
            store.device.release_prefix(self._prefix)
            raise

    def scored(self, index: int, rows: int) -> ScoredChunk:
        """What the next `rows` rows of the sequence score, as chunk `index` of a pass: those of the question."""
        behind = self.sequence.pending - rows
        self._of_pass = {extent: torch.zeros_like(squares) for extent, squares in self._squares.items()}
        return ScoredChunk(index, max(0, min(rows, len(self._plan.spans[-1].tokens) - behind)), self._of_pass)

    def add_pass(self) -> None:
        """The last pass went well: what it scored counts. Of one that failed, some layers may have been scored."""
        for extent, squares in self._of_pass.items():
            self._squares[extent] += squares

    def scores(self) -> list[Tensor]:
        """How much the question looks at each candidate of the selection: float32 `[rows]`, on the host."""
        scores = [self._squares[extent].sqrt().mean(0).cpu() for extent in self._extents]
        slots = [self._slots_of(self._plan.spans[i]) for i in self._spans]
        return [
            score[rows.start - extent.start : rows.end - extent.start]
            for score, extent, rows in zip(scores, self._extents, slots, strict=True)
        ]

    def release(self, store: Store) -> None:
        """Give everything back."""
        store.device.free(self.sequence.own)
        store.device.release_prefix(self._prefix)

    def _slots_of(self, span: Span) -> Extent:
        assert span.segment is not None
        return self._entries[span.segment].extent.part(span.row, span.row + len(span.tokens))

    def _extent_of(self, span: Span) -> Extent:
        """The extent of which the sequence reads a span's rows."""
        rows = self._slots_of(span)
        return next(v.extent for v in self.sequence.views if v.extent.start <= rows.start < v.extent.end)
