"""A stream for copies on a processor: it does what it is given only when somebody waits for it, as late as may be."""

from contextlib import contextmanager
from dataclasses import dataclass

import cache.memory.arena
from cache.errors import CacheError


@dataclass(frozen=True)
class FakeEvent:
    """Behind the first `at` copies of a stream."""

    stream: "FakeStream"
    at: int

    def query(self):
        return self.stream.done >= self.at

    def elapsed_time(self, end_event):
        assert end_event.query()
        return (end_event.at - self.at) * self.stream.seconds_per_copy * 1e3


class FakeStream:
    """done: how many of the copies that it was given were made. What computes does so at once, so the stream only
    checks that it was told to wait for it.
    """

    def __init__(self, seconds_per_copy=1e-9, has_pages=True):
        self.seconds_per_copy, self.has_pages = seconds_per_copy, has_pages
        self.done = 0
        self.locked = set()
        self.failures = []
        self._given = []
        self._waits = False

    @property
    def given(self):
        return len(self._given)

    def run(self, work):
        assert self._waits, "copies do not wait for what is computed"
        if self.failures:
            raise self.failures.pop()
        self._given.append(work)

    def record(self):
        return FakeEvent(self, self.given)

    def wait_for_compute(self):
        self._waits = True

    def hold_compute(self, event):
        self._waits = False
        self.advance(event.at - self.done)

    def synchronize(self):
        self.advance(self.given - self.done)

    def advance(self, copies):
        for _ in range(min(copies, self.given - self.done)):
            self._given[self.done]()
            self._given[self.done] = lambda: None
            self.done += 1

    def staged(self, rows):
        return rows.clone()

    def lock(self, memory):
        if not self.has_pages:
            raise CacheError("it cannot be locked")
        self.locked.add(memory.data_ptr())
        memory.fill_(77)

    def unlock(self, memory):
        assert self.done == self.given
        self.locked.remove(memory.data_ptr())


@contextmanager
def streams(monkeypatch, **options):
    """Arenas made meanwhile have such streams, as if they were on a GPU."""
    made = []

    def stream_of(device):
        made.append(FakeStream(**options))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(cache.memory.arena, "copy_stream_of", stream_of)
        yield made
