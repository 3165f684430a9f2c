"""While the desk serves, the model reads in the background what it has not read: passages of a run that was stopped, of
files that were just added, and of modules that are gone.

Not covered: which passages these are and how they are encoded (`warm`). The engine answers questions first.
"""

import logging
import threading
from collections.abc import Callable

from app.domain.errors import DeskError
from app.domain.progress import Bars, PassagesRead
from app.knowledge.warm import Warming
from cache.errors import CacheError, EngineStopped

AGAIN_S = 10.0
"""After which reading goes on that a failure of engine or database ended."""
log = logging.getLogger(__name__)

_STOPPED_S = 2.0


class ReadingAhead:
    """A thread that encodes passages. Safe to use from any thread."""

    def __init__(self, warming: Warming, bars: Bars, when_read: Callable[[], None]) -> None:
        """bars: show how far it is. when_read: called once, when everything has been read for the first time."""
        self._warming, self._bars, self._when_read = warming, bars, when_read
        self._look = threading.Event()
        self._look.set()
        self._is_closed = self._was_read = False
        self.state = PassagesRead(read=0, total=0, is_reading=True)
        self._thread = threading.Thread(target=self._run, name="reading-ahead", daemon=True)

    def start(self) -> "ReadingAhead":
        """Begin; returns itself."""
        self._thread.start()
        return self

    def look_again(self) -> None:
        """The documents have changed."""
        self._look.set()

    def stop(self) -> None:
        """Begin nothing more. What is being encoded ends with the engine."""
        self._is_closed = True
        self._look.set()

    def join(self) -> None:
        """Wait for the thread, after the engine was closed."""
        self._thread.join(_STOPPED_S)

    def _run(self) -> None:
        while self._look.wait() and not self._is_closed:
            self._look.clear()
            try:
                self._read()
                if not self._look.is_set() and not self._was_read:
                    self._was_read = True
                    self._when_read()
            except Exception as error:  # questions are answered all the same
                if not self._is_closed and not (isinstance(error, DeskError) and error.is_away):
                    is_known = isinstance(error, DeskError | CacheError)
                    log.warning("passages could not be encoded: %s", error, exc_info=not is_known)
                if _may_go_on(error):
                    self._look.wait(AGAIN_S)
                    self._look.set()

    def _read(self) -> None:
        unread, due = self._warming.survey()
        total = self._warming.library.counts().passages
        self.state = PassagesRead(read=total - unread, total=total, is_reading=bool(due))
        if not due:
            return
        with self._bars() as progress:

            def report(stage: str, done: int, _: int) -> None:
                read = total - unread + done
                self.state = PassagesRead(read=read, total=total, is_reading=done < len(due))
                progress(stage, read, total - unread + len(due))

            done = self._warming.encode(due, report, until=self._look.is_set)
        if done.failed:
            self.state = PassagesRead(read=total - unread + done.encoded + done.kept, total=total, is_reading=False)


def _may_go_on(error: Exception) -> bool:
    """Whether what failed may be there again soon: the engine, which has begun anew, or the database."""
    is_engine = isinstance(error, CacheError) and not isinstance(error, EngineStopped)
    return is_engine or (isinstance(error, DeskError) and error.is_of_database)
