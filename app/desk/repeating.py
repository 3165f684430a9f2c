"""Repeated work of a server, in its own threads: synchronised folders, housekeeping, changes of other servers,
readiness, disk space.

`syncing` re-reads synchronised folders that are due. Every minute, `Housekeeping` removes expired look-ups, deleted
conversations, and conversations unused for longer than the setting `keep_days`. It also removes everything computed for
their owners, even if another server removed them. With several servers on one database, each checks every second if
another one changed documents or the FAQ (`Following`), and applies the change to its search, prompts and encoded
passages. A delete command waits until the other servers have done this. It does not wait for a server that has stopped
or lost the database: such a server applies the changes before it answers again. `Readiness` checks the parts that a
question needs, and does not wait long for a check that hangs.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Final

from app.domain.logs import Recurring
from app.domain.progress import Progress, in_own_thread
from app.knowledge.uploads import SyncStopped
from app.storage.conversation_care import UNDO_S, ConversationCare
from app.storage.document_change import Desks
from app.storage.library import Library

_STOPPED_S = 5.0
log = logging.getLogger(__name__)


@contextmanager
def repeating(name: str, every_s: float, work: Callable[[threading.Event], None], failure: str = "") -> Iterator[None]:
    """While the block runs, do `work` at once and then every `every_s` seconds. A failure is logged and does not stop
    the repetition. work: gets an event that is set when the block ends, and must then return soon. name: of the thread.
    failure: start of the log line of a failure; default: "NAME failed".
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
    """Read due folders repeatedly. A run can stop between files or passages. is_ready: if false, nothing is read."""

    def read(stop: threading.Event) -> None:
        def go_on(stage: str, done: int, total: int) -> None:
            if stop.is_set():
                raise SyncStopped

        if is_ready():
            with suppress(SyncStopped):
                run_due(go_on)

    return repeating("syncing", LOOK_EVERY_S, read)


TIDY_EVERY_S = 60.0
MOST_WATCHED = 5000  # maximum conversations that a server checks each minute
CLOCK_S = 3600.0  # seconds after the start in which the machine's clock may still be wrong


class Housekeeping:
    """Removes expired and deleted data; see the module. `tidy` runs every minute. Safe to use from any thread."""

    def __init__(
        self,
        care: ConversationCare,
        drop_prefixes: Callable[[str], bool],
        keep_days: int | None = None,
        tidy_lookups: Callable[[datetime], None] = lambda now: None,
    ) -> None:
        """drop_prefixes: removes an owner's prefixes and returns whether none is left. keep_days: lifetime of
        conversations after their last message; None: forever.
        """
        self._care, self._drop_prefixes, self._keep_days = care, drop_prefixes, keep_days
        self._tidy_lookups = tidy_lookups
        self._in_use = set[str]()  # owners with prefixes in use by a running answer
        self._asked = dict[str, str]()  # owners by conversation, which another server may remove
        self._lock = threading.Lock()

    def tidy(self, now: datetime, *, is_clock_set: bool = True) -> None:
        """Remove due data. If the clock is not set, unused conversations stay, because it may be years ahead."""
        self._tidy_lookups(now)
        is_due = self._keep_days is not None and is_clock_set
        unused_since = now - timedelta(days=self._keep_days or 0) if is_due else None
        self.drop(self._care.purge(now - timedelta(seconds=UNDO_S), unused_since) | self._gone_elsewhere())

    def asked(self, conversation_id: str, owner: str) -> None:
        """Watch a conversation whose prefixes this server has, because another server may remove the conversation. If
        more than MOST_WATCHED are watched, the prefixes of the one with the oldest question are removed.
        """
        with self._lock:
            self._asked.pop(conversation_id, None)
            self._asked[conversation_id] = owner
            if len(self._asked) > MOST_WATCHED:
                self._in_use.add(self._asked.pop(next(iter(self._asked))))

    def _gone_elsewhere(self) -> Set[str]:
        with self._lock:
            asked = dict(self._asked)
        gone = asked.keys() - self._care.present(asked)
        with self._lock:
            return {self._asked.pop(conversation_id, asked[conversation_id]) for conversation_id in gone}

    def drop(self, owners: Set[str]) -> None:
        """Remove the prefixes of these owners. Prefixes that an answer uses are removed by a later call."""
        with self._lock:
            self._in_use = {owner for owner in owners | self._in_use if not self._drop_prefixes(owner)}


def every_minute(housekeeping: Housekeeping) -> AbstractContextManager[None]:
    began = time.monotonic()

    def tidy(stop: threading.Event) -> None:
        housekeeping.tidy(datetime.now(UTC), is_clock_set=time.monotonic() - began >= CLOCK_S)

    return repeating("housekeeping", TIDY_EVERY_S, tidy)


FOLLOW_EVERY_S: Final = 1.0
ALIVE_EVERY_S: Final = 5.0
WAIT_S: Final = 60.0  # maximum time to wait for other servers: an answer that began earlier may take that long
_LOOK_S: Final = 0.2


class Following:
    """Applies the changes of other servers. Safe to use from any thread; methods may raise DeskError."""

    def __init__(self, library: Library, desks: Desks, follow: Callable[[], None], save: Callable[[], None]) -> None:
        """follow: applies all changes of other servers. save: writes the search index to disk."""
        self._library, self._desks, self._follow, self._save = library, desks, follow, save
        self._generation = self._saved = -1
        self._lock, self._noting = threading.Lock(), threading.Lock()

    def look(self) -> None:
        with self._lock:
            generation = self._library.generation()
            if generation != self._generation:
                self._follow()
            elif generation != self._saved:  # a series of changes has ended
                self._save()
                self._saved = generation
            if generation != self._generation:
                with self._noting:
                    self._desks.note(generation)
                    self._generation = generation

    def beat(self) -> None:
        """Tell the other servers that this server is running, also while `look` waits for running answers."""
        with self._noting:
            if self._generation >= 0:
                self._desks.note(self._generation)

    def wait_for_others(self) -> None:
        """Return when all other servers have applied all changes until now, or after `WAIT_S`."""
        generation, deadline = self._library.generation(), time.monotonic() + WAIT_S
        while behind := self._desks.behind(generation):
            if time.monotonic() >= deadline:
                log.warning("%d other servers are still busy: they apply the deletion later", behind)
                return
            time.sleep(_LOOK_S)

    def leave(self) -> None:
        if self._generation >= 0:
            self._desks.leave()


@contextmanager
def following(one: Following, is_ready: Callable[[], bool]) -> Iterator[None]:
    """Apply changes of other servers repeatedly. is_ready: if false, no part is open and nothing is applied."""

    def look(stop: threading.Event) -> None:
        if is_ready():
            one.look()

    with (
        repeating("heartbeat", ALIVE_EVERY_S, lambda stop: one.beat(), "other servers do not see this one"),
        repeating("following", FOLLOW_EVERY_S, look, "changes of other servers are not seen"),
    ):
        yield


LOOK_S = 3.0  # a part that does not answer within this time counts as missing


class Readiness:
    """Checks several parts, each in its own thread. A check that hangs is not started again. Safe to use from any
    thread.
    """

    def __init__(self, looks: Mapping[str, Callable[[], bool]]) -> None:
        """looks: by name of the part, a function that returns whether it works; an error counts as False."""
        self._looks, self._lock = looks, Lock()
        self._running: dict[str, Future[bool]] = {}

    def missing(self) -> tuple[str, ...]:
        """Return the names of the parts that do not work. Waits at most `LOOK_S` seconds."""
        with self._lock:
            running = self._running = {name: self._begun(name) for name in self._looks}
        wait(running.values(), LOOK_S)
        works = {name for name, look in running.items() if look.done() and look.exception() is None and look.result()}
        return tuple(name for name in running if name not in works)

    def _begun(self, name: str) -> Future[bool]:
        running = self._running.get(name)
        return in_own_thread(self._looks[name]) if running is None or running.done() else running
