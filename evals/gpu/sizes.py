"""What the rows measure: models with random weights, which take the same time as trained ones, and amounts of work.

The amounts are full on a GPU. The tiny ones take a CPU seconds.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, models
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

from evals.speed.models import SHAPE

Size = Literal["full", "tiny"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """cached: tokens of system text and documents that a prompt reuses, in `modules` of them. question: fresh tokens.
    conversations, shared_modules, shared_tokens: that answer at the same time, the modules they share, tokens of each
    module. many, many_tokens: modules of the largest set, tokens of each; asked: requests that count; budgets: modules
    that device and host memory have room for; drawn: modules of a request. repeats: runs of everything timed, at most.
    rounds: of requests to see whether memory grows. copied, product: bytes and width to measure the GPU.
    """

    cached: int = 4096
    modules: int = 8
    question: int = 32
    conversations: int = 64
    shared_modules: int = 16
    shared_tokens: int = 512
    answer: int = 64
    many: int = 20_000
    many_tokens: int = 32
    asked: int = 400
    drawn: int = 4
    budgets: tuple[tuple[int, int], ...] = ((500, 1500), (2000, 4000), (6000, 8000))
    repeats: int = 15
    rounds: int = 20
    copied: int = 2 << 30
    product: int = 8192


SIZES: dict[Size, Sizes] = {
    "full": Sizes(),
    "tiny": Sizes(
        cached=72,
        modules=2,
        question=4,
        conversations=3,
        shared_modules=2,
        shared_tokens=16,
        answer=4,
        many=24,
        many_tokens=8,
        asked=12,
        drawn=2,
        budgets=((4, 4), (8, 8)),
        repeats=2,
        rounds=4,
        copied=1 << 20,
        product=64,
    ),
}


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
    "0.5b": lambda: Qwen2Config(**SHAPE, tie_word_embeddings=True),
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
    torch.manual_seed(0)
    with device:
        return AutoModelForCausalLM.from_config(CONFIGS[shape](), dtype=dtype).eval()


def word_tokenizer(vocabulary: int) -> Any:
    """Return a transformers tokenizer with `vocabulary` words; the first one replaces unknown text."""
    words = {f"t{number}": number for number in range(vocabulary)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "t0")), unk_token="t0")


def twin(hf: Any) -> Any:
    """Copy a transformers model over the same tensors. Changes to the modules of one do not affect the other."""
    return deepcopy(hf, {id(tensor): tensor for tensor in tensors_of(hf)})


def tensors_of(hf: nn.Module) -> list[torch.Tensor]:
    return [*hf.parameters(), *hf.buffers()]
