"""Kernels: attention of query rows over one extent, with its log-sum-exp.

Both are exact. `flash_cpu` is PyTorch's CPU flash attention. `matmul` is the reference; it runs on other devices and
for scores with a soft cap. Shapes: G query heads share one of H key/value heads; n query positions, L keys, head size
D.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Kernel = Callable[[Tensor, Tensor, Tensor, int, bool, float, Tensor | None], tuple[Tensor, Tensor]]
"""(q [1, H, n*G, D], k [1, H, L, D], v [1, H, L, D], G, causal, scale, bias) -> (out as q, lse float32 [1, H, n*G]).

The query heads of a key/value head are folded into rows, G rows per query position, so that one product serves them
all. causal needs n == L. bias: float32 [1, H or 1, n or 1, L], added to the scaled scores, or None.
"""

HIDDEN = -1e30
"""Bias of a hidden key. Finite, so that a row without any visible key does not give NaN: its log-sum-exp is so low that
its weight is exactly 0 when it is merged with a part in which the row sees a key.
"""


def matmul(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: int,
    causal: bool,
    scale: float,
    bias: Tensor | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The reference: scores in float32, softmax, weighted sum. softcap: scores s become softcap * tanh(s / softcap)."""
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    if bias is not None:
        scores = scores + (bias if bias.shape[2] == 1 else bias.repeat_interleave(group, dim=2))
    if causal:
        future = torch.ones(k.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future.repeat_interleave(group, dim=0), float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(q.dtype), scores.logsumexp(-1)


def flash_cpu(
    q: Tensor, k: Tensor, v: Tensor, group: int, causal: bool, scale: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """PyTorch's CPU flash attention. Its causal mask, and a bias that differs between query positions, do not fit
    folded rows: then the group becomes a batch over keys with stride 0.
    """
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if not causal and (bias is None or bias.shape[2] == 1):
        out, lse = flash(q, k, v, 0.0, False, attn_mask=bias, scale=scale)
        return out, lse
    h, d = k.shape[1], k.shape[3]
    rows = q.view(h, -1, group, d).permute(2, 0, 1, 3)  # [G, H, n, D]
    out, lse = flash(
        rows, k.expand(group, -1, -1, -1), v.expand(group, -1, -1, -1), 0.0, causal, attn_mask=bias, scale=scale
    )
    return out.permute(1, 2, 0, 3).reshape(q.shape), lse.permute(1, 2, 0).reshape(1, h, -1)


def default_kernel(device: torch.device) -> Kernel:
    if device.type == "cpu" and hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
        return flash_cpu
    return matmul
