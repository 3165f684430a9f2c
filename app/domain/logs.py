"""What a desk says of itself: log records know the request that they belong to, and who started the program is told
what happens.

Not covered: how records are written (`cache.engine.log_lines`), which id a request has (`app.web.request_log`).
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from app.domain.errors import DeskError
from cache.engine.log_lines import JsonLines

T = TypeVar("T")

_request: ContextVar[str] = ContextVar("request_id", default="")
_BEFORE = {logging.WARNING: "warning: ", logging.ERROR: "error: "}
log = logging.getLogger("app")


def request_id() -> str:
    """Of the request that is being answered; "" outside of one."""
    return _request.get()


@contextmanager
def of_request(id_: str) -> Iterator[None]:
    """What is logged within the block belongs to a request. Not around a `yield`: see `steps_of_request`."""
    before = _request.set(id_)
    try:
        yield
    finally:
        _request.reset(before)


def enter_request(id_: str) -> None:
    """What is logged from now on belongs to a request. Only where the context is the caller's own, and ends soon."""
    _request.set(id_)


def in_request(work: Callable[[], T]) -> Callable[[], T]:
    """Work for another thread, which belongs to the request of now."""
    id_ = request_id()

    def working() -> T:
        with of_request(id_):
            return work()

    return working


def steps_of_request(id_: str, steps: Iterator[T]) -> Iterator[T]:
    """The steps of an iterator, each of which may be taken by another thread, as those of a request."""
    while True:
        with of_request(id_):
            try:
                step = next(steps)
            except StopIteration:
                return
        yield step


class OfRequest(logging.Filter):
    """Notes in each record which request it belongs to."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets all through."""
        record.request_id = request_id()
        return True


class Recurring:
    """What is done again and again, whether it succeeds or not: an error of the desk is one line when it begins, not
    each time. Not covered: a database that is away, which says so itself.
    """

    def __init__(self, log: logging.Logger, failure: str) -> None:
        """failure: what the line begins with, such as "housekeeping failed"."""
        self._log, self._failure, self._problem = log, failure, ""

    @contextmanager
    def trying(self) -> Iterator[None]:
        """One time; nothing leaves the block."""
        try:
            yield
            self._problem = ""
        except DeskError as error:
            if not error.is_away and str(error) != self._problem:
                self._log.warning("%s: %s", self._failure, error)
            self._problem = str(error)
        except Exception:  # such as a mistake of ours: the next time may be better
            self._log.exception("%s", self._failure)


def say(line: str, level: int = logging.INFO) -> None:
    """Tell who started the program, on stderr: a plain line, or a record of any level where the log is JSON."""
    handlers = [one for one in logging.getLogger().handlers if isinstance(one.formatter, JsonLines)]
    if handlers:
        record = log.makeRecord(log.name, level, "", 0, line, (), None)
        for handler in handlers:
            handler.handle(record)
    else:
        print(_BEFORE.get(level, "") + line, file=sys.stderr, flush=True)
