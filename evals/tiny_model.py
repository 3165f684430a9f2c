"""A language model of a few thousand random numbers, with a tokenizer of bytes: for what does not depend on what a
model says, such as reliability and most tests.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from cache.memory.keys import digest
from cache.model.language_model import LanguageModel
from cache.prompt.parts import Text
from cache.prompt.tokenizer import PLAIN

VOCABULARY = 300
SIZES: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 4096,
    "eos_token_id": 299,
    "bos_token_id": 298,
    "pad_token_id": 299,
}
"""Of a model of any family whose configuration has these names."""


class ByteTokenizer:
    """Bytes as token ids; `<x>` in structural text is one special token (256 + the letter's place)."""

    template = PLAIN
    filler = 0
    sink_prefix: tuple[int, ...] = ()

    def encode(self, run: Sequence[Text]) -> list[int]:
        return [token for piece in run for token in self._piece(piece)]

    def _piece(self, piece: Text) -> list[int]:
        text = piece.text
        if piece.structural and len(text) == 3 and text[0] == "<" and text[2] == ">":
            return [256 + ord(text[1]) - ord("a")]
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < 256).decode(errors="replace")


def tiny_llama() -> LlamaConfig:
    """The smallest shape in which nothing is left out: several layers, grouped heads."""
    return LlamaConfig(**SIZES, num_key_value_heads=2)


def random_weights(config: Any, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' own model with weights large enough that a wrong layout shows."""
    torch.manual_seed(seed)
    hf = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.12)
    return hf


def tiny_model(seed: int = 0) -> LanguageModel:
    """The model for the engine."""
    fingerprint = digest("llama", str(seed))
    return LanguageModel(random_weights(tiny_llama(), seed), ByteTokenizer(), name="llama", fingerprint=fingerprint)
