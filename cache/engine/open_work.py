"""What the engine was asked for and has not ended: if its core fails, all of it gets an end, wherever it was."""

from cache.engine.encoder import EncodeJob
from cache.engine.forgetting import ForgetJob
from cache.engine.waiting import Waiting
from cache.errors import CacheError

Work = Waiting | EncodeJob | ForgetJob


class OpenWork:
    """Owned by the engine thread."""

    def __init__(self) -> None:
        self._added: list[Work] = []  # some of it may have ended

    def add(self, work: Work) -> None:
        """From now on until it ends."""
        self._added = [one for one in self._added if not _has_ended(one)] + [work]

    def fail(self, error: CacheError) -> None:
        """End all of it with an error."""
        for work in self._added:
            if _has_ended(work):
                continue
            if isinstance(work, Waiting):
                work.generation.deliver(error)
            else:
                work.done.set_exception(error)
        self._added = []


def _has_ended(work: Work) -> bool:
    return work.generation.is_over if isinstance(work, Waiting) else work.done.done()
