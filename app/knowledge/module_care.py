"""What an admin can do with one encoded passage: have it ready in memory, take it out, have it kept, verify it.

Not covered: which passages are encoded by themselves (`reading_ahead`), eviction (`cache.memory.store`).
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from app.domain.errors import DeskError
from app.domain.verified import Verified
from app.knowledge.in_flight import InFlight
from app.knowledge.prompts import PassageText
from app.knowledge.warm import Warming
from app.storage.library import Library
from cache.errors import CacheError
from cache.prompt.plan import Segment

KEPT = "kept modules"
"""Fact: the keys of modules that are to be kept, as a JSON list."""


def kept_modules(library: Library) -> frozenset[str]:
    """The modules that are to be kept."""
    return frozenset(json.loads(library.fact(KEPT) or "[]"))


class ModuleCare:
    """Acts on the modules of one desk, by key. Safe to use from any thread; every method raises DeskError for a module
    that encodes no passage of the desk, and where memory is short.
    """

    def __init__(self, warming: Warming, in_flight: InFlight) -> None:
        self._library, self._engine, self._prompts = warming.library, warming.engine, warming.prompts
        self._in_flight = in_flight

    def warm(self, key: str) -> None:
        """Have a module in memory: from disk, or encoded now."""
        with self._in_flight.track(), _as_desk_errors():
            self._engine.bring_to_device(self._segment(key))

    def evict(self, key: str) -> None:
        """Take a module out of memory; a copy on disk stays. Raises DeskError while an answer uses it."""
        self._segment(key)
        if not self._engine.evict(key):
            raise DeskError("this passage is in use by an answer: try again in a moment", code="module-in-use")

    def keep(self, key: str, *, is_kept: bool) -> None:
        """Let a module be evicted only when nothing else may be; or not any more."""
        self._segment(key)
        kept = kept_modules(self._library) & self._library.module_keys()
        kept = kept | {key} if is_kept else kept - {key}
        self._library.set_fact(KEPT, json.dumps(sorted(kept)))
        self._engine.keep(kept)

    def verify(self, key: str) -> Verified:
        """Compute a module anew and compare it with what is stored, number by number; of a file the checksum, too. A
        file that cannot be read is removed.
        """
        with self._in_flight.track(), _as_desk_errors():
            check = self._engine.verify(self._segment(key))
        return Verified(largest_difference=check.largest_difference, problem=check.problem)

    def _segment(self, key: str) -> Segment:
        """The segment that a module encodes now."""
        passage = self._library.passage_of_module(key)
        if passage is not None:
            segment = self._engine.segment(self._prompts.module(PassageText.of(passage)))
            if self._engine.key(segment) == key:
                return segment
        raise DeskError("this passage is not there any more, or its text has changed", code="module-unknown")


@contextmanager
def _as_desk_errors() -> Iterator[None]:
    try:
        yield
    except CacheError as error:
        raise DeskError(str(error), code="engine") from error
