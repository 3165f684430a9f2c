"""While the desk serves, synchronised folders are read again in the background when they are due.

Not covered: which these are and how they are read (`app.knowledge.synchronising`).
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from app.desk.repeating import repeating
from app.domain.progress import Progress
from app.knowledge.synchronising import SyncStopped

LOOK_EVERY_S = 20.0


def syncing(run_due: Callable[[Progress], None], is_ready: Callable[[], bool]) -> AbstractContextManager[None]:
    """Read what is due, for the block; a reading ends with the file or the passages it is at. is_ready: whether
    questions are answered; before, nothing is read.
    """

    def read(stop: threading.Event) -> None:
        def go_on(stage: str, done: int, total: int) -> None:
            if stop.is_set():
                raise SyncStopped

        if is_ready():
            with suppress(SyncStopped):
                run_due(go_on)

    return repeating("syncing", LOOK_EVERY_S, read)
