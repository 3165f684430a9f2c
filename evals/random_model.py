"""A model of the shape of Qwen2.5-0.5B with random weights: speed does not depend on what weights say."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from cache.model.loading import default_dtype

NAME = "0.5B shape, random"
SHAPE = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
}


def half_billion() -> Any:
    """transformers' own model on the CPU, with the same weights in every call."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(Qwen2Config(**SHAPE), dtype=default_dtype(torch.device("cpu"))).eval()
