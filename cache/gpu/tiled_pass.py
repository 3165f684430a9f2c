"""A forward pass with our GPU kernels: two launches per layer for all items.

Supports rotation, ALiBi, sliding windows and soft caps, like `cache.attention.forward_pass.Pass`, but not scoring.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

from torch import Tensor

from cache.attention.forward_pass import PassGivenUp, Rotation, never
from cache.attention.items import Chunk
from cache.gpu.tiles import TilePlan, plan_tiles
from cache.gpu.triton_kernels import attend_tiles
from cache.memory.arena import Arena


class TiledPass:
    """One packed forward pass over a pool, which also stores the rows' position ids. A plan with turns needs a rotation
    or ALiBi slopes, float32 `[H]`. give_up: called in every layer.
    """

    can_be_captured = True  # by CUDA graphs

    def __init__(
        self,
        plan: TilePlan,
        arena: Arena,
        *,
        rotation: Rotation | None = None,
        slopes: Tensor | None = None,
        give_up: Callable[[], bool] = never,
    ) -> None:
        self._plan, self._arena, self._slopes, self._give_up = plan, arena, slopes, give_up
        self.positions, self._slots = plan.positions.long(), plan.slots.long()
        arena.positions.index_copy_(0, self._slots, self.positions)
        self._turn: tuple[Tensor, Tensor] | None = None
        if len(plan.offsets) and slopes is None:
            assert rotation is not None, "this model's modules cannot be moved"
            cos, sin = rotation.angles(plan.offsets)
            self._turn = cos.squeeze(1), sin.squeeze(1)

    @classmethod
    def of(
        cls, chunks: Sequence[Chunk], arena: Arena, heads: int, *, most_keys: int | None = None, **options: Any
    ) -> Self:
        """Return the pass over chunks. heads: query heads of the model. most_keys: see `make_tables`."""
        return cls(plan_tiles(chunks, heads // arena.shape.kv_heads, arena.device, most_keys), arena, **options)

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        if self._give_up():
            raise PassGivenUp
        self._arena.await_layer(layer)
        keys, values = self._arena.keys[layer], self._arena.values[layer]
        keys.index_copy_(0, self._slots, k[0].transpose(0, 1))
        values.index_copy_(0, self._slots, v[0].transpose(0, 1))
        return attend_tiles(
            self._plan,
            q[0].transpose(0, 1).contiguous(),
            keys,
            values,
            self._arena.positions,
            scale,
            turn=self._turn,
            slopes=self._slopes,
            window=window,
            softcap=softcap,
        ).unsqueeze(0)
