"""The disk tier: one safetensors file per encoded module, checksummed, written whole or not at all.

A file is written under a temporary name, synced and renamed. Anything odd about a file when it is read (missing,
truncated, foreign, wrong checksum) makes it a miss and removes it; it never gives wrong KV. Capacity is kept by
removing the least recently used files. `write` may run beside `read`; nothing else is thread-safe.
"""

import hashlib
import json
import os
import threading
import time
from collections.abc import Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cache.memory.module_header import ModuleHeader

SUFFIX = ".safetensors"


class LoadFailed(Exception):
    """A module file could not be used; the message says why. The file is gone now."""


@dataclass(slots=True)
class DiskEntry:
    """A file of the tier."""

    header: ModuleHeader
    num_bytes: int
    last_used: float


class DiskTier:
    """Encoded modules under `folder`, at most `capacity` bytes. kept: keys of those that go last."""

    def __init__(self, folder: Path, capacity: int) -> None:
        self.folder, self.capacity = folder, capacity
        self.entries: dict[str, DiskEntry] = {}
        self.evictions = 0
        self.kept: Set[str] = frozenset()
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(f"*{SUFFIX}"):
            self._register(path)

    def clean_up(self) -> None:
        """Remove half-written files of a dead process and what exceeds the capacity. Only for the writing process."""
        self._evict()
        for leftover in self.folder.glob("*.tmp"):
            leftover.unlink(missing_ok=True)

    @property
    def num_bytes(self) -> int:
        """Bytes in use."""
        with self._lock:
            return sum(entry.num_bytes for entry in self.entries.values())

    def __contains__(self, key: str) -> bool:
        """Whether there is a file for the key, sound or not."""
        return self._path(key).exists()

    def headers(self) -> list[ModuleHeader]:
        """Headers of all sound files."""
        with self._lock:
            return [entry.header for entry in self.entries.values() if entry.header.name]

    def write(self, header: ModuleHeader, rows: Tensor) -> None:
        """Store one module. Raises OSError when the disk does not take it; then nothing is left behind."""
        path = self._path(header.key)
        temporary = path.with_suffix(".tmp")
        metadata = {"header": json.dumps(asdict(header)), "checksum": checksum(rows)}
        try:
            save_file({"kv": rows}, temporary, metadata)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except (OSError, SafetensorError) as error:  # safetensors wraps the operating system's errors
            temporary.unlink(missing_ok=True)
            raise OSError(str(error)) from error
        self._register(path, header)
        self._evict(keep=header.key)

    def read(self, key: str) -> Tensor:
        """Rows of a module, `[2, layers, length, kv_heads, head_dim]`. Raises LoadFailed."""
        path = self._path(key)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                rows: Tensor = file.get_tensor("kv")
            if json.loads(metadata["header"])["key"] != key:
                raise ValueError("the file holds another module")
            if checksum(rows) != metadata["checksum"]:
                raise ValueError("checksum mismatch")
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            self.remove(key)
            raise LoadFailed(f"unreadable: {error}") from error
        with suppress(OSError):  # it may be evicted by now, or the folder read-only
            os.utime(path)
        with self._lock:
            if key in self.entries:
                self.entries[key].last_used = time.time()
        return rows

    def remove(self, key: str) -> None:
        """Remove a module's file; unknown keys are fine."""
        with self._lock:
            self.entries.pop(key, None)
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / (key.replace(":", "-") + SUFFIX)

    def _register(self, path: Path, header: ModuleHeader | None = None) -> None:
        with suppress(OSError):  # it may be evicted by now
            status = path.stat()
            header = header or read_header(path)
            if self._path(header.key) == path:
                with self._lock:
                    self.entries[header.key] = DiskEntry(header, status.st_size, status.st_mtime)

    def _evict(self, keep: str | None = None) -> None:
        while self.num_bytes > self.capacity:
            with self._lock:
                victims = [key for key in self.entries if key != keep]
                if not victims:
                    return
                victim = min(victims, key=lambda key: (key in self.kept, self.entries[key].last_used))
            self.remove(victim)
            self.evictions += 1


def read_header(path: Path) -> ModuleHeader:
    """The header of a module file; one without a name if the file is damaged or foreign: it can be evicted."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["header"])
        if "lead" in header:  # its name in files of version 0.1
            header["left_context"] = header.pop("lead")
        return ModuleHeader(**header)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        key = path.name.removesuffix(SUFFIX).replace("-", ":", 1)
        return ModuleHeader(key=key, name="", tenant="", fingerprint="", prefix="", tokens="", start=0, num_tokens=0)


def checksum(rows: Tensor) -> str:
    """SHA-256 of the raw bytes (the processor does it in hardware, several times faster than BLAKE2b)."""
    return "sha256:" + hashlib.sha256(rows.contiguous().view(torch.uint8).numpy().data).hexdigest()
