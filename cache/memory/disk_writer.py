"""A thread that writes modules to disk, so that the engine does not wait for the disk."""

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
"""Modules that are copied and wait for the disk. From the first number on, the writer is behind and nothing is encoded
ahead of use. From the second on, modules are not written.
"""
HANG_S = 60.0  # seconds without progress after which a disk hangs
LOOK_S = 10.0
"""Seconds between checks of the free disk space while nothing is written. Other programs write there as well."""
Job = tuple[ModuleHeader, Tensor]
log = logging.getLogger(__name__)


class DiskWriter:
    """Writes modules in the order of submission, and leaves part of the disk free. The first failed write since a
    success is logged, all are counted in `failures`. `skipped` counts modules that a slow disk had no time for.
    pending: submitted and not written yet, by key.
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
        """True if the disk is slower than the computation of modules."""
        return len(self.pending) >= BEHIND

    def submit(self, header: ModuleHeader, rows: Tensor) -> None:
        """Queue one module. If too many wait, it is skipped, and encoded again when memory has lost it."""
        if len(self.pending) >= MOST_PENDING:
            if not self.skipped:
                log.warning("modules are encoded faster than the disk writes them: some are not stored there")
            self.skipped += 1
            return
        job = self.pending[header.key] = (header, rows)
        self._queue.put(job)

    def drop(self, key: str) -> None:
        """Cancel the write of a module. Waits only if its file is being written."""
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
        """Finish the queue and end the thread. A hanging thread is left."""
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
        """Log the first failure since a success."""
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
