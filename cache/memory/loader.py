"""Threads that load modules into the KV pool: read, check, and copy them into extents that are not read before they are
complete.

For a GPU the threads copy into pinned memory. Collected modules are copied on from there during passes, layer by layer
(`arena`). Owned by the engine thread. An extent stays reserved until its thread ends, also for a dropped module. Out of
scope: which modules are worth loading (`store`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from torch import Tensor

from cache.memory.arena import Arena, Extent
from cache.memory.disk import LoadFailed, ModuleHeader

READERS = 2  # threads: one waits for the disk while the other computes a checksum


@dataclass(slots=True, eq=False)
class ModuleLoad:
    """A module being loaded into a reserved extent. positions: ids of its keys. seconds: from the start until its
    thread ended, waiting included. staged: its rows in pinned memory, `[layers, 2, length, kv_heads, head_dim]`, if not
    in the extent yet. is_dropped: it must not be found.
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
        """The error after a failed load; None if the rows are there."""
        return CancelledError() if self.ended.cancelled() else self.ended.exception()


class Loader:
    """Loads of one pool, by key. on_end: called on any thread when a load ends."""

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
        """Hide a module that is being loaded."""
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
        """End the threads. Started loads finish, the others do not."""
        self._threads.shutdown(cancel_futures=True)

    def _land(self, load: ModuleLoad) -> None:
        """Store the positions of a loaded module. Staged rows are in its extent when a pass reads it."""
        self._arena.place(load.extent, load.positions)
        if load.staged is not None and self._arena.copies is not None:
            self._arena.copies.add(partial(self._copy_layer, load.staged, load.extent), load.extent.length)

    def _copy_layer(self, staged: Tensor, extent: Extent, layer: int) -> None:
        self._arena.write_layer(layer, extent, staged[layer])

    def _load(self, load: ModuleLoad, read: Callable[[], Tensor]) -> None:
        try:
            rows, shape, extent = read(), self._arena.shape, load.extent
            expected = (2, shape.layers, extent.length, shape.kv_heads, shape.head_dim)
            if rows.shape != expected or rows.dtype != shape.dtype:
                raise LoadFailed(f"shape {tuple(rows.shape)} {rows.dtype} is not this model's")
            if self._arena.copies is None:
                self._arena.write(extent, rows)
            else:
                load.staged = self._arena.copies.stream.staged(rows.transpose(0, 1))
        finally:
            load.seconds = time.perf_counter() - load.started
