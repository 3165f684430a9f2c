"""LoRA adapters (through peft): keeping one, and merging it into a model when it is loaded.

An adapter is an ordinary peft folder: `adapter_config.json` and `adapter_model.safetensors`. One that was trained on
top of another has a copy of that in its folder `base`. Merged at load, adapters cost nothing at run time.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from cache.errors import ModelError
from cache.memory.keys import digest, file_digest

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
        os.replace(temporary / name, folder / name)
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
