"""Threads that load modules into the KV pool, and a thread that writes them to disk, so that the engine does not wait.

A load reads a module, checks it and copies it into an extent, which is not read before it is complete. For a GPU the
threads copy into pinned memory. Passes then copy collected modules to the GPU, layer by layer (`arena`). Owned by the
engine thread. An extent stays reserved until its thread ends, also for a dropped module. Out of scope: which modules
are worth loading (`store`).
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from torch import Tensor

from cache.errors import CacheError
from cache.memory.arena import Arena, Extent
from cache.memory.disk import DiskTier, LoadFailed, ModuleHeader
from cache.memory.kv_shape import KVStorage

READERS = 2  # threads: one waits for the disk while the other computes a checksum


@dataclass(slots=True, eq=False)
class ModuleLoad:
    """A module being loaded into a reserved extent. positions: ids of its keys. seconds: from the request until its
    thread ended, including the wait. staged: its rows in pinned memory, `[layers, 2, length, kv_heads, head_dim]`, if
    not in the extent yet.
    """

    header: ModuleHeader
    source: Literal["host", "disk"]
    extent: Extent
    positions: Sequence[int]
    started: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0
    staged: Tensor | None = None
    is_dropped: bool = False
    ended: Future[None] = field(default_factory=Future)

    @property
    def error(self) -> BaseException | None:
        return CancelledError() if self.ended.cancelled() else self.ended.exception()


class Loader:
    """Loads modules into one pool. running: by key. on_end: called on any thread when a load ends."""

    def __init__(self, arena: Arena, on_end: Callable[[], None]) -> None:
        self.running: dict[str, ModuleLoad] = {}
        self._arena, self._on_end = arena, on_end
        self._dropped: list[ModuleLoad] = []
        self._threads = ThreadPoolExecutor(READERS, "warmdesk-load")

    def __bool__(self) -> bool:
        return bool(self.running or self._dropped)

    def start(self, load: ModuleLoad, read: Callable[[], Tensor]) -> None:
        """Load a module. read: called on a thread, returns its checked rows, `[2, layers, length, kv_heads,
        head_dim]`.
        """
        self.running[load.header.key] = load
        load.ended = self._threads.submit(self._load, load, read)
        load.ended.add_done_callback(lambda _: self._on_end())

    def drop(self, key: str) -> None:
        if (load := self.running.pop(key, None)) is not None:
            load.is_dropped = True
            load.ended.cancel()
            self._dropped.append(load)

    def collect(self) -> list[ModuleLoad]:
        """Return the loads that ended since the last call. The caller owns their extents."""
        ended = [load for load in (*self.running.values(), *self._dropped) if load.ended.done()]
        for load in ended:
            if load.is_dropped:
                self._dropped.remove(load)
            else:
                del self.running[load.header.key]
                if load.error is None:
                    self._land(load)
        return ended

    def extents(self) -> Iterator[Extent]:
        return (load.extent for load in (*self.running.values(), *self._dropped))

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    def _land(self, load: ModuleLoad) -> None:
        self._arena.place(load.extent, load.positions)
        if load.staged is not None and self._arena.copies is not None:
            self._arena.copies.add(partial(self._copy_layer, load.staged, load.extent), load.extent.length)

    def _copy_layer(self, staged: Tensor, extent: Extent, layer: int) -> None:
        self._arena.write_layer(layer, extent, staged[layer])

    def _load(self, load: ModuleLoad, read: Callable[[], Tensor]) -> None:
        try:
            rows, shape, extent = read(), self._arena.shape, load.extent
            expected = (2, shape.layers, extent.length, shape.kv_heads, shape.head_dim)
            if rows.shape != expected or rows.dtype != self._arena.dtype:
                raise LoadFailed(f"shape {tuple(rows.shape)} {rows.dtype} does not fit this model")
            if self._arena.copies is None:
                self._arena.write(extent, rows)
            else:
                load.staged = self._arena.copies.stream.staged(rows.transpose(0, 1))
        finally:
            load.seconds = time.perf_counter() - load.started


BEHIND, MOST_PENDING = 8, 32
"""Limits on the number of modules that wait for the disk. From the first number on, nothing is encoded in advance. From
the second on, modules are not written.
"""
HANG_S = 60.0  # seconds without progress after which a disk hangs
LOOK_S = 10.0
"""Seconds between checks of the free disk space while nothing is written. Other programs write there as well."""
Job = tuple[ModuleHeader, Tensor]
log = logging.getLogger(__name__)


class DiskWriter:
    """Writes modules in the order of submission, and leaves part of the disk free. failures: writes that failed.
    skipped: modules not written because the disk was too slow. pending: modules not written yet, by key.
    """

    def __init__(self, disk: DiskTier, storage: KVStorage) -> None:
        self.disk, self._storage = disk, storage
        self.pending: dict[str, Job] = {}
        self.failures, self.skipped, self._is_failing = 0, 0, False
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._changed, self._current = threading.Condition(), ""  # the key that is being written
        self._thread = threading.Thread(target=self._run, name="warmdesk-disk", daemon=True)
        self._thread.start()

    @property
    def is_behind(self) -> bool:
        return len(self.pending) >= BEHIND

    def submit(self, header: ModuleHeader, rows: Tensor) -> None:
        """Queue one module. If too many wait, it is skipped, and encoded again after it is evicted from memory."""
        if len(self.pending) >= MOST_PENDING:
            if not self.skipped:
                log.warning("modules are encoded faster than the disk writes them: some are not stored on disk")
            self.skipped += 1
            return
        job = self.pending[header.key] = (header, rows)
        self._queue.put(job)

    def drop(self, key: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._current != key)
            self.pending.pop(key, None)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until everything submitted so far is written or has failed. Raises CacheError after HANG_S without
        progress.
        """
        with self._changed:
            awaited, until = [*self.pending.values()], time.monotonic() + HANG_S
            while awaited:
                if not self._changed.wait(until - time.monotonic()):
                    raise CacheError(f"the disk has written no module for {HANG_S:g} s: check the disk, then try again")
                left = [job for job in awaited if self.pending.get(job[0].key) is job]
                if len(left) < len(awaited):
                    awaited, until = left, time.monotonic() + HANG_S

    def close(self) -> None:
        self._queue.put(None)
        with suppress(CacheError):
            self.wait()
            self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                job = self._queue.get(timeout=LOOK_S)
            except queue.Empty:
                self._keep_floor()
                continue
            if job is None:
                return
            if self._begin(job):
                self._write(*job)

    def _keep_floor(self) -> None:
        try:
            self.disk.keep_floor()
        except Exception as error:  # as below
            self._note(error)

    def _note(self, error: Exception | None) -> None:
        if error is not None and not self._is_failing:
            log.error("modules cannot be stored on disk (%s): they are encoded again after a restart", error)
        self._is_failing = error is not None

    def _begin(self, job: Job) -> bool:
        key = job[0].key
        with self._changed:
            if is_wanted := self.pending.get(key) is job:
                self._current = key
        return is_wanted

    def _write(self, header: ModuleHeader, rows: Tensor) -> None:
        try:
            self.disk.write(header, rows, self._storage)
            self._note(None)
        except Exception as error:  # in any case, no caller may wait for a dead thread
            self._note(error)
            self.failures += 1
        finally:
            with self._changed:
                self._current = ""
                del self.pending[header.key]
                self._changed.notify_all()
