"""LoRA adapters (through peft): keeping one, and merging it into a model when it is loaded.

An adapter is an ordinary peft folder: `adapter_config.json` and `adapter_model.safetensors`. Merged at load it costs
nothing at run time.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from cache.errors import ModelError
from cache.keys import file_digest

WEIGHTS = "adapter_model.safetensors"


def save_adapter(model: Any, folder: Path) -> None:
    """Keep an adapter in a folder, half precision; files are replaced one by one, the weights last."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "saving"
    model.save_pretrained(temporary)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(temporary / WEIGHTS).items()}
    save_file(weights, temporary / WEIGHTS, {"format": "pt"})
    for name in ("adapter_config.json", WEIGHTS):
        os.replace(temporary / name, folder / name)
    shutil.rmtree(temporary, ignore_errors=True)


def merge_adapter(hf: Any, folder: Path) -> tuple[Any, str]:
    """A model with an adapter merged into its weights, and the adapter's fingerprint. Raises ModelError."""
    from peft import PeftModel  # takes a second to import, and most desks have no adapter

    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"there is no adapter in {str(folder)!r}: it needs adapter_config.json and {WEIGHTS}")
    try:
        merged = PeftModel.from_pretrained(hf, folder).merge_and_unload()
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"adapter {str(folder)!r} does not fit the model ({reason})") from error
    return merged, file_digest(folder / WEIGHTS)
