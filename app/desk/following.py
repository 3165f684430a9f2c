"""Several desks on one database: each looks every second whether another one has changed documents or the FAQ, and
then does for itself what the other has done for its own: search, prompts and encoded passages hold nothing any more
that is not in the database.

Who forgets a document waits until the others have let go of it, too. A desk that does not answer (stopped, or cut off
from the database) is not waited for; it follows before it answers again. Not covered: a database of one desk.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from app.desk.repeating import repeating
from app.storage.desks import Desks
from app.storage.library import Library

EVERY_S: Final = 1.0
ALIVE_EVERY_S: Final = 5.0
WAIT_S: Final = 60.0
"""How long a desk waits for others at most: an answer that began before may take that long."""
_LOOK_S: Final = 0.2
log = logging.getLogger(__name__)


class Following:
    """What one desk does about changes of others. Safe to use from any thread; methods may raise DeskError."""

    def __init__(self, library: Library, desks: Desks, follow: Callable[[], None], save: Callable[[], None]) -> None:
        """follow: takes in what was changed, so that nothing older is left. save: writes the search to disk."""
        self._library, self._desks, self._follow, self._save = library, desks, follow, save
        self._generation = self._saved = -1
        self._noted = 0.0
        self._lock = threading.Lock()

    def look(self) -> None:
        """Take in what was changed since the last time, and tell the others."""
        with self._lock:
            generation = self._library.generation()
            if generation != self._generation:
                self._follow()
            elif generation != self._saved:  # a run of changes has ended
                self._save()
                self._saved = generation
            now = time.monotonic()
            if generation != self._generation or now - self._noted >= ALIVE_EVERY_S:
                self._desks.note(generation)
                self._generation, self._noted = generation, now

    def wait_for_others(self) -> None:
        """Return when all other desks have taken in what was changed until now, or after `WAIT_S`."""
        generation, deadline = self._library.generation(), time.monotonic() + WAIT_S
        while behind := self._desks.behind(generation):
            if time.monotonic() >= deadline:
                log.warning("%d other desks are still busy with what was forgotten: they let go of it later", behind)
                return
            time.sleep(_LOOK_S)

    def leave(self) -> None:
        """This desk is closed: nobody needs to wait for it."""
        if self._generation >= 0:
            self._desks.leave()


def following(one: Following, is_ready: Callable[[], bool]) -> AbstractContextManager[None]:
    """Look now and every second, for the block. is_ready: whether questions are answered; before, there is nothing to
    let go of.
    """

    def look(stop: threading.Event) -> None:
        if is_ready():
            one.look()

    return repeating("following", EVERY_S, look, "changes of other desks are not seen")
