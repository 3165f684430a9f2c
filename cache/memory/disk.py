"""The disk tier: one checksummed safetensors file per encoded module, written completely or not at all.

A file is written under a temporary name, synced and renamed. A missing, truncated, foreign or damaged file is a miss
and is removed; it never returns wrong KV. The least recently used files are removed to stay within the capacity and to
leave part of the disk free. If the disk fails, its modules are lost, but only `write` and `keep_floor` raise an error.
Several threads read and remove files; only one writes them. torch is imported when the first module is read or written.
"""

import ctypes
import errno
import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cache.memory.keys import digest, segment_key, token_bytes
from cache.prompt.plan import Segment

if TYPE_CHECKING:  # commands that only list modules do not wait for torch
    from torch import Tensor

    from cache.memory.kv_shape import KVStorage

FLOOR_BYTES, FLOOR_SHARE = 512 << 20, 20  # default floor: FLOOR_BYTES, or one in FLOOR_SHARE bytes of a small disk


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """A disk's free bytes at one moment. floor: bytes that encoded modules must leave free."""

    free: int
    floor: int

    @property
    def is_short(self) -> bool:
        return self.free < self.floor + self.floor // 4


def free_space(folder: Path | str, floor: int | None) -> FreeSpace:
    """Return the free space of the disk that contains a folder. floor: bytes; None: the default for the disk's size.
    Raises OSError.
    """
    usage = shutil.disk_usage(folder)
    return FreeSpace(usage.free, min(FLOOR_BYTES, usage.total // FLOOR_SHARE) if floor is None else floor)


def return_freed_memory() -> None:
    """Return freed memory to the system, if the C library can (glibc). Otherwise the process keeps half a gigabyte
    after a model was loaded, and 40 MB for every 64 embedded passages, as different lengths fragment memory.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


MissReason = Literal[
    "never built", "evicted", "document changed", "model or template changed", "placement", "load failed", "bypassed"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleHeader:
    """Identity of an encoded module, also stored in its file. prefix: key of the conditioning prefix. tokens,
    left_context: digests of the token ids, empty without left context. gaps: `row+skipped ids`, separated by spaces.
    """

    key: str
    name: str
    tenant: str
    fingerprint: str
    prefix: str
    tokens: str
    start: int
    num_tokens: int
    gaps: str = ""
    left_context: str = ""

    @classmethod
    def of(cls, segment: Segment, *, fingerprint: str, tenant: str) -> "ModuleHeader":
        prefix = segment.prefix
        return cls(
            key=segment_key(segment, fingerprint=fingerprint, tenant=tenant),
            name=segment.name,
            tenant=tenant,
            fingerprint=fingerprint,
            prefix="" if prefix is None else segment_key(prefix, fingerprint=fingerprint, tenant=tenant),
            tokens=digest(token_bytes(segment.tokens)),
            start=segment.start,
            num_tokens=len(segment.tokens),
            gaps=" ".join(f"{row}+{jump}" for row, jump in segment.gaps),
            left_context=digest(token_bytes(segment.left_context)) if segment.left_context else "",
        )

    def why_missing(self, known: "ModuleHeader | None") -> MissReason:
        if known is None or known.key == self.key:
            return "never built"
        if (known.fingerprint, known.prefix) != (self.fingerprint, self.prefix):
            return "model or template changed"
        if (known.tokens, known.left_context) != (self.tokens, self.left_context):
            return "document changed"
        return "placement" if (known.start, known.gaps) != (self.start, self.gaps) else "never built"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierContents:
    """Contents of the tiers. modules: tier, header and bytes, slowest tier first. evictions: by tier, on the device by
    kind. space: free space of the disk, if known. failed_writes: number of modules that the disk refused.
    skipped_writes: number skipped because it was too slow.
    """

    modules: tuple[tuple[str, ModuleHeader, int], ...] = ()
    num_bytes: Mapping[str, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    evictions: Mapping[str, int] = field(default_factory=dict)
    space: FreeSpace | None = None
    failed_writes: int = 0
    skipped_writes: int = 0


SUFFIX = ".safetensors"
LENGTH_BYTES = 8  # length of the first field of a safetensors file: the size of the description after it
KINDS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "I8": "int8"}
"""PyTorch's dtypes by their names in a file."""
UNREADABLE = (OSError, KeyError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError)
"""Exceptions of reading a damaged or foreign file."""
log = logging.getLogger(__name__)


class LoadFailed(Exception):
    """A module file cannot be used; the message gives the reason. It is not used again."""


class Unreachable(LoadFailed):
    """A file cannot be read at the moment. It may be intact, and other engines may use it."""


@dataclass(slots=True)
class DiskEntry:
    """One file of the disk tier."""

    header: ModuleHeader
    num_bytes: int
    last_used: float


class DiskTier:
    """Encoded modules in `folder`, at most `capacity` bytes. floor: bytes of the disk that modules leave free, see
    `free_space`. space: the disk's at the last check, if known. kept: keys that are removed last. undeleted: removed
    modules whose files could not be deleted; they are never read, and deletion is retried.
    """

    def __init__(self, folder: Path, capacity: int, floor: int | None = 0) -> None:
        self.folder, self.capacity, self._floor = folder, capacity, floor
        self.space: FreeSpace | None = None
        self.entries: dict[str, DiskEntry] = {}
        self.undeleted: dict[str, DiskEntry] = {}
        self.evictions = 0
        self.kept: Set[str] = frozenset()
        self._lock = threading.Lock()
        self._find_files()

    def _find_files(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.error("modules cannot be stored on disk: %s", error)
        for path in self._files(SUFFIX):
            with suppress(OSError):
                status = path.stat()
                self._register(read_header(path), status.st_size, status.st_mtime)

    def clean_up(self) -> None:
        """Remove half-written files of an ended process, and files beyond the capacity. Only for the writing
        process.
        """
        for leftover in self._files(".tmp"):
            _delete(leftover)
        self._evict(self.num_bytes - self.capacity)
        self.make_room()

    def make_room(self) -> None:
        try:
            self.keep_floor()
        except OSError as error:
            log.error("modules cannot be stored on disk: %s", error)

    def keep_floor(self, needed: int = 0) -> None:
        """Remove the least recently used files until the minimum free space (`disk_floor`) plus `needed` bytes are
        free. Raises OSError if that is not possible.
        """
        was_short = self.space is not None and self.space.is_short
        if (space := self.look()) is None:
            return
        lack = space.floor + needed - space.free
        gone = self._evict(lack)
        self.space = FreeSpace(space.free + gone, space.floor)
        free, floor = (f"{number >> 20} MiB" for number in (space.free, space.floor))
        if space.is_short and not was_short:
            log.warning(
                "the disk has %s free: encoded modules are removed so that %s stay free (disk_floor)", free, floor
            )
        if gone < lack:
            raise OSError(errno.ENOSPC, f"the disk has {free} free, and {floor} must stay free (disk_floor)")

    def look(self) -> FreeSpace | None:
        with suppress(OSError):
            return free_space(self.folder, self._floor)
        return None

    @property
    def num_bytes(self) -> int:
        with self._lock:
            return sum(entry.num_bytes for held in (self.entries, self.undeleted) for entry in held.values())

    def __contains__(self, key: str) -> bool:
        """Return whether a file for the key exists, intact or not. Does not read the disk."""
        return key in self.entries

    def headers(self) -> list[ModuleHeader]:
        with self._lock:
            held = [*self.entries.values(), *self.undeleted.values()]
            return [entry.header for entry in held if entry.header.name]

    def write(self, header: ModuleHeader, rows: "Tensor", storage: "KVStorage" = "model") -> None:
        """Store one module, unless it is larger than the capacity. Raises OSError if the disk refuses; then nothing
        remains.
        """
        from safetensors.torch import save

        from cache.memory.kv_format import pack

        self._delete_again()
        tensors = pack(rows, storage)
        data = save({name: one.contiguous() for name, one in tensors.items()}, metadata_of(header, rows, tensors))
        if len(data) > self.capacity:
            return
        self.keep_floor(len(data))
        self._put(header.key, data)
        self._register(header, len(data), time.time())
        self._evict(self.num_bytes - self.capacity, keep=header.key)

    def _put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        temporary = path.with_suffix(".tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            _delete(temporary)
            raise

    def read(self, key: str) -> "Tensor":
        """Return the rows of a module, `[2, layers, length, kv_heads, head_dim]`. Raises LoadFailed."""
        entry = self.entries.get(key)
        if key in self.undeleted:
            raise LoadFailed("it was removed")
        try:
            rows = checked_rows(key, self._get(key))
        except UNREADABLE as error:
            if self.entries.get(key) is entry:  # it was not written again meanwhile
                self.remove(key)
            raise LoadFailed(f"unreadable: {error}") from error
        with self._lock:
            if key in self.entries:
                self.entries[key].last_used = time.time()
        return rows

    def _get(self, key: str) -> bytearray:
        path = self._path(key)
        data = read_file(path)
        with suppress(OSError):  # it may be evicted by now, or the folder is read-only
            os.utime(path)
        return data

    def remove(self, key: str) -> bool:
        """Remove a module's file, if there is one. Returns whether it is gone; if not, it is in `undeleted`."""
        with self._lock:
            entry = self.entries.pop(key) if key in self.entries else DiskEntry(nameless(key), 0, 0.0)
            self.undeleted[key] = entry
        self._delete_again()
        return key not in self.undeleted

    def _path(self, key: str) -> Path:
        return self.folder / file_name(key)

    def _files(self, suffix: str) -> list[Path]:
        try:
            return [*self.folder.glob(f"*{suffix}")]
        except OSError as error:
            log.error("the folder of modules cannot be read: %s", error)
            return []

    def _register(self, header: ModuleHeader, num_bytes: int, used: float) -> None:
        with self._lock:
            self.undeleted.pop(header.key, None)  # its file was replaced
            self.entries[header.key] = DiskEntry(header, num_bytes, used)

    def _delete_again(self) -> None:
        with self._lock:
            for key in [key for key in self.undeleted if self._delete_file(key)]:
                del self.undeleted[key]

    def _delete_file(self, key: str) -> bool:
        return _delete(self._path(key))

    def _evict(self, num_bytes: int, keep: str | None = None) -> int:
        """Remove files, least recently used first, until `num_bytes` are freed. Returns the freed bytes."""
        if num_bytes <= 0:
            return 0
        with self._lock:
            held = sorted(self.entries.items(), key=lambda item: (item[0] in self.kept, item[1].last_used))
        gone = 0
        for victim, entry in held:
            if gone >= num_bytes:
                break
            if victim == keep:
                continue
            if not self.remove(victim):
                break  # other files could not be deleted either
            gone += entry.num_bytes
            self.evictions += 1
        return gone


def contents_on_disk(disk: DiskTier) -> TierContents:
    return TierContents(
        modules=tuple(("disk", entry.header, entry.num_bytes) for entry in disk.entries.values()),
        num_bytes={"disk": disk.num_bytes},
        capacity={"disk": disk.capacity},
        space=disk.look(),
    )


def _delete(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.error("the module file %s cannot be deleted now, deletion is retried: %s", path.name, error.strerror)
        return False
    return True


def read_file(path: Path) -> bytearray:
    """Return a file's bytes. With memory mapping, a failing disk would end the process instead of raising an error."""
    with open(path, "rb") as file:
        data = bytearray(os.fstat(file.fileno()).st_size)
        file.readinto(data)
    return data


def checked_rows(key: str, data: bytearray) -> "Tensor":
    """Return the rows in a file's bytes, without a copy. Raises one of `UNREADABLE`."""
    import torch

    from cache.memory.kv_format import DTYPES, unpack

    described, at = description(data)
    metadata, tensors = described.pop("__metadata__"), {}
    for name, one in described.items():  # by hand: the library copies, which takes longer than the checksum
        (first, end), dtype = one["data_offsets"], getattr(torch, KINDS[one["dtype"]])
        tensor = torch.frombuffer(data, dtype=dtype, count=(end - first) // dtype.itemsize, offset=at + first)
        tensors[name] = tensor.view(one["shape"])
    if json.loads(metadata["header"])["key"] != key:
        raise ValueError("the file contains another module")
    if checksum_of(tensors) != metadata["checksum"]:
        raise ValueError("checksum mismatch")
    return unpack(tensors, DTYPES[metadata["dtype"]])


def save_module(path: Path, header: ModuleHeader, rows: "Tensor") -> None:
    """Write the file of a module directly: without sync, and not atomically. Raises OSError, SafetensorError."""
    from safetensors.torch import save_file

    from cache.memory.kv_format import pack

    tensors = pack(rows, "model")
    save_file(tensors, path, metadata_of(header, rows, tensors))


def metadata_of(header: ModuleHeader, rows: "Tensor", tensors: "Mapping[str, Tensor]") -> dict[str, str]:
    metadata = {"header": json.dumps(asdict(header)), "checksum": checksum_of(tensors)}
    return metadata | {"dtype": str(rows.dtype).removeprefix("torch.")}


def read_header(path: Path) -> ModuleHeader:
    """Return the header of a module file. A damaged or foreign file gets a header without a name, so that it can be
    evicted.
    """
    try:
        with open(path, "rb") as file:  # the library would memory-map each of tens of thousands of files first
            size = os.fstat(file.fileno()).st_size
            length = min(size, int.from_bytes(file.read(LENGTH_BYTES), "little"))
            described = json.loads(file.read(length))
        metadata = described.pop("__metadata__")
        if LENGTH_BYTES + length + max(one["data_offsets"][1] for one in described.values()) == size:
            return header_of(path.name, metadata)
    except UNREADABLE:
        pass
    return nameless(key_of(path.name))


def header_of(name: str, metadata: Mapping[str, str]) -> ModuleHeader:
    try:
        header = ModuleHeader(**json.loads(metadata["header"]))
        return header if file_name(header.key) == name else nameless(key_of(name))
    except UNREADABLE:
        return nameless(key_of(name))


def description(data: bytes | bytearray) -> tuple[dict[str, Any], int]:
    """Return a file's description of its tensors and metadata, and the offset of the data. `data` may be only the first
    bytes. Raises ValueError or RecursionError.
    """
    end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    return json.loads(data[LENGTH_BYTES:end]), end


def file_name(key: str) -> str:
    return key.replace(":", "-") + SUFFIX


def key_of(name: str) -> str:
    return name.removesuffix(SUFFIX).replace("-", ":", 1)


def nameless(key: str) -> ModuleHeader:
    return ModuleHeader(key=key, name="", tenant="", fingerprint="", prefix="", tokens="", start=0, num_tokens=0)


def checksum_of(tensors: "Mapping[str, Tensor]") -> str:
    """Return the SHA-256 of the tensors' bytes. With CPU support it is several times faster than BLAKE2b."""
    import torch

    hasher = hashlib.sha256()
    for name in sorted(tensors):
        hasher.update(tensors[name].contiguous().view(torch.uint8).numpy().data)
    return "sha256:" + hasher.hexdigest()
