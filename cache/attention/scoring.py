"""Scores of keys: how much some rows of a pass attend to keys that they read (InfoFlow KV, ICML 2026).

The score of a key is its attention weight, averaged over the heads, its norm over the rows, averaged over some layers.
Rows may come in several passes; each adds its squares. Out of scope: the selection of rows and keys
(`cache.engine.waiting`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from cache.attention.items import Chunk
from cache.memory.arena import Extent

Placed = tuple[Extent, int]  # an extent and its offset in a chunk: it may be read at several places


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """A chunk of a pass whose last `rows` rows are scored. index: of the chunk. squares: of the keys of each extent at
    each place, float32 `[scored layers, L]`, to which the pass adds the squared weights of these rows.
    """

    index: int
    rows: int
    squares: Mapping[Placed, Tensor]

    def packed_rows(self, chunks: Sequence[Chunk]) -> range:
        end = sum(len(chunk.tokens) for chunk in chunks[: self.index + 1])
        return range(end - self.rows, end)


def only_scores(scored: Sequence[ScoredChunk], chunks: Sequence[Chunk]) -> bool:
    return len(scored) == len(chunks)
