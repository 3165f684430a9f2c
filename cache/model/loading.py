"""Load language models by name, as transformers' own or for the engine, with LoRA adapters and rounded weights.

On a CPU, a GGUF file runs directly (`packed_model`). On other devices it is dequantised at each load (`dequantised`)
and not stored. Only models with a hub name are downloaded. An adapter is an ordinary peft folder that is merged at
load. Its folder `base` has the adapter that it was trained on, if any. On a GPU, torchao rounds linear layers to 8
bits, except the output layer, which decides between close tokens. On a CPU, compiled code rounds all of them.
"""

import json
import logging
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from cache.errors import ModelError
from cache.memory.keys import BASE, CONFIG, adapter_fingerprint, digest
from cache.memory.keys import WEIGHTS as WEIGHTS
from cache.model.gguf_file import why_not_packed
from cache.model.info import Weights
from cache.model.language_model import LanguageModel
from cache.model.packed_model import PackedModel
from cache.model.source import (
    bundled_gguf,
    find_source,
    first_line,
    load_tokenizer,
    open_gguf,
    quiet_transformers,
    stored_digest,
    wrap_tokenizer,
)
from cache.native.decoder import PackedWeights, load_library, why_not_covered
from durable import put_in_place

log = logging.getLogger(__name__)

LEAST_FOR_FP8 = (8, 9)  # minimum compute capability of GPUs with e4m3


def check_rounding(weights: Weights, device: torch.device) -> None:
    """Raise ModelError if the device (or its software) cannot use this weight rounding. Call it before loading."""
    if weights == "model" or (weights == "int8" and device.type == "cpu"):
        return
    if device.type != "cuda":
        raise ModelError(f'weights = "{weights}" needs a GPU, not {device}: set device = "cuda" or weights = "int8"')
    if find_spec("torchao") is None:
        raise ModelError(f'weights = "{weights}" needs torchao on a GPU: pip install torchao, or set weights = "model"')
    major, minor = torch.cuda.get_device_capability(device)
    if weights == "fp8" and (major, minor) < LEAST_FOR_FP8:
        raise ModelError(
            'weights = "fp8" needs a GPU of compute capability 8.9 or higher, '
            f'{device} has {major}.{minor}: set weights = "int8"'
        )


def round_weights(hf: Any, weights: Weights) -> str:
    """Round transformers' model in place, layer by layer. Returns a text for the fingerprint. Raises ModelError."""
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, PerRow, quantize_

    head = hf.get_output_embeddings()
    if not any(isinstance(module, nn.Linear) and module is not head for module in hf.modules()):
        raise ModelError(f'models of type {hf.config.model_type!r} have no weights to round: set weights = "model"')
    kind = Int8WeightOnlyConfig if weights == "int8" else Float8WeightOnlyConfig
    config = kind(granularity=PerRow(), set_inductor_config=False)  # nothing is compiled by torch here
    quantize_(hf, config, filter_fn=lambda module, name: isinstance(module, nn.Linear) and module is not head)
    torch.cuda.empty_cache()  # memory of the unrounded weights; does nothing without a GPU
    return f"torchao {weights} weights, one scale for each output"


def save_adapter(model: Any, folder: Path) -> None:
    """Store an adapter in a folder, in half precision; files are replaced one by one, the weights last."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "saving"
    model.save_pretrained(temporary)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(temporary / WEIGHTS).items()}
    save_file(weights, temporary / WEIGHTS, {"format": "pt"})
    config = json.loads((temporary / CONFIG).read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = None  # it was a path on the training machine
    (temporary / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in (CONFIG, WEIGHTS):
        put_in_place(temporary / name, folder / name)
    shutil.rmtree(temporary, ignore_errors=True)


def keep_base(folder: Path, base: Path | None) -> None:
    """Copy a base adapter into `folder`, whose adapter was trained on it. base: outside `folder`; None: no base."""
    shutil.rmtree(folder / BASE, ignore_errors=True)
    if base is None:
        return
    (folder / BASE).mkdir(parents=True)
    for name in (CONFIG, WEIGHTS):
        shutil.copyfile(base / name, folder / BASE / name)
    keep_base(folder / BASE, base / BASE if (base / BASE).is_dir() else None)


def merge_adapter(hf: Any, folder: Path) -> tuple[Any, str]:
    """Merge an adapter and its base adapters into a model. Returns the model and their fingerprint. Raises ModelError.

    Done at each start. It takes a fraction of a second; a merged copy would need as much disk space as the model.
    """
    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"there is no adapter in {str(folder)!r}: it needs {CONFIG} and {WEIGHTS}")
    if (folder / BASE).is_dir():
        hf, _ = merge_adapter(hf, folder / BASE)
    try:
        if not merge_plain(hf, folder):
            from peft import PeftModel

            hf = PeftModel.from_pretrained(hf, folder).merge_and_unload()
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        raise ModelError(f"adapter {str(folder)!r} does not fit the model ({first_line(error)})") from error
    return hf, adapter_fingerprint(folder)


_PLAIN = {"peft_type": "LORA", "bias": "none", "init_lora_weights": True}
_HARMLESS = frozenset({"base_model_name_or_path", "inference_mode", "lora_alpha", "lora_dropout", "megatron_core"}) | {
    *("peft_version", "qalora_group_size", "r", "revision", "target_modules", "task_type")
}
_ROLE = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


Pair = tuple[torch.Tensor, torch.Tensor]
"""Two matrices of an adapter, float32 `[rank, inputs]` and `[outputs, rank]`. Their product is added to a layer."""


def read_plain(folder: Path) -> dict[str, Pair] | None:
    """Return the matrices of an adapter by layer; its scale is multiplied into the second matrix. Returns None if the
    adapter does more than add products of two matrices.
    """
    config = {**json.loads((folder / CONFIG).read_text(encoding="utf-8"))}
    if any(config.get(key) != value for key, value in _PLAIN.items()):
        return None
    if any(value for key, value in config.items() if key not in _PLAIN.keys() | _HARMLESS):
        return None
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    for name, weight in load_file(folder / WEIGHTS).items():
        if (role := _ROLE.fullmatch(name)) is None or weight.dim() != 2:
            return None
        pairs.setdefault(role[1], {})[role[2]] = weight.float()
    if any(len(pair) != 2 or {len(pair["A"]), pair["B"].shape[1]} != {config["r"]} for pair in pairs.values()):
        return None
    return {layer: (pair["A"], pair["B"] * (config["lora_alpha"] / config["r"])) for layer, pair in pairs.items()}


def merge_plain(hf: Any, folder: Path) -> bool:
    """Merge an adapter that only adds products of two matrices to linear layers. The result is the same as peft's, but
    peft first replaces the layers, which takes seconds. Returns False for other adapters; the model is unchanged.
    """
    modules, pairs = dict(hf.named_modules()), read_plain(folder)
    if pairs is None:
        return False
    for layer, (first, second) in pairs.items():
        linear = modules.get(layer)
        if not isinstance(linear, nn.Linear) or (second.shape[0], first.shape[1]) != tuple(linear.weight.shape):
            return False
    for layer, pair in pairs.items():
        weight = modules[layer].weight.data
        first, second = (matrix.to(weight.device) for matrix in pair)
        weight += second @ first
    return True


def load_model(
    name: str | None,
    *,
    device: str,
    converted: Path,
    dtype: torch.dtype | None = None,
    adapter: Path | None = None,
    weights: Weights = "model",
) -> LanguageModel | PackedModel:
    """Load a model by name: None (bundled), a folder, a `.gguf` file, or a hub name. converted: folder for digests and
    compiled code. adapter: folder of a LoRA adapter to merge; part of the fingerprint. weights: 8 bits change the
    fingerprint; on a CPU they need compiled code, and GGUF files keep their own bits. Raises ModelError.
    """
    place = find_device(device)
    check_rounding(weights, place)
    if place.type == "cpu" and dtype is None:
        packed_model = load_packed(name, converted, adapter)
        if packed_model is not None:
            return packed_model
    hf, tokenizer, fingerprint = load_stock(name, device=place, converted=converted, dtype=dtype)
    if adapter is not None:
        hf, adapted = merge_adapter(hf, adapter)
        fingerprint = digest(fingerprint, adapted)
    if dtype is None and place.type == "cpu" and not why_not_covered(hf) and load_library(converted, torch.bfloat16):
        hf = hf.to(torch.bfloat16)  # faster in compiled code on any CPU, and half the size
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


def load_packed(name: str | None, converted: Path, adapter: Path | None) -> PackedModel | None:
    """Load a model that runs directly from its GGUF file. Returns None for another file, an unsupported adapter, or
    without a compiler. Raises ModelError.
    """
    path = bundled_gguf() if name is None else Path(name).expanduser()
    if path.suffix != ".gguf" or not path.is_file():
        return None
    file = open_gguf(path)
    pairs = stacked_adapters(adapter)
    reason = "an adapter that adds more than products of two matrices" if pairs is None else why_not_packed(file, pairs)
    library = None if reason else load_library(converted, torch.bfloat16)
    if pairs is None or library is None:
        log.info("%s runs dequantised: %s", path.name, reason or "no compiled code")
        return None
    fingerprint = stored_digest(path, converted)
    if adapter is not None:
        fingerprint = digest(fingerprint, adapter_fingerprint(adapter))
    tokenizer = load_tokenizer(name, converted=converted)
    return PackedModel(file, tokenizer, library, pairs, name=name or path.stem, fingerprint=fingerprint)


def stacked_adapters(folder: Path | None) -> dict[str, Pair] | None:
    """Return the matrices of an adapter and its base adapters, one pair per layer; None as in `read_plain`."""
    if folder is None:
        return {}
    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"there is no adapter in {str(folder)!r}: it needs {CONFIG} and {WEIGHTS}")
    below, own = stacked_adapters(folder / BASE if (folder / BASE).is_dir() else None), read_plain(folder)
    if below is None or own is None:
        return None
    for layer, (first, second) in own.items():
        if layer in below:
            first, second = torch.cat((below[layer][0], first)), torch.cat((below[layer][1], second), 1)
        below[layer] = first, second
    return below


def load_stock(
    name: str | None, *, device: torch.device, converted: Path, dtype: torch.dtype | None = None
) -> tuple[Any, Any, str]:
    """Load transformers' own model and tokenizer, unchanged. Returns them and a fingerprint of the weights. The weights
    are loaded directly onto the device. Raises ModelError.
    """
    source = find_source(name, converted)
    dtype = dtype or default_dtype(device)
    if source.gguf:
        from cache.model.dequantised import dequantised  # imports transformers, which takes a second

        path = Path(source.place, source.gguf)
        hf = dequantised(open_gguf(path), str(path), dtype, device)
        return hf, source.load_tokenizer(), source.fingerprint
    tokenizer, options = source.load_tokenizer(), {"use_safetensors": True, "device_map": {"": device}}
    try:
        hf = source.load(quiet_transformers().AutoModelForCausalLM, dtype=dtype, **options)
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"model {source.place!r} does not fit into the device's memory ({first_line(error)}): "
            "use a smaller model, or stop other programs on the device"
        ) from error
    return hf, tokenizer, source.fingerprint or f"hub:{name}@{getattr(hf.config, '_commit_hash', None)}"


def find_device(device: str) -> torch.device:
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"device {device!r} cannot be used ({first_line(error)}): try --device cpu") from error
    return found


def default_dtype(device: torch.device) -> torch.dtype:
    """Return bfloat16 if it is fast (twice as fast as float32 on CPUs that support it), else float32."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    supported = hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported") and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if supported else torch.float32
