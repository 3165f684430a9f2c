"""Attention of query rows over one extent, with its log-sum-exp: the kernels behind one signature.

Both are exact. `flash_cpu` is PyTorch's own CPU flash attention; `matmul` is the reference, and what runs on any
other device. Shapes: G query heads share one of H key/value heads; n query positions, L keys, head size D.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Kernel = Callable[[Tensor, Tensor, Tensor, int, bool, float], tuple[Tensor, Tensor]]
"""(q [1, H, n*G, D], k [1, H, L, D], v [1, H, L, D], G, causal, scale) -> (out as q, lse float32 [1, H, n*G]).

The group of query heads that shares a key/value head is folded into rows, G rows for each query position, so that one
product serves them all. causal needs n == L.
"""


def matmul(q: Tensor, k: Tensor, v: Tensor, group: int, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Reference: scores in float32, softmax, weighted sum."""
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    if causal:
        future = torch.ones(k.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future.repeat_interleave(group, dim=0), float("-inf"))
    lse = scores.logsumexp(-1)
    out = (scores - lse.unsqueeze(-1)).exp() @ v.float()
    return out.to(q.dtype), lse


def flash_cpu(q: Tensor, k: Tensor, v: Tensor, group: int, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """PyTorch's CPU flash attention. Its causal mask does not fit folded rows, so a causal square takes the group as a
    batch instead, over keys with stride 0.
    """
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if not causal:
        out, lse = flash(q, k, v, 0.0, False, scale=scale)
        return out, lse
    h, length, d = k.shape[1:]
    rows = q.view(h, length, group, d).permute(2, 0, 1, 3)  # [G, H, n, D]
    out, lse = flash(rows, k.expand(group, -1, -1, -1), v.expand(group, -1, -1, -1), 0.0, True, scale=scale)
    return out.permute(1, 2, 0, 3).reshape(q.shape), lse.permute(1, 2, 0).reshape(1, h, length * group)


def default_kernel(device: torch.device) -> Kernel:
    """The fastest kernel this build of PyTorch offers for the device."""
    if device.type == "cpu" and hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
        return flash_cpu
    return matmul


KERNELS: dict[str, Kernel] = {"matmul": matmul, "flash_cpu": flash_cpu}
