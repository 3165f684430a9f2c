"""What a question needs and is not there, found without waiting long: what is looked at may hang, and a look with it.

Not covered: what is looked at (`service`), and who is told (`app.web.opening`).
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from threading import Lock, Thread
from typing import TypeVar

T = TypeVar("T")
LOOK_S = 3.0
"""What does not say within this time that it is there counts as missing."""


class Readiness:
    """Looks at several things, each by a thread of its own. A look that hangs is the only one at its thing. Safe to use
    from any thread.
    """

    def __init__(self, looks: Mapping[str, Callable[[], bool]]) -> None:
        """looks: whether each thing is there, by its name; what fails is not."""
        self._looks, self._lock = looks, Lock()
        self._running: dict[str, Future[bool]] = {}

    def missing(self) -> tuple[str, ...]:
        """The names of what is not there."""
        with self._lock:
            running = self._running = {name: self._begun(name) for name in self._looks}
        wait(running.values(), LOOK_S)
        return tuple(name for name, look in running.items() if not _is_there(look))

    def _begun(self, name: str) -> Future[bool]:
        running = self._running.get(name)
        return in_own_thread(self._looks[name]) if running is None or running.done() else running


def _is_there(look: Future[bool]) -> bool:
    return look.done() and look.exception() is None and look.result()


def in_own_thread(function: Callable[[], T]) -> Future[T]:
    """What a function gives that may take long or hang, without one of the threads that others need. It cannot be
    cancelled.
    """
    given: Future[T] = Future()
    given.set_running_or_notify_cancel()

    def run() -> None:
        try:
            given.set_result(function())
        except BaseException as error:
            given.set_exception(error)

    Thread(target=run, name="own", daemon=True).start()
    return given
