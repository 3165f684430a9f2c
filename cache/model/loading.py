"""Loading of language models: by name, with or without an adapter, as transformers' own or ready for the engine."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from cache.errors import ModelError
from cache.memory.keys import digest
from cache.model.adapters import merge_adapter
from cache.model.families import find_position_scheme, usable_positions
from cache.model.files import ModelSource, bundled_gguf, find_source, first_line
from cache.model.language_model import LanguageModel
from cache.model.rounding import Weights, check_rounding, round_weights
from cache.native.decoder import PackedWeights
from cache.prompt.model_tokenizer import ModelTokenizer


def load_model(
    name: str | None,
    *,
    device: str,
    converted: Path,
    dtype: torch.dtype | None = None,
    adapter: Path | None = None,
    weights: Weights = "model",
) -> LanguageModel:
    """Load a model by name: None (bundled), a folder, a `.gguf` file, or a name on the hub. converted: folder for
    dequantised GGUF files and compiled code. adapter: folder of a LoRA adapter to be merged; part of the fingerprint.
    weights: those of 8 bits make another fingerprint; on a CPU they are those of compiled code, if there is any, else
    see `cache.model.rounding`. Raises ModelError.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    place = find_device(device)
    check_rounding(weights, place)
    hf, tokenizer, fingerprint = load_stock(name, device=place, converted=converted, dtype=dtype)
    if adapter is not None:
        hf, adapted = merge_adapter(hf, adapter)
        fingerprint = digest(fingerprint, adapted)
    packed: PackedWeights = "model"
    if weights == "int8" and place.type == "cpu":
        packed = "int8"
    elif weights != "model":
        fingerprint = digest(fingerprint, round_weights(hf, weights))
    return LanguageModel(
        hf,
        wrap_tokenizer(tokenizer, name),
        name=name or bundled_gguf().stem,
        fingerprint=fingerprint,
        compiled=converted,
        weights=packed,
    )


def load_stock(
    name: str | None, *, device: torch.device, converted: Path, dtype: torch.dtype | None = None
) -> tuple[Any, Any, str]:
    """Transformers' own model and tokenizer, untouched, and a fingerprint of the weights, which go from their files
    straight to the device. Raises ModelError.
    """
    source = find_source(name, converted)
    tokenizer = source.load(AutoTokenizer)
    hf = source.load(
        AutoModelForCausalLM, dtype=dtype or default_dtype(device), use_safetensors=True, device_map={"": device}
    )
    return hf, tokenizer, source.fingerprint or f"hub:{name}@{getattr(hf.config, '_commit_hash', None)}"


def load_tokenizer(name: str | None, *, converted: Path) -> tuple[ModelTokenizer, int]:
    """A model's tokenizer and its usable positions, without its weights. Raises ModelError."""
    transformers_logging.set_verbosity_error()
    source = find_source(name, converted)
    return wrap_tokenizer(source.load(AutoTokenizer), name), usable_positions(source.load(AutoConfig))


def wrap_tokenizer(tokenizer: Any, name: str | None) -> ModelTokenizer:
    """A tokenizer of transformers as the engine uses it. Raises ModelError for one it cannot use."""
    try:
        return ModelTokenizer(tokenizer)
    except ValueError as error:
        raise ModelError(f"model {name!r}: {error}") from error


def folder_placement_problem(folder: Path) -> str:
    """Why modules of the model in a folder cannot be placed; empty if they can. Raises ModelError."""
    config = ModelSource(str(folder), True, "").load(AutoConfig)
    return find_position_scheme(config, str(folder))[1]


def find_device(device: str) -> torch.device:
    """A device by name. Raises ModelError if PyTorch cannot use it here."""
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"device {device!r} cannot be used ({first_line(error)}): try --device cpu") from error
    return found


def default_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where it is fast (twice float32 on processors that have it), else float32."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    supported = hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported") and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if supported else torch.float32
