"""Progress of long work and of pre-encoding, and a separate thread for work that may hang."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with a stage (a key of `STAGES`), the finished amount, and the whole amount."""
Bars: TypeAlias = Callable[[], AbstractContextManager[Progress]]

STAGES = {
    "fetching": "Reading pages of the website",
    "reading": "Reading documents",
    "embedding": "Indexing passages",
    "encoding": "Encoding passages",
    "answering": "Answering",
    "archiving": "Saving files",
    "checking": "Checking the saved files",
}


def no_progress(stage: str, done: int, total: int) -> None: ...


@contextmanager
def no_bars() -> Iterator[Progress]:
    yield no_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingCost:
    """The cost of encoding. modules: number of modules. seconds: estimate from the last measured speed."""

    modules: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentsRead:
    """Number of files that an ingestion has read. is_most: most documents are new, so answers may be missing."""

    read: int
    total: int
    is_most: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PassagesRead:
    """The number of encoded passages. is_reading: encoding continues; else memory is full, and the rest is encoded when
    a question needs it.
    """

    read: int
    total: int
    is_reading: bool


def in_own_thread(function: Callable[[], T]) -> Future[T]:
    """Run a function that may hang, so that it occupies none of the shared threads. It cannot be cancelled."""
    given: Future[T] = Future()
    given.set_running_or_notify_cancel()

    def run() -> None:
        try:
            given.set_result(function())
        except BaseException as error:
            given.set_exception(error)

    Thread(target=run, name="own", daemon=True).start()
    return given
