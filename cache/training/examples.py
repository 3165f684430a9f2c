"""Training examples for modular attention, and their forward pass with gradients in a transformers model.

An example is packed into one row of tokens like a request: a conditioning prefix, modules, and queries. Each module
sees the prefix, its own left context and itself. Each query is a question with its answer; it sees the prefix and all
modules. For full attention, each module also sees the modules before it. Rows and positions are the same as in the
engine. Rotary models only: keys of a module are rotated to the position at which queries see them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from cache.attention.forward_pass import Rotation
from cache.errors import ModelError
from cache.model.info import why_not_placeable
from cache.model.language_model import find_rotation

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingQuery:
    """Token ids of a question and its answer. question: up to the start of the answer. answer: complete with its end
    token, or only the first part. refused: the answer is a refusal.
    """

    question: TokenIds
    answer: TokenIds
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingExample:
    """Token ids of one example. modules: in prompt order. left_contexts: tokens before each module during encoding; no
    query sees them. gaps: number of unused position ids before each module.
    """

    prefix: TokenIds
    modules: tuple[TokenIds, ...]
    left_contexts: tuple[TokenIds, ...]
    gaps: tuple[int, ...]
    queries: tuple[TrainingQuery, ...]


@dataclass(frozen=True, slots=True)
class PackedSegment:
    """Rows of a module or of a left context. They see the prefix, the rows `left_context` and themselves. offset:
    distance in position ids from the encoded position to the position that queries see (can be negative); None for a
    left context, because no query sees it.
    """

    left_context: slice
    rows: slice
    offset: int | None


@dataclass(frozen=True, slots=True)
class PackedExample:
    """An example as one row of tokens. tokens, positions: int64 `[1, T]`. prefix: number of rows of the prefix.
    segments: in ascending rows, each shared left context once; empty for full attention. queries: first row of each
    query, and the end of the last. rows: int64 `[A]`, rows whose logits predict the answers' tokens.
    """

    tokens: Tensor
    positions: Tensor
    prefix: int
    segments: tuple[PackedSegment, ...]
    queries: tuple[int, ...]
    rows: Tensor


def pack(example: TrainingExample, *, modular: bool) -> PackedExample:
    """Lay out an example. modular: modules do not see each other; False: full attention at the same position ids."""
    tokens: list[int] = []
    positions: list[int] = []

    def add(new: Sequence[int], start: int) -> slice:
        first = len(tokens)
        tokens.extend(new)
        positions.extend(range(start, start + len(new)))
        return slice(first, len(tokens))

    at = base = add(example.prefix, 0).stop
    nothing = slice(base, base)
    left_contexts: dict[TokenIds, slice] = {(): nothing}
    segments: list[PackedSegment] = []
    for module, left_context, gap in zip(example.modules, example.left_contexts, example.gaps, strict=True):
        at += gap
        if modular:
            if left_context not in left_contexts:
                left_contexts[left_context] = add(left_context, base)
                segments.append(PackedSegment(nothing, left_contexts[left_context], None))
            start = base + len(left_context)
            segments.append(PackedSegment(left_contexts[left_context], add(module, start), at - start))
        else:
            add(module, at)
        at += len(module)
    queries = [len(tokens)]
    rows: list[int] = []
    for query in example.queries:
        queries.append(add((*query.question, *query.answer[:-1]), at).stop)
        rows += range(queries[-1] - len(query.answer), queries[-1])
    ids = torch.tensor([tokens, positions])
    return PackedExample(ids[:1], ids[1:], base, tuple(segments), tuple(queries), torch.tensor(rows))


@dataclass(frozen=True, slots=True)
class ExampleAttention:
    """Data of one forward pass for all layers. Masks and angles are computed in the first layer and stored."""

    packed: PackedExample
    rotation: Rotation
    _masks: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False)
    _angles: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict, init=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Attend with q `[1, H*G, T, D]`, k and v `[1, H, T, D]`, after rotation. Returns `[1, T, H*G, D]`."""
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
        """Return keys `[1, H, L, D]` rotated forward by `offset` position ids."""
        length = k.shape[2]
        if (length, offset) not in self._angles:
            cos, sin = self.rotation.angles(torch.full((length,), -offset))
            self._angles[length, offset] = cos.to(k.device), sin.to(k.device)
        return self.rotation.back(k.unsqueeze(3), *self._angles[length, offset]).squeeze(3)

    def _attend_causal(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Compute causal attention of the last n of L tokens: q `[1, H*G, n, D]` over k and v `[1, H, L, D]`. On a CPU,
        these plain matrix products are faster than PyTorch's fused kernels with masks, mainly in the backward pass.
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
    """Replace transformers' attention function. The model's forward passes the argument `example` on to it."""
    example: ExampleAttention = kwargs["example"]
    scale = kwargs.get("scaling")
    return example.attend(q, k, v, q.shape[-1] ** -0.5 if scale is None else scale), None


EXAMPLE_ATTENTION = "warmdesk-example"


class TrainingModel:
    """A model to train. hf: transformers' rotary model; its attention is replaced. Raises ModelError."""

    def __init__(self, hf: Any) -> None:
        self._rotation = find_rotation(hf)
        if reason := why_not_placeable(hf.config):
            raise ModelError(f"this model cannot encode passages separately, so there is nothing to train: {reason}")
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # takes seconds: only with a model

        ALL_ATTENTION_FUNCTIONS.register(EXAMPLE_ATTENTION, example_attention)
        hf.set_attn_implementation(EXAMPLE_ATTENTION)
        self.hf = hf.eval()

    def logits(self, example: TrainingExample, *, modular: bool) -> Tensor:
        """Return the logits that predict the answers' tokens, query by query: float32 `[A, vocabulary]` on the model's
        device. modular: see `pack`.
        """
        packed, device = pack(example, modular=modular), self.hf.device
        hidden = self.hf.get_decoder()(
            input_ids=packed.tokens.to(device),
            position_ids=packed.positions.to(device),
            use_cache=False,
            example=ExampleAttention(packed, self._rotation),
        ).last_hidden_state
        logits: Tensor = self.hf.get_output_embeddings()(hidden[0, packed.rows.to(device)])
        return logits.float()
