"""A BERT encoder's layers in compiled code (`bert.c`), several times as fast as PyTorch on processors without bfloat16.

Texts need no padding. Vectors agree with those of float32 (cosines above .9999), so both can stand in one index, and
without a compiler nothing but speed is lost. Out of scope: other networks, which stay with PyTorch.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

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


class FastEncoder:
    """The packed layers of a transformers BERT model on the CPU. Safe to use from any thread."""

    def __init__(self, bert: Any, library: ctypes.CDLL) -> None:
        self._run, self._embeddings = library.warmdesk_encode, bert.embeddings
        self._hidden, self._epsilon = bert.config.hidden_size, ctypes.c_float(bert.config.layer_norm_eps)
        self._kept: list[Tensor] = []  # what the compiled code points to
        self._layers = (_Layer * len(bert.encoder.layer))(*map(self._layer, bert.encoder.layer))

    def states(self, texts: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
        """Return the vectors of all tokens of each text, `[tokens, hidden]`. texts: token ids. Raises MemoryError."""
        starts = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        ids = torch.tensor([[token for text in texts for token in text]], dtype=torch.long)
        places = torch.tensor([[place for text in texts for place in range(len(text))]], dtype=torch.long)
        with torch.inference_mode():
            states: npt.NDArray[np.float32] = self._embeddings(ids, position_ids=places)[0].float().contiguous().numpy()
        threads = torch.get_num_threads()
        layers, at = ctypes.byref(self._layers), (_Pointer(array.ctypes.data) for array in (starts, states))
        if self._run(layers, len(self._layers), self._hidden, self._epsilon, next(at), len(texts), threads, next(at)):
            raise MemoryError("no memory to encode texts")
        return np.split(states, starts[1:-1])

    def _layer(self, layer: Any) -> _Layer:
        attention, norms = layer.attention, (layer.attention.output.LayerNorm, layer.output.LayerNorm)
        return _Layer(
            qkv=self._linear(attention.self.query, attention.self.key, attention.self.value),
            out=self._linear(attention.output.dense),
            up=self._linear(layer.intermediate.dense),
            down=self._linear(layer.output.dense),
            norms=self._keep(torch.stack([part for norm in norms for part in (norm.weight, norm.bias)]).float()),
        )

    def _linear(self, *linears: Any) -> _Linear:
        """Return layers with the same input as one, in the order of bert.c."""
        weights = torch.cat([one.weight.detach() for one in linears]).float()
        scales = weights.abs().amax(1) / MOST_WEIGHT
        numbers = (weights / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)).round().to(torch.int16)
        pairs = torch.unflatten(torch.unflatten(numbers, 1, (-1, 2)), 0, (-1, PANEL)).transpose(1, 2)
        return _Linear(
            weights=self._keep(pairs),
            scales=self._keep(scales),
            bias=self._keep(torch.cat([one.bias.detach() for one in linears]).float()),
            inputs=weights.shape[1],
            outputs=weights.shape[0],
        )

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor.detach().contiguous())
        return self._kept[-1].data_ptr()


@cache
def _library(folder: Path) -> ctypes.CDLL | None:
    return load_compiled(SOURCE, FLAGS, folder, "documents are read more slowly")


def fast_encoder_of(model: Any, folder: Path | None) -> FastEncoder | None:
    """Return a transformers model's layers in compiled code, kept in `folder`; None without, or for other networks."""
    config = model.config
    if folder is None or config.model_type != "bert" or config.hidden_act != "gelu" or model.device.type != "cpu":
        return None
    if config.hidden_size != HEAD * config.num_attention_heads or config.intermediate_size % PANEL:
        return None
    library = _library(folder)
    return None if library is None else FastEncoder(model, library)
