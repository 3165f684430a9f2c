"""The bundled network's layers in compiled code (`bert.c`), without padding: faster than PyTorch for any texts.

Passages are encoded in threads of low priority, so that questions hardly notice. Vectors agree with those of float32
(cosines above .9999), so one index can have both, and without a compiler only speed is lost. Out of scope: other
networks, which stay with PyTorch.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from durable import FLAGS, load_compiled

SOURCE = Path(__file__).with_name("bert.c")
PANEL, HEAD, MOST_WEIGHT = 16, 32, 1023  # as in bert.c

_Pointer, _Int = ctypes.c_void_p, ctypes.c_int32


class _Linear(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("weights", "scales", "bias")),
        *((name, _Int) for name in ("inputs", "outputs")),
    )


class _Layer(ctypes.Structure):
    _fields_ = (*((name, _Linear) for name in ("qkv", "out", "up", "down")), ("norms", _Pointer))


class _Network(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("words", "places", "norms", "layers")),
        *((name, _Int) for name in ("num_layers", "hidden")),
        ("epsilon", ctypes.c_float),
    )


class Compiled(NamedTuple):
    """How compiled code is used. folder: for it. threads: of low priority for passages, of the caller's for what a
    question waits for.
    """

    folder: Path
    threads: int


class FastEncoder:
    """The packed layers of a `MiniLM` on the CPU. Safe to use from any thread."""

    def __init__(self, network: Any, library: ctypes.CDLL, threads: int) -> None:
        self._run, self._threads, self._hidden = library.warmdesk_encode, threads, network.hidden
        self._kept: list[Tensor] = []  # what the compiled code points to
        layers = (_Layer * len(network.layers))(*map(self._layer, network.layers))
        table, norm = network.embeddings, network.embeddings["LayerNorm"]
        self._network = _Network(
            words=self._keep(table["word_embeddings"].weight),
            places=self._keep(table["position_embeddings"].weight + table["token_type_embeddings"].weight[0]),
            norms=self._keep(torch.stack([norm.weight, norm.bias])),
            layers=ctypes.addressof(layers),
            num_layers=len(layers),
            hidden=network.hidden,
            epsilon=norm.eps,
        )
        self._packed = layers

    def states(self, texts: Sequence[Sequence[int]], *, of_question: bool) -> list[npt.NDArray[np.float32]]:
        """Return the vectors of all tokens of each text, `[tokens, hidden]`. texts: token ids, at most 512 each. Raises
        MemoryError.
        """
        starts = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        ids = np.fromiter(chain.from_iterable(texts), np.int32, starts[-1])
        states = np.empty((len(ids), self._hidden), np.float32)
        inputs = [_Pointer(array.ctypes.data) for array in (ids, starts)]
        how = (self._threads, of_question, _Pointer(states.ctypes.data))
        if self._run(ctypes.byref(self._network), *inputs, len(texts), *how):
            raise MemoryError("no memory to encode texts")
        return np.split(states, starts[1:-1])

    def _layer(self, layer: Any) -> _Layer:
        own, joined = layer.attention["self"], (layer.attention["output"], layer.output)
        norms = [part for one in joined for part in (one["LayerNorm"].weight, one["LayerNorm"].bias)]
        return _Layer(
            qkv=self._linear(own["query"], own["key"], own["value"]),
            out=self._linear(joined[0]["dense"]),
            up=self._linear(layer.intermediate["dense"]),
            down=self._linear(joined[1]["dense"]),
            norms=self._keep(torch.stack(norms)),
        )

    def _linear(self, *linears: Any) -> _Linear:
        """Return layers with the same input as one, in the order of bert.c: one head after another."""

        def by_head(parts: list[Tensor]) -> Tensor:
            return torch.stack([torch.unflatten(part.detach(), 0, (-1, HEAD)) for part in parts], 1).flatten(0, 2)

        weights = by_head([one.weight for one in linears])
        scales = weights.abs().amax(1) / MOST_WEIGHT
        numbers = (weights / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)).round().to(torch.int16)
        pairs = torch.unflatten(torch.unflatten(numbers, 1, (-1, 2)), 0, (-1, PANEL)).transpose(1, 2)
        return _Linear(
            weights=self._keep(pairs),
            scales=self._keep(scales),
            bias=self._keep(by_head([one.bias for one in linears])),
            inputs=weights.shape[1],
            outputs=weights.shape[0],
        )

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor.detach().contiguous())
        return self._kept[-1].data_ptr()


@cache
def _library(folder: Path) -> ctypes.CDLL | None:
    return load_compiled(SOURCE, FLAGS, folder, "documents are indexed more slowly")


def fast_encoder_of(network: Any, compiled: Compiled | None) -> FastEncoder | None:
    """Return the layers of a `MiniLM` in compiled code; None if it is not used, or cannot be compiled."""
    library = None if compiled is None else _library(compiled.folder)
    return None if compiled is None or library is None else FastEncoder(network, library, compiled.threads)
