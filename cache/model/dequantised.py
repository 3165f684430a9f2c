"""Load GGUF files as transformers' own models, with weights in floating point: for GPUs, training, and tests.

The model is built from the file's metadata because transformers drops the rope scaling of GGUF files. It is not stored.
Llama, Mistral, Qwen 2 and Qwen 3 are supported; others run packed only (`packed_model`).
"""

from typing import Any

import torch
import transformers

from cache.errors import ModelError
from cache.model.gguf_file import GGUFFile, Values, ends_of, module_of, why_not_packed
from cache.model.packed_model import NORMS, numbers_of, rotation_of, unturned

ARCHITECTURES = ("llama", "qwen2", "qwen3")
HF_NORMS = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
}
OTHERS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def config_of(file: GGUFFile) -> Any:
    """Return transformers' configuration of a supported file, without the scaling of its rotary frequencies."""
    values = Values(file)
    return transformers.AutoConfig.for_model(
        values.architecture,
        vocab_size=file.tensors["token_embd.weight"].shape[0],
        hidden_size=values["embedding_length"],
        intermediate_size=values["feed_forward_length"],
        num_hidden_layers=values["block_count"],
        num_attention_heads=values["attention.head_count"],
        num_key_value_heads=values.kv_heads,
        head_dim=values.head_dim,
        max_position_embeddings=values.positions,
        rms_norm_eps=values["attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": values.get("rope.freq_base", 10000.0)},
        tie_word_embeddings="output.weight" not in file.tensors,
        eos_token_id=sorted(ends_of(file.metadata)) or None,
        bos_token_id=file.metadata.get("tokenizer.ggml.bos_token_id"),
    )


def dequantised(file: GGUFFile, name: str, dtype: torch.dtype, device: torch.device) -> Any:
    """Return transformers' model with the weights of a file. Raises ModelError for an unsupported file."""
    values, reason = Values(file), why_not_packed(file)
    if reason or values.architecture not in ARCHITECTURES or values.rotary != values.head_dim:
        raise ModelError(
            f"model file {name!r} cannot be dequantised: {reason or f'architecture {values.architecture!r}'}. "
            "Use a folder of safetensors"
        )
    with torch.device("meta"):
        hf = transformers.AutoModelForCausalLM.from_config(config_of(file), dtype=dtype).eval()
    state = {}
    for name_in_file, tensor in file.tensors.items():
        block, _, kind = name_in_file.rpartition(".")
        if (place := module_of(block) or place_of(block)) == "":
            continue  # factors of rotary frequencies
        numbers = numbers_of(tensor)
        if values.architecture == "llama" and block.endswith(("attn_q", "attn_k")):
            numbers = unturned(numbers, values.head_dim)
        state[f"{place}.{kind}"] = numbers.to(device, dtype)
        file.forget(tensor)
    hf.load_state_dict(state, strict=False, assign=True)
    hf.tie_weights()
    rotary: Any = hf.model.rotary_emb
    frequencies, rotary.attention_scaling = rotation_of(file, values)
    rotary.inv_freq = rotary.original_inv_freq = frequencies.to(device)
    return hf


def place_of(block: str) -> str:
    layer, _, kind = block.removeprefix("blk.").rpartition(".")
    place = next((HF_NORMS[key] for key, name in NORMS.items() if name == kind and key in HF_NORMS), "")
    return f"model.layers.{layer}.{place}" if layer and place else OTHERS.get(block, "")
