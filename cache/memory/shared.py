"""A disk tier that several engines share: a folder, or a store such as S3 (any location that fsspec opens).

The location is listed every few seconds, because engines do not notify each other: a new file is found after the next
listing, and a vanished file is a miss. A file's name identifies its content, so several writers of one module do no
harm. Files become visible only when complete: by renaming in a folder, by the store itself otherwise. The writer
removes the oldest files beyond the capacity. Out of scope: checking files (`disk`).
"""

import logging
import threading
import time
import weakref
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec

from cache.errors import CacheError
from cache.memory import disk
from cache.memory.disk import DiskEntry, DiskTier, FreeSpace, LoadFailed, ModuleHeader, Unreachable

LIST_S = 5.0  # seconds between two listings
HEADER_BYTES, HEADERS_AT_ONCE = 16 << 10, 256
"""Bytes to read from each new file (its description has about 1000), and number of concurrent reads."""
MOST_REMOVED = 20_000  # maximum number of removed modules to remember
LEFT_OVER_S = 3600.0  # age in seconds from which a half-written file belongs to an ended engine
HALF = ".tmp"
log = logging.getLogger(__name__)


class SharedTier(DiskTier):
    """A disk tier to which other engines also write. location: a folder or a URL. Thread-safe."""

    def __init__(self, location: str, capacity: int, floor: int | None = 0) -> None:
        """Raise CacheError for a location that cannot be opened."""
        try:
            self._files_of, self._root = fsspec.url_to_fs(location, use_listings_cache=False)
            self._files_of.makedirs(self._root, exist_ok=True)
        except Exception as error:  # of any store
            raise CacheError(f"the shared modules in {location} cannot be opened: {error}") from error
        self.location, self._refreshing = location, threading.Lock()
        self._touched: set[str] = set()  # since the running listing started
        self._removed: dict[str, None] = {}  # removed here; a store may still list them for a while
        super().__init__(Path(self._root), capacity, floor)
        threading.Thread(target=_keep_refreshing, args=(weakref.ref(self),), name="shared-modules", daemon=True).start()

    def _find_files(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Update the list of files. If the store does not respond, the old list stays."""
        with self._refreshing:
            with self._lock:
                self._touched.clear()
            try:
                listed = {
                    disk.key_of(name): found for name, found in self._listed().items() if name.endswith(disk.SUFFIX)
                }
                for key in listed.keys() & self._removed.keys():
                    if not self._files_of.exists(self._place(key)):
                        del listed[key]
                self._take(listed)
                self._read_headers()
            except Exception as error:
                log.warning("the shared modules cannot be listed: %s", error)

    def clean_up(self) -> None:
        self._evict(self.num_bytes - self.capacity)
        self.make_room()
        for name, found in self._listed().items():
            if name.endswith(HALF) and changed(found) < time.time() - LEFT_OVER_S:
                self._delete_path(found["name"])

    def _put(self, key: str, data: bytes) -> None:
        path = self._place(key)
        try:
            if self._is_folder:
                half = f"{path}.{uuid4().hex}{HALF}"
                self._files_of.pipe_file(half, data)
                self._files_of.mv(half, path)
            else:
                self._files_of.pipe_file(path, data)
        except Exception as error:
            raise OSError(str(error)) from error

    def _register(self, header: ModuleHeader, num_bytes: int, used: float) -> None:
        with self._lock:
            self._touched.add(header.key)
            self._removed.pop(header.key, None)
        super()._register(header, num_bytes, used)

    def _get(self, key: str) -> bytearray:
        """Read a file. Raises LoadFailed if another engine has removed it, else Unreachable."""
        try:
            return bytearray(self._files_of.cat_file(self._place(key)))
        except FileNotFoundError as error:
            with self._lock:
                self.entries.pop(key, None)
            raise LoadFailed("another engine has removed it") from error
        except Exception as error:
            raise Unreachable(f"unreadable: {error}") from error

    def remove(self, key: str) -> bool:
        with self._lock:
            self._touched.add(key)
            self._removed[key] = None
            if len(self._removed) > MOST_REMOVED:
                del self._removed[next(iter(self._removed))]
        return super().remove(key)

    @property
    def _is_folder(self) -> bool:
        return "file" in self._files_of.protocol

    def look(self) -> FreeSpace | None:
        return super().look() if self._is_folder else None

    def _listed(self) -> dict[str, dict[str, Any]]:
        try:
            found = self._files_of.ls(self._root, detail=True, refresh=True)
            return {str(one["name"]).rsplit("/", 1)[-1]: one for one in found}
        except FileNotFoundError:  # a store without folders lists none without files
            return {}

    def _take(self, there: dict[str, dict[str, Any]]) -> None:
        """Apply a listing, except for files that were written or removed here since it started."""
        with self._lock:
            for key in self.entries.keys() - there.keys() - self._touched:
                del self.entries[key]
            for key in there.keys() - self._touched:
                if key in self.undeleted:
                    continue
                entry = self.entries.setdefault(key, DiskEntry(disk.nameless(key), 0, 0.0))
                entry.num_bytes, entry.last_used = int(there[key]["size"]), changed(there[key])

    def _read_headers(self) -> None:
        with self._lock:
            unknown = [key for key, entry in self.entries.items() if not entry.header.name]
        for first in range(0, len(unknown), HEADERS_AT_ONCE):
            some = unknown[first : first + HEADERS_AT_ONCE]
            paths = [self._place(key) for key in some]
            found: list[Any] = self._files_of.cat_ranges(paths, 0, HEADER_BYTES, on_error="return")
            for key, data in zip(some, found, strict=True):
                try:
                    header = disk.header_of(disk.file_name(key), disk.description(data)[0]["__metadata__"])
                except disk.UNREADABLE:
                    continue
                with self._lock:
                    if (entry := self.entries.get(key)) is not None:
                        entry.header = header

    def _place(self, key: str) -> str:
        return f"{self._root}/{disk.file_name(key)}"

    def _delete_file(self, key: str) -> bool:
        return self._delete_path(self._place(key))

    def _delete_path(self, path: str) -> bool:
        try:
            self._files_of.rm_file(path)
        except FileNotFoundError:
            return True
        except Exception as error:
            log.error("the shared module file %s cannot be deleted now, deletion is retried: %s", path, error)
            return False
        return True


def _keep_refreshing(tier: "weakref.ref[SharedTier]") -> None:
    while True:
        time.sleep(LIST_S)
        if (one := tier()) is None:
            return
        one.refresh()
        del one


def changed(found: dict[str, Any]) -> float:
    when = found.get("mtime") or found.get("LastModified") or found.get("last_modified") or found.get("created") or 0
    return when.timestamp() if isinstance(when, datetime) else float(when)
