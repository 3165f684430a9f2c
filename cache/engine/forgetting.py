"""Deleting modules while requests run.

Earlier requests may still store the modules, so all of them end first. Later requests do not wait: they continue, but
nothing computed with the modules is stored, and requests that have not started look them up again. So a module
requested after the deletion is encoded again, as if the request had come when the deletion was complete. An encoding
without open requests is dropped. Out of scope: removal from the tiers (`cache.memory.store`).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Set
from concurrent.futures import Future
from dataclasses import dataclass

from cache.engine.encoder import EncodeJob, Encoder, keys_of
from cache.engine.running import Running
from cache.engine.waiting import Waiting
from cache.memory.store import Store


@dataclass(frozen=True, slots=True)
class ForgetJob:
    """Modules to remove. find: returns them, called when all earlier work has ended. done: gets the number found.
    is_urgent: does not wait for earlier work.
    """

    find: Callable[[Store], Set[str]]
    done: Future[int]
    is_urgent: bool = False


class ForgetQueue:
    """Jobs, oldest first, each with the requests and jobs that were open when it arrived."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[ForgetJob, frozenset[Waiting | EncodeJob]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def add(self, job: ForgetJob, asked: Collection[Waiting | EncodeJob]) -> None:
        self._jobs.append((job, frozenset(asked)))

    def pop_ready(self, asked: Collection[Waiting | EncodeJob]) -> ForgetJob | None:
        if not self._jobs or not self._jobs[0][1].isdisjoint(asked):
            return None
        return self._jobs.popleft()[0]

    def waits_for(self, asked: Waiting | EncodeJob) -> bool:
        return any(asked in earlier for _, earlier in self._jobs)


def forget_modules(
    keys: Set[str],
    encoder: Encoder,
    running: Iterable[Running],
    waiting: Collection[Waiting],
    jobs: Collection[EncodeJob],
) -> int:
    """Remove modules between two passes. Returns the number found. The other arguments: all open work."""
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
