"""Differentiable attention over a packed training example: what its prefix, modules and queries see.

Rotary models only: keys of a module are rotated from where they were computed to where queries see them. Not covered:
how examples are laid out in rows (`examples`).
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from cache.attention.forward_pass import Rotation
from cache.training.examples import PackedExample


@dataclass(frozen=True, slots=True)
class ExampleAttention:
    """What every layer of one forward pass needs. Masks and angles are computed in the first layer and kept."""

    packed: PackedExample
    rotation: Rotation
    _masks: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False)
    _angles: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict, init=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """q `[1, H*G, T, D]`, k and v `[1, H, T, D]`, after rotation; returns `[1, T, H*G, D]`."""
        packed = self.packed
        prefix = slice(0, packed.prefix if packed.segments else packed.queries[0])
        outs = [self._attend_causal(q[:, :, prefix], k[:, :, prefix], v[:, :, prefix], scale)]
        placed_keys, placed_values = [k[:, :, prefix]], [v[:, :, prefix]]
        for segment in packed.segments:
            keys, values = (
                torch.cat((x[:, :, prefix], x[:, :, segment.left_context], x[:, :, segment.rows]), 2) for x in (k, v)
            )
            outs.append(self._attend_causal(q[:, :, segment.rows], keys, values, scale))
            if segment.offset is not None:
                placed_keys.append(self._moved(k[:, :, segment.rows], segment.offset))
                placed_values.append(v[:, :, segment.rows])
        context_keys, context_values = torch.cat(placed_keys, 2), torch.cat(placed_values, 2)
        for first, last in pairwise(packed.queries):
            keys = torch.cat((context_keys, k[:, :, first:last]), 2)
            values = torch.cat((context_values, v[:, :, first:last]), 2)
            outs.append(self._attend_causal(q[:, :, first:last], keys, values, scale))
        return torch.cat(outs, 2).transpose(1, 2)

    def _moved(self, k: Tensor, offset: int) -> Tensor:
        """Keys `[1, H, L, D]` rotated forward by `offset` position ids."""
        length = k.shape[2]
        if (length, offset) not in self._angles:
            cos, sin = self.rotation.angles(torch.full((length,), -offset))
            self._angles[length, offset] = cos.to(k.device), sin.to(k.device)
        return self.rotation.back(k.unsqueeze(3), *self._angles[length, offset]).squeeze(3)

    def _attend_causal(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """The last n of L tokens: q `[1, H*G, n, D]` over k and v `[1, H, L, D]`, each token up to itself.

        Plain matrix products: with masks, PyTorch's fused kernels are slower on a CPU, above all backwards.
        """
        heads, rows, length = k.shape[1], q.shape[2], k.shape[2]
        if (rows, length) not in self._masks:
            future = torch.full((rows, length), -torch.inf, dtype=q.dtype, device=q.device)
            self._masks[rows, length] = future.triu(length - rows + 1)
        scores = torch.bmm((q * scale).reshape(heads, -1, q.shape[3]), k[0].transpose(1, 2))
        weights = (scores.view(heads, -1, rows, length) + self._masks[rows, length]).softmax(-1).view(heads, -1, length)
        return torch.bmm(weights, v[0]).view_as(q)


def example_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """What transformers calls in place of its own attention; `example` is given to the model's forward."""
    example: ExampleAttention = kwargs["example"]
    scale = kwargs.get("scaling")
    return example.attend(q, k, v, q.shape[-1] ** -0.5 if scale is None else scale), None
