"""Work that a served desk does again and again, in a thread of its own."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.domain.logs import Recurring

_STOPPED_S = 5.0
log = logging.getLogger(__name__)


@contextmanager
def repeating(name: str, every_s: float, work: Callable[[threading.Event], None], failure: str = "") -> Iterator[None]:
    """Do `work` now and every so many seconds, for the block. A failure is logged, and the next time may be better.
    work: gets an event that is set when the block ends, and then ends soon. name: of the thread. failure: what the log
    says of one; unset: that the thread of this name failed.
    """
    stop, recurring = threading.Event(), Recurring(log, failure or f"{name} failed")

    def run() -> None:
        while not stop.is_set():
            with recurring.trying():
                work(stop)
            stop.wait(every_s)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_STOPPED_S)
