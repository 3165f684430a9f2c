"""How much the question looks at the rows of its modules: one pass over the question alone."""

from collections.abc import Sequence

from torch import Tensor

from cache.engine.sequence import build_sequence, path_of
from cache.memory.device import CacheEntry
from cache.memory.store import Store
from cache.model.language_model import Model
from cache.prompt.plan import Plan, Segment


def score_rows(
    plan: Plan, indices: Sequence[int], *, entries: dict[Segment, CacheEntry], tenant: str, store: Store, model: Model
) -> list[Tensor]:
    """How much the rows of a plan's last span look at some of its spans: float32 `[rows]` for each index. The KV is
    thrown away: these rows have not seen what will be recomputed because of the scores. Raises CapacityError.
    """
    path = path_of(plan.spans, entries)
    prefix = store.device.pin_prefix(tenant, path[:-1])  # reserving memory may evict
    sequence, _ = build_sequence(plan.spans, path, entries, prefix)
    try:
        sequence.own = store.device.reserve_rows(len(sequence.tokens))
    finally:
        store.device.release_prefix(prefix)
    extents = [view.extent for view in sequence.views]
    try:
        chunk = sequence.chunk(sequence.pending)
        found = model.score_attention(chunk, store.device.arena, len(plan.spans[-1].tokens), extents)
    finally:
        store.device.free(sequence.own)
    scores: list[Tensor] = []
    for span in (plan.spans[i] for i in indices):
        assert span.segment is not None
        rows = entries[span.segment].extent.part(span.row, span.row + len(span.tokens))
        extent, score = next((e, s) for e, s in zip(extents, found, strict=True) if e.start <= rows.start < e.end)
        scores.append(score[rows.start - extent.start : rows.end - extent.start])
    return scores
