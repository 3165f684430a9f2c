"""BLOOM and MPT attending over an arena. transformers has no hook for their attention modules. So each of these is
replaced by one that projects with the original's layers and attends with the running pass, and the models no longer
build masks and biases: nothing would read them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from cache.attention.forward_pass import RunningPass


class AlibiAttention:
    """Takes over the attention of a BLOOM or MPT model. running: the pass to attend with, set before each forward.
    slopes: float32 `[H]`, how much a head's score falls per position id.
    """

    def __init__(self, hf: Any) -> None:
        self.running: RunningPass | None = None
        model, heads = hf.transformer, hf.config.num_attention_heads
        if hf.config.model_type == "bloom":
            two = torch.ones(1, 2, dtype=torch.int64, device=hf.device)
            bias = model.build_alibi_tensor(two, heads, torch.float32)
            model.build_alibi_tensor = lambda mask, heads, dtype: mask
            for block in model.h:
                block.self_attention = BloomAttention(block.self_attention, self)
        else:
            bias = model.build_mpt_alibi_tensor(heads, 2, device=hf.device)
            model.build_mpt_alibi_tensor = lambda heads, length, device: None
            for block in model.blocks:
                block.attn = MptAttention(block.attn, self)
        self.slopes: Tensor = bias[:, 0, 1] - bias[:, 0, 0]
        self._mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=hf.device)

    def options(self, running: RunningPass) -> dict[str, Any]:
        """Arguments for the model's forward: a mask of one element, which the model passes on and nothing reads."""
        self.running = running
        return {"attention_mask": self._mask}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """As `Pass.attend`, with the heads joined: `[1, T, H*D]`."""
        assert self.running is not None
        return self.running.attend(layer, q, k, v, scale).flatten(2)


class ReplacedAttention(nn.Module):
    """In place of transformers' module of the same name; `own` is that module."""

    def __init__(self, own: Any, alibi: AlibiAttention) -> None:
        super().__init__()
        self.own, self._alibi = own, alibi


class BloomAttention(ReplacedAttention):
    """Attention of a BLOOM layer."""

    def forward(self, hidden_states: Tensor, residual: Tensor, **_: Any) -> tuple[Tensor, None]:
        """Both `[1, T, hidden]`; returns the residual plus what was attended to, `[1, T, hidden]`."""
        own = self.own
        fused = own.query_key_value(hidden_states).unflatten(-1, (own.num_heads, 3, -1))  # [1, T, H, 3, D]
        q, k, v = fused.permute(3, 0, 2, 1, 4)
        return residual + own.dense(self._alibi.attend(own.layer_idx, q, k, v, own.inv_norm_factor)), None


class MptAttention(ReplacedAttention):
    """Attention of an MPT layer."""

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        """`[1, T, hidden]`; returns what was attended to, `[1, T, hidden]`."""
        own = self.own
        fused = own.Wqkv(hidden_states)
        if own.clip_qkv:
            fused = fused.clamp(min=-own.clip_qkv, max=own.clip_qkv)
        q, k, v = fused.unflatten(-1, (3, own.n_heads, -1)).permute(2, 0, 3, 1, 4)
        return own.out_proj(self._alibi.attend(own.layer_idx, q, k, v, own.softmax_scale)), None
