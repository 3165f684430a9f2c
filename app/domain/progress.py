"""How long work tells how far it is, and how far the model has read."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with a stage (a key of `STAGES`), how much of it is done, and how much there is."""
Bars: TypeAlias = Callable[[], AbstractContextManager[Progress]]
"""Shows progress for a block."""

STAGES = {
    "reading": "Reading documents",
    "embedding": "Indexing passages",
    "encoding": "Encoding passages",
    "answering": "Answering",
    "archiving": "Saving files",
    "checking": "Reading them again",
}
"""What each stage is called."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Reports nothing."""


def both(one: Progress, other: Progress) -> Progress:
    """Reports to two."""

    def report(stage: str, done: int, total: int) -> None:
        one(stage, done, total)
        other(stage, done, total)

    return report


@contextmanager
def no_bars() -> Iterator[Progress]:
    """Shows nothing."""
    yield no_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingCost:
    """What encoding takes. modules: how many; seconds: about how long, at the speed that was measured last."""

    modules: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PassagesRead:
    """How many of the passages the model has read (encoded). is_reading: it goes on; else the others have no room, and
    are read when a question needs them.
    """

    read: int
    total: int
    is_reading: bool
