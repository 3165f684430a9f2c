"""Modules that a request may need soon: they are brought to device memory, from disk or by encoding, while none runs.

A prefetch is a guess, and nobody waits for it. Between two steps it holds nothing: what it found is unpinned at once
and may be evicted like any other. It ends early when memory is short, when something fails, and when anything is
forgotten. A request that arrives looks its modules up by itself, and takes over those that are on their way. Not
covered: what to guess.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from cache.engine.encoder import MAX_ENCODINGS, Encoder, keys_of
from cache.prompt.plan import Segment

MOST_PREFETCHES = 8
"""Of more, the oldest are dropped: what was guessed long ago is of least use."""
log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Prefetch:
    """segments: modules that were not seen in device memory yet, the most wanted first."""

    segments: list[Segment]
    tenant: str
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Drop what has not begun. From any thread, at any time."""
        self.is_cancelled = True


class PrefetchQueue:
    """Prefetches, the oldest first. Owned by the engine thread."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._open: deque[Prefetch] = deque(maxlen=MOST_PREFETCHES)

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, prefetch: Prefetch) -> None:
        """Begin when nothing else is to be done."""
        self._open.append(prefetch)

    def clear(self) -> None:
        """End all of them."""
        self._open.clear()

    def advance(self, ends: Callable[[], bool]) -> None:
        """Look up the modules of the oldest one; what is missing begins to be read or encoded. ends: asked before each
        module, whether to go on later, because reading one takes a while.
        """
        while self._open:
            oldest = self._open[0]
            try:
                self._look_up(oldest, ends)
            except Exception as error:  # such as no memory: nobody waits for it
                log.debug("a prefetch ended early: %s", error)
                oldest.cancel()
            if oldest.segments and not oldest.is_cancelled:
                return
            self._open.popleft()

    def wants(self, key: str) -> bool:
        """Whether the oldest one waits for a module, itself or as a conditioning prefix."""
        return bool(self._open) and self._waits_for(self._open[0], key)

    def give_up(self, key: str) -> None:
        """End those that wait for a module that cannot be encoded."""
        for prefetch in self._open:
            if self._waits_for(prefetch, key):
                prefetch.cancel()

    def _look_up(self, prefetch: Prefetch, ends: Callable[[], bool]) -> None:
        for segment in [*prefetch.segments]:
            if prefetch.is_cancelled or ends():
                return
            if self._is_there(segment, prefetch.tenant):
                prefetch.segments.remove(segment)

    def _is_there(self, segment: Segment, tenant: str) -> bool:
        """Whether a module is in device memory; else it is on its way, or has to wait for other encodings."""
        store, running = self._encoder.store, self._encoder.running
        key = store.key(segment, tenant)
        if key in store.device.entries:
            return True
        if store.tier(key) is None and key not in running and len(running) >= MAX_ENCODINGS:
            return False
        lookup = self._encoder.find(segment, tenant)
        if lookup.entry is not None:
            store.device.release(lookup.entry)
        return lookup.entry is not None

    def _waits_for(self, prefetch: Prefetch, key: str) -> bool:
        return any(key in keys_of(segment, prefetch.tenant, self._encoder.store) for segment in prefetch.segments)
