"""Work on a thread of its own."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


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
