"""Writing modules to disk on a thread of its own, so that the engine does not wait for the disk."""

import logging
import queue
import threading
import time
from contextlib import suppress

from torch import Tensor

from cache.errors import CacheError
from cache.memory.disk import DiskTier, ModuleHeader
from cache.memory.kv_format import KVStorage

BEHIND, MOST_PENDING = 8, 32
"""Modules copied and waiting for the disk: with so many it is behind, and none is encoded ahead of use; with the
second number of them what is submitted is not written.
"""
HANG_S = 60.0
"""A disk that takes nothing for so long hangs."""
LOOK_S = 10.0
"""With nothing to write, how often to look how much of the disk is free: others write there, too."""
Job = tuple[ModuleHeader, Tensor]
log = logging.getLogger(__name__)


class DiskWriter:
    """Writes modules in the order submitted, and sees to it that enough of the disk stays free, also while there is
    nothing to write. Of failed writes the first since a success is logged, all are counted in `failures`; those that a
    slow disk had no time for in `skipped`. pending: what is submitted but not written yet, by key.
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
        """Whether it writes more slowly than modules are computed."""
        return len(self.pending) >= BEHIND

    def submit(self, header: ModuleHeader, rows: Tensor) -> None:
        """Queue one module; if too many wait, it is left out, and computed again when memory has lost it."""
        if len(self.pending) >= MOST_PENDING:
            if not self.skipped:
                log.warning("modules are computed faster than the disk takes them: some are not kept there")
            self.skipped += 1
            return
        job = self.pending[header.key] = (header, rows)
        self._queue.put(job)

    def drop(self, key: str) -> None:
        """Write a module no more. Waits if its file is being written, for no other one."""
        with self._changed:
            self._changed.wait_for(lambda: self._current != key)
            self.pending.pop(key, None)
            self._changed.notify_all()

    def wait(self) -> None:
        """Return when everything submitted so far is written or has failed. Raises CacheError where none of it is for
        HANG_S.
        """
        with self._changed:
            awaited, until = [*self.pending.values()], time.monotonic() + HANG_S
            while awaited:
                if not self._changed.wait(until - time.monotonic()):
                    raise CacheError(f"the disk has taken no module for {HANG_S:g} s: see to it, then try again")
                left = [job for job in awaited if self.pending.get(job[0].key) is job]
                if len(left) < len(awaited):
                    awaited, until = left, time.monotonic() + HANG_S

    def close(self) -> None:
        """Finish the queue and end the thread. One that hangs is left behind."""
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
        """Log the first failure since something went well."""
        if error is not None and not self._is_failing:
            log.error("modules cannot be kept on disk (%s): they are computed again after a restart", error)
        self._is_failing = error is not None

    def _begin(self, job: Job) -> bool:
        """Whether it was not dropped."""
        key = job[0].key
        with self._changed:
            if is_wanted := self.pending.get(key) is job:
                self._current = key
        return is_wanted

    def _write(self, header: ModuleHeader, rows: Tensor) -> None:
        try:
            self.disk.write(header, rows, self._storage)
            self._note(None)
        except Exception as error:  # whatever happens, nobody must wait for a dead thread
            self._note(error)
            self.failures += 1
        finally:
            with self._changed:
                self._current = ""
                del self.pending[header.key]
                self._changed.notify_all()
