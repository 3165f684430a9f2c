"""Attention of query rows over one extent, with its log-sum-exp: the kernels behind one signature.

Both are exact. `flash_cpu` is PyTorch's own CPU flash attention; `matmul` is the reference, and what runs on any
other device. Shapes: G query heads share one of H key/value heads; n query rows, L keys, head size D.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Kernel = Callable[[Tensor, Tensor, Tensor, bool, float], tuple[Tensor, Tensor]]
"""(q [H, n, G, D], k [L, H, D], v [L, H, D], causal, scale) -> (out [H, n, G, D], lse float32 [H, n, G])."""


def matmul(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Reference: scores in float32, softmax, weighted sum. causal needs n == L."""
    scores = torch.einsum("hngd,lhd->hngl", q.float(), k.float()) * scale
    if causal:
        future = torch.ones(q.shape[1], k.shape[0], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future[None, :, None, :], float("-inf"))
    lse = scores.logsumexp(-1)
    out = torch.einsum("hngl,lhd->hngd", (scores - lse.unsqueeze(-1)).exp(), v.float())
    return out.to(q.dtype), lse


def flash_cpu(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """PyTorch's CPU flash attention. The query group is folded into rows, so that one product serves all heads of
    a group; a causal square instead takes the group as a batch, over keys with stride 0.
    """
    h, n, g, d = q.shape
    keys, values = k.transpose(0, 1).unsqueeze(0), v.transpose(0, 1).unsqueeze(0)  # [1, H, L, D], no copy
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if causal:
        rows = q.permute(2, 0, 1, 3)  # [G, H, n, D]
        out, lse = flash(rows, keys.expand(g, -1, -1, -1), values.expand(g, -1, -1, -1), 0.0, True, scale=scale)
        return out.permute(1, 2, 0, 3), lse.permute(1, 2, 0)
    out, lse = flash(q.reshape(1, h, n * g, d), keys, values, 0.0, False, scale=scale)
    return out[0].unflatten(1, (n, g)), lse[0].unflatten(1, (n, g))


def default_kernel(device: torch.device) -> Kernel:
    """The fastest kernel this build of PyTorch offers for the device."""
    if device.type == "cpu" and hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
        return flash_cpu
    return matmul


KERNELS: dict[str, Kernel] = {"matmul": matmul, "flash_cpu": flash_cpu}
