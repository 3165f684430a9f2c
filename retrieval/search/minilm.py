"""The bundled embedder: a BERT encoder of six layers, in compiled code (`bert.c`).

The layers need no padding and are faster for any texts. Passages are encoded in threads of low priority, so that
questions hardly notice. Vectors agree with those of float32 (cosines above .9999), so one index can have both, and
without a compiler (`network`) only speed is lost. The ranker has the same layers, some with weights of its own.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from durable import FLAGS, load_compiled
from retrieval.search.bundled import (
    EPSILON,
    HEAD,
    WORDS,
    BundledTokenizer,
    Floats,
    Weights,
    bundled_folder,
    bundled_weights,
    layers_of,
)

if TYPE_CHECKING:
    from retrieval.search.network import NetworkEncoder

SOURCE = Path(__file__).with_name("bert.c")
PANEL, MOST_WEIGHT = 16, 1023  # as in bert.c, like HEAD
_TINY = np.finfo(np.float32).tiny

_Pointer, _Int = ctypes.c_void_p, ctypes.c_int32


class _LinearC(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("weights", "scales", "bias")),
        *((name, _Int) for name in ("inputs", "outputs")),
    )


class _LayerC(ctypes.Structure):
    _fields_ = (*((name, _LinearC) for name in ("qkv", "out", "up", "down")), ("norms", _Pointer))


class _NetworkC(ctypes.Structure):
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
    """The packed layers of an encoder on the CPU. hidden: length of a token's vector. Safe to use from any thread."""

    def __init__(self, weights: Weights, library: ctypes.CDLL, threads: int) -> None:
        self._run, self._threads, self.hidden = library.warmdesk_encode, threads, weights[WORDS].shape[1]
        self._kept: list[npt.NDArray[np.generic]] = []  # what the compiled code points to
        layers = [self._layer(weights, name) for name in layers_of(weights)]
        self._packed = (_LayerC * len(layers))(*layers)
        places, kinds, *norm = (
            weights[f"embeddings.{name}"]
            for name in (
                "position_embeddings.weight",
                "token_type_embeddings.weight",
                "LayerNorm.weight",
                "LayerNorm.bias",
            )
        )
        self._network = _NetworkC(
            words=self._keep(weights[WORDS]),
            places=self._keep(places + kinds[0]),
            norms=self._keep(np.stack(norm)),
            layers=ctypes.addressof(self._packed),
            num_layers=len(layers),
            hidden=self.hidden,
            epsilon=EPSILON,
        )

    def states(self, texts: Sequence[Sequence[int]], *, of_question: bool) -> list[Floats]:
        """Return the vectors of all tokens of each text, `[tokens, hidden]`. texts: token ids, at most 512 each. Raises
        MemoryError.
        """
        starts = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        ids = np.fromiter(chain.from_iterable(texts), np.int32, starts[-1])
        states = np.empty((len(ids), self.hidden), np.float32)
        inputs = [_Pointer(array.ctypes.data) for array in (ids, starts)]
        how = (self._threads, of_question, _Pointer(states.ctypes.data))
        if self._run(ctypes.byref(self._network), *inputs, len(texts), *how):
            raise MemoryError("no memory to encode texts")
        return np.split(states, starts[1:-1])

    def means(self, texts: Sequence[Sequence[int]], *, of_question: bool) -> Floats:
        """Return the mean of the tokens' vectors of each text, `[texts, hidden]`. texts, Raises: see `states`."""
        return np.stack([states.mean(axis=0) for states in self.states(texts, of_question=of_question)])

    def _layer(self, weights: Weights, name: str) -> _LayerC:
        def linear(*parts: str) -> _LinearC:
            both = ([weights[f"{name}.{part}.{kind}"] for part in parts] for kind in ("weight", "bias"))
            return self._linear(*both)

        joined = ("attention.output.LayerNorm", "output.LayerNorm")
        norms = [weights[f"{name}.{part}.{kind}"] for part in joined for kind in ("weight", "bias")]
        return _LayerC(
            qkv=linear(*(f"attention.self.{part}" for part in ("query", "key", "value"))),
            out=linear("attention.output.dense"),
            up=linear("intermediate.dense"),
            down=linear("output.dense"),
            norms=self._keep(np.stack(norms)),
        )

    def _linear(self, weights: Sequence[Floats], biases: Sequence[Floats]) -> _LinearC:
        """Return layers with the same input as one, in the order of bert.c: one head after another."""

        def by_head(parts: Sequence[Floats]) -> Floats:
            rest = parts[0].shape[1:]
            return np.stack([part.reshape(-1, HEAD, *rest) for part in parts], 1).reshape(-1, *rest)

        joined = by_head(weights)
        outputs, inputs = joined.shape
        scales = np.abs(joined).max(1) / np.float32(MOST_WEIGHT)
        numbers = np.rint(joined / np.maximum(scales, _TINY)[:, np.newaxis]).astype(np.int16)
        return _LinearC(
            weights=self._keep(numbers.reshape(-1, PANEL, inputs // 2, 2).swapaxes(1, 2)),
            scales=self._keep(scales),
            bias=self._keep(by_head(biases)),
            inputs=inputs,
            outputs=outputs,
        )

    def _keep(self, array: npt.NDArray[np.generic]) -> int:
        self._kept.append(np.ascontiguousarray(array))
        return self._kept[-1].ctypes.data


@cache
def _library(folder: Path) -> ctypes.CDLL | None:
    return load_compiled(SOURCE, FLAGS, folder, "documents are indexed more slowly")


def encoder_of(weights: Weights, compiled: Compiled | None, *, half: bool = False) -> "FastEncoder | NetworkEncoder":
    """Return an encoder in compiled code; in PyTorch if that is not used, or cannot be compiled. half: see there."""
    library = None if compiled is None else _library(compiled.folder)
    if compiled is not None and library is not None:
        return FastEncoder(weights, library, compiled.threads)
    from retrieval.search.network import NetworkEncoder  # PyTorch takes seconds and 150 MB

    return NetworkEncoder(weights, half=half)


class TextModel:
    """The bundled embedder, with what `SentenceEmbedder` uses of a `SentenceTransformer`."""

    max_seq_length = 512
    """Size of the position table. The files say 256, which would cut off the ends of passages."""

    def __init__(self, compiled: Compiled | None = None) -> None:
        self.tokenizer, self.encoder = BundledTokenizer(), encoder_of(bundled_weights(), compiled, half=True)
        self._model_card_text = (bundled_folder() / "README.md").read_text(encoding="utf-8")

    def get_embedding_dimension(self) -> int:
        return self.encoder.hidden

    def encode_document(self, texts: list[str], **_: object) -> Floats:
        ids = self.tokenizer(texts, truncation=True, max_length=self.max_seq_length)["input_ids"]
        return self.encoder.means(ids, of_question=True)

    encode_query = encode_document
