"""A forward pass whose attention runs in the kernels for GPUs: two launches in each layer, whatever its items are.

Does what `cache.attention.forward_pass.Pass` does, rotation, ALiBi, sliding windows and soft caps too. Not covered:
scoring.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cache.attention.forward_pass import PassGivenUp, Rotation, never
from cache.attention.items import Chunk
from cache.gpu.tiles import plan_tiles
from cache.gpu.triton_kernels import attend_tiles
from cache.memory.arena import Arena


class TiledPass:
    """One packed forward pass over an arena, in which it notes the rows' position ids. heads: query heads of the model.
    Chunks with offsets need a rotation or ALiBi slopes, float32 `[H]`. give_up: asked at every layer. most_keys: see
    `plan_tiles`.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        arena: Arena,
        heads: int,
        *,
        rotation: Rotation | None = None,
        slopes: Tensor | None = None,
        give_up: Callable[[], bool] = never,
        most_keys: int | None = None,
    ) -> None:
        device = arena.device
        self._arena, self._slopes, self._give_up = arena, slopes, give_up
        self._plan = plan_tiles(chunks, heads // arena.shape.kv_heads, device, most_keys)
        self.positions, self._slots = self._plan.positions.long(), self._plan.slots.long()
        arena.positions.index_copy_(0, self._slots, self.positions)
        self._turn: tuple[Tensor, Tensor] | None = None
        if self._plan.turns and slopes is None:
            assert rotation is not None, "this model's modules cannot be moved"
            angles = torch.stack(rotation.angles(torch.tensor(self._plan.turns))).squeeze(2)
            cos, sin = angles.to(device).unbind()
            self._turn = cos, sin

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
        """As `RunningPass.attend`."""
        if self._give_up():
            raise PassGivenUp
        self._arena.await_layer(layer)
        keys, values = self._arena.keys[layer], self._arena.values[layer]
        keys.index_copy_(0, self._slots, k[0].transpose(0, 1))
        values.index_copy_(0, self._slots, v[0].transpose(0, 1))
        with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]  # Triton launches on the current device
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
