"""Work that a served desk does again and again, in a thread of its own.

While the desk serves, synchronised folders are read again in the background when they are due.

Not covered: which these are and how they are read (`app.knowledge.uploads`).

What a served desk does every minute: remove conversations for good that were deleted, or not used for longer than
the setting `keep_days` says, with what was computed for their owners, also where another desk of the database removed
them.

Not covered: what deleting is (`app.storage.conversation_care`).

Several desks on one database: each looks every second whether another one has changed documents or the FAQ, and
then does for itself what the other has done for its own: search, prompts and encoded passages hold nothing any more
that is not in the database.

Who forgets a document waits until the others have let go of it, too. A desk that does not answer (stopped, or cut off
from the database) is not waited for; it follows before it answers again. Not covered: a database of one desk.

What a question needs and is not there, found without waiting long: what is looked at may hang, and a look with it.

Not covered: what is looked at (`service`), and who is told (`app.web.middleware`).

Room on a disk that is so full that a desk could not even be opened, beside encoded passages, which may go.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from threading import Lock, Thread
from typing import Final, TypeVar

from app.domain.logs import Recurring
from app.domain.progress import Progress
from app.domain.settings import Settings
from app.knowledge.uploads import SyncStopped
from app.storage.conversation_care import UNDO_S, ConversationCare
from app.storage.desks import Desks
from app.storage.library import Library
from cache.memory.free_space import free_space

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


TIDY_EVERY_S = 60.0


class Housekeeping:
    """The work of one minute. Safe to use from any thread."""

    def __init__(
        self, care: ConversationCare, drop_prefixes: Callable[[str], bool], keep_days: int | None = None
    ) -> None:
        """drop_prefixes: removes what was computed for an owner; gives whether all of it is gone. keep_days: how long
        conversations are kept after their last message; None: forever.
        """
        self._care, self._drop_prefixes, self._keep_days = care, drop_prefixes, keep_days
        self._in_use = set[str]()  # owners whose prefixes an answer in progress needed
        self._asked = dict[str, str]()  # owners by conversation, which another desk may remove
        self._lock = threading.Lock()

    def tidy(self, now: datetime) -> None:
        """Remove what is due. Raises DeskError."""
        unused_since = None if self._keep_days is None else now - timedelta(days=self._keep_days)
        self.drop(self._care.purge(now - timedelta(seconds=UNDO_S), unused_since) | self._gone_elsewhere())

    def asked(self, conversation_id: str, owner: str) -> None:
        """Watch a conversation that other desks may remove: what was computed for it is here."""
        with self._lock:
            self._asked[conversation_id] = owner

    def _gone_elsewhere(self) -> Set[str]:
        with self._lock:
            asked = dict(self._asked)
        gone = asked.keys() - self._care.present(asked)
        with self._lock:
            return {self._asked.pop(conversation_id, asked[conversation_id]) for conversation_id in gone}

    def drop(self, owners: Set[str]) -> None:
        """Remove what was computed for these owners, and what was in use before; what is in use now, the next time."""
        with self._lock:
            self._in_use = {owner for owner in owners | self._in_use if not self._drop_prefixes(owner)}


def every_minute(housekeeping: Housekeeping) -> AbstractContextManager[None]:
    """Tidy now and every minute, for the block."""
    return repeating("housekeeping", TIDY_EVERY_S, lambda stop: housekeeping.tidy(datetime.now(UTC)))


FOLLOW_EVERY_S: Final = 1.0
ALIVE_EVERY_S: Final = 5.0
WAIT_S: Final = 60.0
"""How long a desk waits for others at most: an answer that began before may take that long."""
_LOOK_S: Final = 0.2


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

    return repeating("following", FOLLOW_EVERY_S, look, "changes of other desks are not seen")


T = TypeVar("T")
LOOK_S = 3.0
"""What does not say within this time that it is there counts as missing."""


class Readiness:
    """Looks at several things, each by a thread of its own. A look that hangs is the only one at its thing. Safe to use
    from any thread.
    """

    def __init__(self, looks: Mapping[str, Callable[[], bool]]) -> None:
        """looks: whether each thing is there, by its name; what fails is not."""
        self._looks, self._lock = looks, Lock()
        self._running: dict[str, Future[bool]] = {}

    def missing(self) -> tuple[str, ...]:
        """The names of what is not there."""
        with self._lock:
            running = self._running = {name: self._begun(name) for name in self._looks}
        wait(running.values(), LOOK_S)
        return tuple(name for name, look in running.items() if not _is_there(look))

    def _begun(self, name: str) -> Future[bool]:
        running = self._running.get(name)
        return in_own_thread(self._looks[name]) if running is None or running.done() else running


def _is_there(look: Future[bool]) -> bool:
    return look.done() and look.exception() is None and look.result()


def in_own_thread(function: Callable[[], T]) -> Future[T]:
    """What a function gives that may take long or hang, without one of the threads that others need. It cannot be
    cancelled.
    """
    given: Future[T] = Future()
    given.set_running_or_notify_cancel()

    def run() -> None:
        try:
            given.set_result(function())
        except BaseException as error:
            given.set_exception(error)

    Thread(target=run, name="own", daemon=True).start()
    return given


def make_room(settings: Settings) -> None:
    """Remove encoded passages where less of the disk is free than should be. Only for who holds the data folder."""
    folder = settings.modules_folder
    with suppress(OSError):  # there is none yet
        space = free_space(folder, settings.disk_floor_bytes)
        if folder.is_dir() and space.free < space.floor:
            from cache.memory.disk import DiskTier  # it takes a while, and mostly there is room

            DiskTier(folder, settings.disk, settings.disk_floor_bytes).make_room()
