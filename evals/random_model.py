"""Models with random weights: speed does not depend on what weights say, and which modules are reused neither."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

from cache.memory.arena import KVShape
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


def save_small(folder: Path) -> tuple[Path, KVShape]:
    """A model of a few layers with a tokenizer of bytes, in a folder; what its keys and values take in float32."""
    torch.manual_seed(0)
    layers, heads, head_dim = 2, 4, 16
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=heads * head_dim,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=4096,
        bos_token_id=298,
        eos_token_id=299,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder, KVShape(layers=layers, kv_heads=heads, head_dim=head_dim, dtype=torch.float32)
