"""Loading of language models: by name, with or without an adapter, as transformers' own or ready for the engine.

Where a model's files are is found in `cache.model.files`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen2Config
from transformers.utils import logging as transformers_logging

from cache.errors import ModelError
from cache.memory.keys import digest
from cache.model.adapters import merge_adapter
from cache.model.families import find_position_scheme, usable_positions
from cache.model.files import ModelSource, bundled_gguf, explained, find_source
from cache.model.language_model import LanguageModel
from cache.prompt.model_tokenizer import ModelTokenizer


def load_model(
    name: str | None, *, device: str, converted: Path, dtype: torch.dtype | None = None, adapter: Path | None = None
) -> LanguageModel:
    """Load a model by name: None for the bundled one, a folder, a `.gguf` file, or a name on the model hub. converted:
    folder for dequantised GGUF files. adapter: folder of a LoRA adapter that is merged into the weights and becomes
    part of the fingerprint. Raises ModelError that says what to do.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    target = find_device(device)
    hf, tokenizer, fingerprint = load_stock(name, device=target, converted=converted, dtype=dtype)
    if adapter is not None:
        hf, adapted = merge_adapter(hf, adapter)
        fingerprint = digest(fingerprint, adapted)
    try:
        wrapped = ModelTokenizer(tokenizer)
    except ValueError as error:
        raise ModelError(f"model {name!r}: {error}") from error
    return LanguageModel(hf, wrapped, name=name or bundled_gguf().stem, fingerprint=fingerprint)


def load_stock(
    name: str | None, *, device: torch.device, converted: Path, dtype: torch.dtype | None = None
) -> tuple[Any, Any, str]:
    """Transformers' own model and tokenizer, untouched, and a fingerprint of the weights. Raises ModelError."""
    dtype = dtype or default_dtype(device)
    source = find_source(name, converted)
    with explained(source):
        tokenizer = AutoTokenizer.from_pretrained(source.place, local_files_only=source.is_local)
        hf = AutoModelForCausalLM.from_pretrained(
            source.place, dtype=dtype, local_files_only=source.is_local, use_safetensors=True
        )
        hf = hf.to(device)
    return hf, tokenizer, source.fingerprint or f"hub:{name}@{getattr(hf.config, '_commit_hash', None)}"


def load_tokenizer(name: str | None, *, converted: Path) -> tuple[ModelTokenizer, int]:
    """A model's tokenizer and its usable positions, without its weights. Raises ModelError."""
    transformers_logging.set_verbosity_error()
    source = find_source(name, converted)
    with explained(source):
        tokenizer = AutoTokenizer.from_pretrained(source.place, local_files_only=source.is_local)
        config = AutoConfig.from_pretrained(source.place, local_files_only=source.is_local)
        return ModelTokenizer(tokenizer), usable_positions(config)


def folder_placement_problem(folder: Path) -> str:
    """Why modules of the model in a folder cannot be placed; empty if they can. Raises ModelError."""
    source = ModelSource(str(folder), True, "")
    with explained(source):
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    return find_position_scheme(config, source.place)[1]


def random_model(shape: Mapping[str, int], tokenizer: ModelTokenizer, *, name: str) -> LanguageModel:
    """A Qwen2 model of a shape (fields of Qwen2Config) with random weights, on the CPU: to measure speed with."""
    torch.manual_seed(0)
    config = Qwen2Config(**shape)
    hf = AutoModelForCausalLM.from_config(config, dtype=default_dtype(torch.device("cpu")))
    return LanguageModel(hf, tokenizer, name=name, fingerprint=digest("random", repr(sorted(shape.items()))))


def find_device(device: str) -> torch.device:
    """A device by name. Raises ModelError if PyTorch cannot use it here."""
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"device {device!r} cannot be used ({reason}): try --device cpu") from error
    return found


def default_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where it is fast (twice float32 on processors that have it), else float32."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    supported = hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported") and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if supported else torch.float32
