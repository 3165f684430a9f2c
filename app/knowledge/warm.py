"""Encode passages before questions need them, and manage single modules.

`Warming` encodes every passage without a module while the tiers have space. `ReadingAhead` runs it in the background of
a server: for passages of a stopped run, new files and lost modules. The engine serves questions first. `ModuleCare` has
an admin's actions on one module. `InFlight` counts questions and batches that have read the documents but have not
reached the engine. A passage that they found may be deleted, so a deletion waits for them and then for the engine
(`Engine.forget`). It does not wait for later questions, because they do not find the document.

Out of scope: adding passages (`ingest`), eviction (`cache.memory.store`).
"""

import json
import logging
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import TYPE_CHECKING

from app.domain.callers import PML_TENANT
from app.domain.errors import DeskError
from app.domain.progress import Bars, PassagesRead, Progress
from app.knowledge.prompts import PromptBuilder
from app.storage.library import Library
from cache.errors import CacheError, EngineStopped
from cache.memory.keys import PUBLIC_TENANT
from cache.prompt.plan import Segment

if TYPE_CHECKING:
    from cache.engine.request import Encoded
    from cache.memory.keys import ModuleCheck
    from cache.serving.interface import EngineInterface


class InFlight:
    """Counts questions between reading the documents and reaching the engine. unread: numbers of passages without a
    module, while a background run encodes some. wanted: passages to encode first. Safe to use from any thread.
    """

    def __init__(self) -> None:
        self._changed, self._open = threading.Condition(), set[object]()
        self.unread, self.wanted = set[int](), list[int]()

    @contextmanager
    def track(self) -> Iterator[None]:
        """Count a question inside the block: from before it reads the documents until the engine has it."""
        mark = object()
        with self._changed:
            self._open.add(mark)
        try:
            yield
        finally:
            with self._changed:
                self._open.remove(mark)
                self._changed.notify_all()

    def wait(self) -> None:
        with self._changed:
            earlier = set(self._open)
            self._changed.wait_for(lambda: self._open.isdisjoint(earlier))


JOBS_IN_FLIGHT = 2
"""Maximum batches in the engine's queue, enough to fill its forward passes. A deletion waits for these batches."""
AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageReason:
    """A passage that was not encoded, and why."""

    passage: str
    reason: str


@dataclass(slots=True, kw_only=True)
class WarmReport:
    """encoded, kept, dropped: numbers of modules. waiting: passages without space in any tier; they are encoded when a
    question needs them. failed: passages that the model cannot read, or that do not fit into memory.
    """

    encoded: int = 0
    kept: int = 0
    dropped: int = 0
    waiting: int = 0
    failed: list[PassageReason] = field(default_factory=list)

    def count(self, result: "Encoded", num_passages: int) -> None:
        self.encoded += result.computed
        self.kept += num_passages - result.computed - len(result.failed)
        for segment, error in result.failed.items():
            self.failed.append(PassageReason(passage=segment.name, reason=str(error)))
            log.warning("passage %s is not pre-encoded: %s", segment.name, error)

    @property
    def done(self) -> int:
        return self.encoded + self.kept + len(self.failed)


class Warming:
    """Encodes passages without a module, and deletes modules that no passage uses."""

    def __init__(
        self, library: Library, engine: "EngineInterface", prompts: PromptBuilder, in_flight: InFlight
    ) -> None:
        self.library, self.engine, self.prompts, self.in_flight = library, engine, prompts, in_flight

    def run(self, documents: Sequence[str], progress: Progress) -> WarmReport:
        if self.engine.info.is_elsewhere:
            return WarmReport()
        inside = self.library.ids_of(documents)
        others = [id_ for id_ in self.library.all_ids(only_unencoded=True) if id_ not in inside]
        return self.encode([*sorted(inside), *others], progress)

    def modules(self) -> frozenset[str]:
        """Return modules in any tier, and modules from which prefixes in memory were computed, even if evicted."""
        return self.engine.modules(PUBLIC_TENANT) | self.engine.modules_of_prefixes()

    def unused(self) -> frozenset[str]:
        """Return modules that no passage uses. They come from killed runs, and from questions that were asked while
        neighbours were chosen or passages were encoded.
        """
        # In this order: the library knows a module before the engine has it.
        there = self.modules()
        return there - self.library.module_keys() - {self.engine.key(self.engine.segment(self.prompts.system))}

    def forget_unused(self, *, with_pml: bool = False) -> None:
        """Delete unused modules, also modules of questions that have not reached the engine yet. with_pml: also delete
        modules of PML prompts, which may contain text of a deleted document.
        """
        self.in_flight.wait()
        self.engine.settle()
        unused = self.unused()
        if with_pml:
            unused |= self.engine.modules(PML_TENANT)
        if unused or with_pml:
            self.engine.forget(unused)

    def survey(self) -> tuple[list[int], list[int]]:
        """Return all passages without a module, and those of them that fit into the largest tier, in order."""
        if not self.engine.info.places_modules:
            return [], []
        stored = self.engine.modules(PUBLIC_TENANT)
        sizes = self.library.module_sizes()
        unread = [(one.id, one.num_tokens) for one in sizes if one.module_key not in stored]
        # encoding more passages would only evict earlier ones
        room = self.engine.module_room - sum(one.num_tokens for one in sizes if one.module_key in stored)
        tokens = list(accumulate((num_tokens for _, num_tokens in unread), initial=0))
        ids = [id_ for id_, _ in unread]
        return ids, ids[: max(0, bisect_right(tokens, room) - 1)]

    def encode(
        self, ids: Sequence[int], progress: Progress, *, until: Callable[[], bool] = lambda: False
    ) -> WarmReport:
        """Encode passages that have no module yet, a few batches at a time. until: returns whether to stop early."""
        report, left = WarmReport(), dict.fromkeys(ids)
        running: deque[tuple[Future[Encoded], Sequence[int]]] = deque()

        def collect(most: int) -> None:
            while len(running) > most:
                future, some = running.popleft()
                report.count(future.result(), len(some))
                self.in_flight.unread.difference_update(some)
                progress("encoding", report.done, len(ids) - report.waiting)

        room = self.engine.module_room
        while left and not until():
            some = list(islice([id_ for id_ in self.in_flight.wanted if id_ in left] or left, AT_ONCE))
            for id_ in some:
                del left[id_]
            with self.in_flight.track():
                passages = self.library.passages(some)
                segments = [self.engine.segment(self.prompts.module(p)) for p in passages]
                tokens = list(accumulate((len(segment.tokens) for segment in segments), initial=0))
                fitting = bisect_right(tokens, room) - 1
                room -= tokens[fitting]
                report.waiting += len(segments) - fitting
                keys = {p.id: self.engine.key(segment) for p, segment in zip(passages, segments, strict=True)}
                self.library.set_module_keys({p.id: keys[p.id] for p in passages if p.module_key != keys[p.id]})
                if fitting:
                    running.append((self.engine.encode(segments[:fitting]), [p.id for p in passages[:fitting]]))
            collect(JOBS_IN_FLIGHT - 1)
        collect(0)
        self.engine.flush()
        return report


KEPT = "kept modules"  # name of a stored fact: the keys of pinned modules, as a JSON list


def kept_modules(library: Library) -> frozenset[str]:
    return frozenset(json.loads(library.fact(KEPT) or "[]"))


class ModuleCare:
    """Actions on single modules, by key. Safe to use from any thread; every method raises DeskError for a module that
    encodes no passage, and if memory is short.
    """

    def __init__(self, warming: Warming, in_flight: InFlight) -> None:
        self._library, self._engine, self._prompts = warming.library, warming.engine, warming.prompts
        self._in_flight = in_flight

    def warm(self, key: str) -> None:
        with self._in_flight.track(), _as_desk_errors():
            self._engine.bring_to_device(self._segment(key))

    def evict(self, key: str) -> None:
        """Remove a module from memory; a copy on disk stays. Raises DeskError while an answer uses it."""
        self._segment(key)
        if not self._engine.evict(key):
            raise DeskError("this passage is in use by an answer: try again in a moment", code="module-in-use")

    def keep(self, key: str, *, is_kept: bool) -> None:
        self._segment(key)
        kept = kept_modules(self._library) & self._library.module_keys()
        kept = kept | {key} if is_kept else kept - {key}
        self._library.set_fact(KEPT, json.dumps(sorted(kept)))
        self._engine.keep(kept)

    def verify(self, key: str) -> "ModuleCheck":
        """Recompute a module and compare it with the stored module. If its file cannot be read, the file is deleted."""
        with self._in_flight.track(), _as_desk_errors():
            return self._engine.verify(self._segment(key))

    def _segment(self, key: str) -> Segment:
        passage = self._library.passage_of_module(key)
        if passage is not None:
            segment = self._engine.segment(self._prompts.module(passage))
            if self._engine.key(segment) == key:
                return segment
        raise DeskError("this passage no longer exists, or its text has changed", code="module-unknown")


@contextmanager
def _as_desk_errors() -> Iterator[None]:
    try:
        yield
    except CacheError as error:
        raise DeskError(str(error), code="engine") from error


AGAIN_S, _STOPPED_S = 10.0, 2.0
log = logging.getLogger(__name__)


class ReadingAhead:
    """A background thread that encodes passages without a module. Safe to use from any thread."""

    def __init__(self, warming: Warming, bars: Bars, when_read: Callable[[], None]) -> None:
        """bars: show the progress. when_read: called once, when all passages are encoded for the first time."""
        self._warming, self._bars, self._when_read = warming, bars, when_read
        self._look = threading.Event()
        self._look.set()
        self._is_closed = self._was_read = False
        self.state = PassagesRead(read=0, total=0, is_reading=True)
        self._thread = threading.Thread(target=self._run, name="reading-ahead", daemon=True)

    def start(self) -> "ReadingAhead":
        self._thread.start()
        return self

    def look_again(self) -> None:
        self._look.set()

    def stop(self) -> None:
        """Start no further batches. The current batch ends when the engine closes."""
        self._is_closed = True
        self._look.set()

    def join(self) -> None:
        self._thread.join(_STOPPED_S)

    def _run(self) -> None:
        while self._look.wait() and not self._is_closed:
            self._look.clear()
            try:
                self._read()
                if not self._look.is_set() and not self._was_read:
                    self._was_read = True
                    self._when_read()
            except Exception as error:  # questions are still answered
                if not self._is_closed and not (isinstance(error, DeskError) and error.is_away):
                    is_known = isinstance(error, DeskError | CacheError)
                    log.warning("passages could not be encoded: %s", error, exc_info=not is_known)
                is_engine = isinstance(error, CacheError) and not isinstance(error, EngineStopped)
                if is_engine or (isinstance(error, DeskError) and error.is_of_database):  # it may return soon
                    self._look.wait(AGAIN_S)
                    self._look.set()

    def _read(self) -> None:
        ids, due = self._warming.survey()
        unread, total = len(ids), self._warming.library.counts().passages
        self.state = PassagesRead(read=total - unread, total=total, is_reading=bool(due))
        if not due:
            return
        self._warming.in_flight.unread.update(ids)
        with self._bars() as progress:

            def report(stage: str, done: int, _: int) -> None:
                read = total - unread + done
                self.state = PassagesRead(read=read, total=total, is_reading=done < len(due))
                progress(stage, read, total - unread + len(due))

            try:
                done = self._warming.encode(due, report, until=self._look.is_set)
            finally:
                self._warming.in_flight.unread.clear()
        self._warming.forget_unused()  # modules of questions asked before neighbours were chosen
        if done.failed:
            self.state = PassagesRead(read=total - unread + done.encoded + done.kept, total=total, is_reading=False)
