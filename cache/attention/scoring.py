"""What a pass scores besides: how much some of its rows look at keys that they read (InfoFlow KV, ICML 2026).

The score of a key is its attention weight, averaged over the heads, its norm over the rows, averaged over some layers.
Rows may come in several passes; each adds its squares. Not covered: which rows and keys (`cache.engine.waiting`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from cache.attention.items import Chunk
from cache.memory.arena import Extent

Placed = tuple[Extent, int]
"""An extent that a chunk reads, and its offset there: an extent may be read at several places."""


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """A chunk of a pass whose last `rows` rows are scored. index: which chunk. squares: of the keys of each extent at
    each place, float32 `[scored layers, L]`: the pass adds the squared weights of these rows.
    """

    index: int
    rows: int
    squares: Mapping[Placed, Tensor]

    def packed_rows(self, chunks: Sequence[Chunk]) -> range:
        """The scored rows among all rows of the pass."""
        end = sum(len(chunk.tokens) for chunk in chunks[: self.index + 1])
        return range(end - self.rows, end)


def only_scores(scored: Sequence[ScoredChunk], chunks: Sequence[Chunk]) -> bool:
    """Whether a pass is computed for its scores alone, so that it may end behind the last layer that is scored."""
    return len(scored) == len(chunks)
