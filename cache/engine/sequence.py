"""A run of tokens to be computed behind what it reads from the arena: a prompt being answered or a module being
encoded. Knows rows and positions; neither tokenizer nor model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cache.attention.items import Chunk, View
from cache.memory.allocator import Extent


@dataclass(slots=True, eq=False)
class Sequence:
    """tokens[i] stands at position id positions[i] and its KV goes to slot own.start + i.

    own may be longer than `tokens`: the rest is room for generated ones. Rows before `computed` are in the arena.
    """

    tokens: list[int]
    positions: list[int]
    own: Extent
    views: list[View] = field(default_factory=list)
    computed: int = 0

    @property
    def pending(self) -> int:
        """Rows still to compute."""
        return len(self.tokens) - self.computed

    @property
    def is_full(self) -> bool:
        """Whether there is no slot for another token."""
        return len(self.tokens) >= self.own.length

    def append(self, token: int) -> None:
        """Add a generated token at the next position id."""
        assert not self.is_full, self
        self.tokens.append(token)
        self.positions.append(self.positions[-1] + 1)

    def chunk(self, rows: int) -> Chunk:
        """The next `rows` rows."""
        assert 0 < rows <= self.pending, (rows, self)
        return Chunk(first=self.computed, last=self.computed + rows, own=self.own, views=self.views)
