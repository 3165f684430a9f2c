"""Forgetting modules while requests go on: who must end before, and what becomes of those that came later.

What was asked for before modules were to be forgotten may still store them, so all of it ends first. What comes later
does not wait: it goes on, but nothing that it computed with such modules is kept, and what has not begun looks them up
again. So a module that is asked for later is there again later, as if it had been asked for when all was forgotten.
An encoding that nobody waits for any more is dropped: a request that has ended may have left it, and it is in no tier
in which it could be found. Not covered: taking modules out of the tiers (`cache.memory.store`).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from concurrent.futures import Future
from dataclasses import dataclass

from cache.engine.encoder import EncodeJob, Encoder, keys_of
from cache.engine.running import Running
from cache.engine.waiting import Waiting
from cache.memory.store import Store


@dataclass(frozen=True, slots=True)
class ForgetJob:
    """Modules to be removed. find: which ones, called when all that was asked for before has ended. done: gets how many
    were there. is_urgent: it waits for nothing that was asked for before.
    """

    find: Callable[[Store], Set[str]]
    done: Future[int]
    is_urgent: bool = False


class ForgetQueue:
    """Jobs, the first one first, each with the requests and jobs that were there when it arrived."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[ForgetJob, frozenset[Waiting | EncodeJob]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __iter__(self) -> Iterator[ForgetJob]:
        return (job for job, _ in self._jobs)

    def add(self, job: ForgetJob, asked: Collection[Waiting | EncodeJob]) -> None:
        """A job that waits for all this."""
        self._jobs.append((job, frozenset(asked)))

    def pop_ready(self, asked: Collection[Waiting | EncodeJob]) -> ForgetJob | None:
        """The next job, if nothing that it waits for is among what has not ended."""
        if not self._jobs or not self._jobs[0][1].isdisjoint(asked):
            return None
        return self._jobs.popleft()[0]

    def waits_for(self, asked: Waiting | EncodeJob) -> bool:
        """Whether something is forgotten only when this has ended."""
        return any(asked in earlier for _, earlier in self._jobs)


def forget_modules(
    keys: Set[str],
    encoder: Encoder,
    running: Iterable[Running],
    waiting: Collection[Waiting],
    jobs: Collection[EncodeJob],
) -> int:
    """Remove modules between two passes; gives how many were there. The others are all that has not ended."""
    store = encoder.store
    for answer in running:
        answer.keeps_rows &= not answer.admitted.uses(keys, store)
    for request in waiting:
        if request.uses(keys, store):
            request.release(store)
    for key, encoding in [*encoder.running.items()]:
        is_wanted = any(one.uses({key}, store) for one in waiting) or any(job.wants(key, store) for job in jobs)
        if is_wanted and keys.isdisjoint(keys_of(encoding.segment, encoding.tenant, store)):
            continue
        encoder.fail(key)  # requests start it again, and so does its job
        for job in jobs:
            if key in job.started:
                job.segments.appendleft((job.started.pop(key), encoding.tenant))
    return store.forget(keys)
