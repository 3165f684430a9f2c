"""A stream for copies on a processor: it does what it is given only when somebody waits for it, as late as may be."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

import cache.memory.arena
from cache.errors import CacheError


@dataclass(frozen=True)
class FakeEvent:
    """Behind the first `at` copies of a stream."""

    stream: "FakeStream"
    at: int

    def query(self) -> bool:
        return self.stream.done >= self.at

    def elapsed_time(self, end_event: Any) -> float:
        assert end_event.query()
        return (end_event.at - self.at) * self.stream.seconds_per_copy * 1e3


class FakeStream:
    """done: how many of the copies that it was given were made. What computes does so at once, so the stream only
    checks that it was told to wait for it.
    """

    def __init__(self, seconds_per_copy: float = 1e-9, has_pages: bool = True) -> None:
        self.seconds_per_copy, self.has_pages = seconds_per_copy, has_pages
        self.done = 0
        self.locked: set[int] = set()
        self.failures: list[Exception] = []
        self._given: list[Callable[[], None]] = []
        self._waits = False

    @property
    def given(self) -> int:
        return len(self._given)

    def run(self, work: Callable[[], None]) -> None:
        assert self._waits, "copies do not wait for what is computed"
        if self.failures:
            raise self.failures.pop()
        self._given.append(work)

    def record(self) -> FakeEvent:
        return FakeEvent(self, self.given)

    def wait_for_compute(self) -> None:
        self._waits = True

    def hold_compute(self, event: Any) -> None:
        self._waits = False
        self.advance(event.at - self.done)

    def synchronize(self) -> None:
        self.advance(self.given - self.done)

    def advance(self, copies: int) -> None:
        for _ in range(min(copies, self.given - self.done)):
            self._given[self.done]()
            self._given[self.done] = lambda: None
            self.done += 1

    def staged(self, rows: Tensor) -> Tensor:
        return rows.clone()

    def lock(self, memory: Tensor) -> None:
        if not self.has_pages:
            raise CacheError("it cannot be locked")
        self.locked.add(memory.data_ptr())
        memory.fill_(77)

    def unlock(self, memory: Tensor) -> None:
        assert self.done == self.given
        self.locked.remove(memory.data_ptr())


@contextmanager
def streams(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[list[FakeStream]]:
    """Arenas made meanwhile have such streams, as if they were on a GPU."""
    made: list[FakeStream] = []

    def stream_of(device: object) -> FakeStream:
        made.append(FakeStream(**options))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(cache.memory.arena, "copy_stream_of", stream_of)
        yield made
