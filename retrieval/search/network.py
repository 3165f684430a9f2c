"""The bundled embedder's layers in PyTorch, for training the ranker, and for use without a C compiler.

Results equal those of sentence-transformers with transformers' `BertModel`. Parameters are named as in the file. Out of
scope: dropout.
"""

import threading
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from retrieval.search.minilm import EPSILON, HEAD, Floats, Weights, layers_of

M = TypeVar("M", bound=nn.Module)


class _Parts(nn.ModuleDict):
    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name)


def _filled(module: M, weights: Weights, name: str) -> M:
    """Return a module with its weights from the file. module: small, because PyTorch fills it with random numbers."""
    for part in dict(module.named_parameters()):
        setattr(module, part, nn.Parameter(torch.from_numpy(weights[f"{name}.{part}"])))
    return module


def _linear(weights: Weights, name: str) -> nn.Linear:
    return _filled(nn.Linear(1, 1), weights, name)


def _norm(weights: Weights, name: str) -> nn.LayerNorm:
    return _filled(nn.LayerNorm(len(weights[f"{name}.bias"]), EPSILON), weights, name)


class _Layer(nn.Module):
    def __init__(self, weights: Weights, name: str) -> None:
        super().__init__()

        def joined(part: str) -> _Parts:
            dense, norm = _linear(weights, f"{name}.{part}.dense"), _norm(weights, f"{name}.{part}.LayerNorm")
            return _Parts({"dense": dense, "LayerNorm": norm})

        own = {part: _linear(weights, f"{name}.attention.self.{part}") for part in ("query", "key", "value")}
        self.attention = _Parts({"self": _Parts(own), "output": joined("attention.output")})
        self.intermediate = _Parts({"dense": _linear(weights, f"{name}.intermediate.dense")})
        self.output = joined("output")

    def forward(self, states: Tensor, seen: Tensor | None) -> Tensor:
        linear, output = self.attention["self"], self.attention["output"]
        q, k, v = (linear[name](states).unflatten(-1, (-1, HEAD)).transpose(1, 2) for name in ("query", "key", "value"))
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        states = output["LayerNorm"](output["dense"](attended.transpose(1, 2).flatten(2)) + states)
        inner = functional.gelu(self.intermediate["dense"](states))
        joined: Tensor = self.output["LayerNorm"](self.output["dense"](inner) + states)
        return joined


_GROUPS = 4  # of texts of similar length


class MiniLM(nn.Module):
    """The encoder, without its pooler. hidden: length of a token's vector."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        names = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        tables = {name: _filled(nn.Embedding(1, 1), weights, f"embeddings.{name}") for name in names}
        layers = [_Layer(weights, name) for name in layers_of(weights)]
        self.embeddings = _Parts({**tables, "LayerNorm": _norm(weights, "embeddings.LayerNorm")})
        self.encoder = _Parts({"layer": nn.ModuleList(layers)})
        self.hidden: int = self.embeddings["LayerNorm"].normalized_shape[0]

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors of tokens `[texts, tokens, hidden]`. mask: `[texts, tokens]`, 0 for padding."""
        table = self.embeddings
        states: Tensor = table["word_embeddings"](ids) + table["token_type_embeddings"].weight[0]
        states = table["LayerNorm"](states + table["position_embeddings"].weight[: ids.shape[1]])
        seen = None if mask.all() else mask[:, None, None, :].bool()
        for layer in self.layers:
            states = layer(states, seen)
        return states

    def read(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors as `forward` does, with zeros for padding. Texts of similar length form a batch, because
        otherwise two fifths of a training batch would be padding.
        """
        lengths = mask.sum(1)
        order = lengths.argsort()
        parts: list[Tensor] = []
        for rows in order.chunk(_GROUPS):
            width = min(-(-int(lengths[rows].max()) // MULTIPLE) * MULTIPLE, ids.shape[1])
            states = self(ids[rows, :width], mask[rows, :width])
            parts.append(functional.pad(states, (0, 0, 0, ids.shape[1] - width)))
        return torch.cat(parts)[order.argsort()]

    @property
    def layers(self) -> nn.ModuleList:
        return cast("nn.ModuleList", self.encoder["layer"])


MULTIPLE = 8  # texts are padded to multiples of this length, because torch caches kernels for every length


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return token ids padded with 0 and their mask, both `[texts, tokens]`."""
    width = -(-max(map(len, rows)) // MULTIPLE) * MULTIPLE
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    return ids, (torch.arange(width) < torch.tensor([len(row) for row in rows]).unsqueeze(1)).long()


def is_half_fast() -> bool:
    """Return whether bfloat16 is nearly twice as fast on this CPU. Its vectors have cosines above .998 to float32."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class NetworkEncoder:
    """A `MiniLM` with the interface of `FastEncoder`. Safe to use from any thread."""

    def __init__(self, weights: Weights, *, half: bool) -> None:
        """half: use half precision if it is faster."""
        network = MiniLM(weights).eval().requires_grad_(False)
        self._network = network.bfloat16() if half and is_half_fast() else network
        self.hidden, self._lock = network.hidden, threading.Lock()

    @torch.inference_mode()
    def states(self, texts: Sequence[Sequence[int]], *, of_question: bool) -> list[Floats]:
        with self._lock:
            states = self._network.read(*padded(texts)).float().numpy()
        return [found[: len(ids)] for found, ids in zip(states, texts, strict=True)]

    @torch.inference_mode()
    def means(self, texts: Sequence[Sequence[int]], *, of_question: bool) -> Floats:
        ids, mask = padded(texts)
        with self._lock:
            states = self._network(ids, mask)
        counted = mask.unsqueeze(-1).to(states.dtype)
        mean = (states * counted).sum(1, dtype=torch.float32) / counted.sum(1, dtype=torch.float32)
        unit: Floats = functional.normalize(mean.to(states.dtype), dim=-1).float().numpy()
        return unit
