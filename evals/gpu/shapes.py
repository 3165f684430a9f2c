"""Models of known shapes with random weights, made on the device itself: speed does not depend on what weights say.

Nothing is downloaded. The tokenizer has a word for each token id, so that text comes out of a real one.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, models
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

Shape = Literal["8b", "4b", "0.5b", "bundled", "tiny"]

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "8b": lambda: LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131_072,
        rope_parameters=LLAMA3_ROPE,
    ),
    "4b": lambda: Qwen3Config(
        vocab_size=151_936,
        hidden_size=2560,
        intermediate_size=9728,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        tie_word_embeddings=True,
    ),
    "0.5b": lambda: Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    ),
    "tiny": lambda: LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
    ),
}
NAMES: dict[Shape, str] = {
    "8b": "Llama 3.1 8B, random",
    "4b": "Qwen3 4B, random",
    "0.5b": "Qwen2.5 0.5B, random",
    "bundled": "the bundled model",
    "tiny": "tiny, random",
}


def random_model(shape: Shape, device: torch.device, dtype: torch.dtype) -> Any:
    """transformers' own model with the same weights in every call on the same kind of device."""
    torch.manual_seed(0)
    with device:
        return AutoModelForCausalLM.from_config(CONFIGS[shape](), dtype=dtype).eval()


def word_tokenizer(vocabulary: int) -> Any:
    """A tokenizer of transformers with so many words; the first one stands for unknown text."""
    words = {f"t{number}": number for number in range(vocabulary)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "t0")), unk_token="t0")


def twin(hf: Any) -> Any:
    """Another model of transformers over the same tensors, which what changes the modules of one leaves as it is."""
    return deepcopy(hf, {id(tensor): tensor for tensor in tensors_of(hf)})


def tensors_of(hf: nn.Module) -> list[torch.Tensor]:
    """Parameters and buffers."""
    return [*hf.parameters(), *hf.buffers()]
