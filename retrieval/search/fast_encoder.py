"""The bundled network's layers in compiled code (`bert.c`), without padding: faster than PyTorch for any texts.

Vectors agree with those of float32 (cosines above .9999), so one index can have both, and without a compiler only speed
is lost. Out of scope: other networks, which stay with PyTorch.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from durable import FLAGS, load_compiled

if TYPE_CHECKING:
    from retrieval.search.minilm import MiniLM

SOURCE = Path(__file__).with_name("bert.c")
PANEL, MOST_WEIGHT = 16, 1023  # as in bert.c

_Pointer, _Int = ctypes.c_void_p, ctypes.c_int32


class _Linear(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("weights", "scales", "bias")),
        *((name, _Int) for name in ("inputs", "outputs")),
    )


class _Layer(ctypes.Structure):
    _fields_ = (*((name, _Linear) for name in ("qkv", "out", "up", "down")), ("norms", _Pointer))


class FastEncoder:
    """The packed layers of the bundled network on the CPU. Safe to use from any thread."""

    def __init__(self, network: "MiniLM", library: ctypes.CDLL) -> None:
        self._run, self._network = library.warmdesk_encode, network
        self._epsilon = ctypes.c_float(network.embeddings["LayerNorm"].eps)
        self._kept: list[Tensor] = []  # what the compiled code points to
        self._layers = (_Layer * len(network.layers))(*map(self._layer, network.layers))

    def states(self, texts: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
        """Return the vectors of all tokens of each text, `[tokens, hidden]`. texts: token ids. Raises MemoryError."""
        starts = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        ids = torch.tensor([token for text in texts for token in text], dtype=torch.long)
        places = torch.tensor([place for text in texts for place in range(len(text))], dtype=torch.long)
        with torch.inference_mode():
            states: npt.NDArray[np.float32] = self._network.embedded(ids, places).contiguous().numpy()
        threads = torch.get_num_threads()
        layers, at = ctypes.byref(self._layers), [_Pointer(array.ctypes.data) for array in (starts, states)]
        sizes = (len(self._layers), self._network.hidden)
        if self._run(layers, *sizes, self._epsilon, at[0], len(texts), threads, at[1]):
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
        """Return layers with the same input as one, in the order of bert.c."""
        weights = torch.cat([one.weight.detach() for one in linears])
        scales = weights.abs().amax(1) / MOST_WEIGHT
        numbers = (weights / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)).round().to(torch.int16)
        pairs = torch.unflatten(torch.unflatten(numbers, 1, (-1, 2)), 0, (-1, PANEL)).transpose(1, 2)
        return _Linear(
            weights=self._keep(pairs),
            scales=self._keep(scales),
            bias=self._keep(torch.cat([one.bias for one in linears])),
            inputs=weights.shape[1],
            outputs=weights.shape[0],
        )

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor.detach().contiguous())
        return self._kept[-1].data_ptr()


@cache
def _library(folder: Path) -> ctypes.CDLL | None:
    return load_compiled(SOURCE, FLAGS, folder, "documents are indexed more slowly")


def fast_encoder_of(network: "MiniLM", folder: Path | None) -> FastEncoder | None:
    """Return the layers in compiled code, stored in `folder`; None without a folder, or if they cannot be compiled."""
    library = None if folder is None else _library(folder)
    return None if library is None else FastEncoder(network, library)
