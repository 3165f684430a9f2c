"""Writing modules to disk on a thread of its own, so that the engine does not wait for the disk."""

import logging
import queue
import threading

from torch import Tensor

from cache.memory.disk import DiskTier
from cache.memory.kv_format import KVStorage
from cache.memory.module_header import ModuleHeader

WRITES_IN_FLIGHT = 8
"""Modules copied and waiting for the disk; the engine waits when there are more."""
log = logging.getLogger(__name__)


class DiskWriter:
    """Writes modules in the order submitted. Of failed writes the first is logged, all are counted in `failures`.
    pending: rows submitted but not written yet, by key.
    """

    def __init__(self, disk: DiskTier, storage: KVStorage) -> None:
        self.disk, self._storage = disk, storage
        self.pending: dict[str, Tensor] = {}
        self.failures = 0
        self._queue: queue.Queue[tuple[ModuleHeader, Tensor] | None] = queue.Queue(maxsize=WRITES_IN_FLIGHT)
        self._thread = threading.Thread(target=self._run, name="warmdesk-disk", daemon=True)
        self._thread.start()

    def submit(self, header: ModuleHeader, rows: Tensor) -> None:
        """Queue one module; waits while too many are queued."""
        self.pending[header.key] = rows
        self._queue.put((header, rows))

    def wait(self) -> None:
        """Return when everything submitted so far is written or has failed."""
        self._queue.join()

    def close(self) -> None:
        """Finish the queue and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            header, rows = job
            try:
                self.disk.write(header, rows, self._storage)
            except Exception as error:  # whatever happens, the engine must not wait for a dead thread
                if not self.failures:
                    log.error("modules cannot be kept on disk (%s): they are computed again after a restart", error)
                self.failures += 1
            finally:
                del self.pending[header.key]
                self._queue.task_done()
        self._queue.task_done()
