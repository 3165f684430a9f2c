"""Forgetting modules while requests go on: who must end before, and what becomes of those that came later.

Whatever was in flight when modules were to be forgotten may still store them, so all of it ends first. What comes later
does not wait: it goes on, but nothing that it computed with such modules is kept, and what has not begun looks them up
again. Not covered: taking modules out of the tiers (`cache.memory.store`).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Set
from concurrent.futures import Future
from dataclasses import dataclass

from cache.memory.store import Store


@dataclass(frozen=True, slots=True)
class ForgetJob:
    """Modules to be removed. find: which ones, called when all that was in flight has ended. done: gets how many were
    there.
    """

    find: Callable[[Store], Set[str]]
    done: Future[int]


class ForgetQueue:
    """Jobs, the first one first, each with what was in flight when it arrived."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[ForgetJob, frozenset[object]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __iter__(self) -> Iterator[ForgetJob]:
        return (job for job, _ in self._jobs)

    def add(self, job: ForgetJob, in_flight: Collection[object]) -> None:
        """A job that waits for all this."""
        self._jobs.append((job, frozenset(in_flight)))

    def pop_ready(self, in_flight: Collection[object]) -> ForgetJob | None:
        """The next job, if nothing that it waits for is still in flight."""
        if not self._jobs or not self._jobs[0][1].isdisjoint(in_flight):
            return None
        return self._jobs.popleft()[0]
