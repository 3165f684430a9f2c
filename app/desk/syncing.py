"""While the desk serves, synchronised folders are read again in the background when they are due.

Not covered: which these are and how they are read (`app.knowledge.synchronising`).
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.domain.progress import Progress
from app.knowledge.synchronising import SyncStopped

LOOK_EVERY_S = 20.0
_STOPPED_S = 5.0
log = logging.getLogger(__name__)


@contextmanager
def syncing(run_due: Callable[[Progress], None], is_ready: Callable[[], bool]) -> Iterator[None]:
    """Read what is due, for the block, in a thread of its own; a reading ends with the file or the passages it is at.
    is_ready: whether questions are answered; before, nothing is read.
    """
    stop = threading.Event()

    def go_on(stage: str, done: int, total: int) -> None:
        if stop.is_set():
            raise SyncStopped

    def run() -> None:
        while not stop.wait(LOOK_EVERY_S):
            try:
                if is_ready():
                    run_due(go_on)
            except SyncStopped:
                return
            except Exception:  # such as a disk that is full: the next time may be better
                log.exception("synchronised folders could not be read")

    thread = threading.Thread(target=run, name="syncing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_STOPPED_S)
