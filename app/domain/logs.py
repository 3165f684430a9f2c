"""Log records with the id of their request, and messages for the operator on stderr."""

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
    return _request.get()


@contextmanager
def of_request(id_: str) -> Iterator[None]:
    """Mark log records of the block with the request's id. Do not use it around a `yield`: see `steps_of_request`."""
    before = _request.set(id_)
    try:
        yield
    finally:
        _request.reset(before)


def enter_request(id_: str) -> None:
    """Mark later log records with the request's id. Only for a short-lived `contextvars` context of the caller."""
    _request.set(id_)


def in_request(work: Callable[[], T]) -> Callable[[], T]:
    """Return the work for another thread, so that its log records belong to the current request."""
    id_ = request_id()

    def working() -> T:
        with of_request(id_):
            return work()

    return working


def steps_of_request(id_: str, steps: Iterator[T]) -> Iterator[T]:
    """Yield the items of an iterator. Log records of its steps belong to the request, in any thread."""
    while True:
        with of_request(id_):
            try:
                step = next(steps)
            except StopIteration:
                return
        yield step


class OfRequest(logging.Filter):
    """Writes the id of the request into each record."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = request_id()
        return True


class Recurring:
    """Logs errors of repeated work: one line when an error first occurs, not one for each repetition. Out of scope: a
    lost database (`app.storage.database`).
    """

    def __init__(self, log: logging.Logger, failure: str) -> None:
        """failure: the beginning of the log line, such as "housekeeping failed"."""
        self._log, self._failure, self._problem = log, failure, ""

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Log errors of the block instead of raising them."""
        try:
            yield
            self._problem = ""
        except DeskError as error:
            if not error.is_away and str(error) != self._problem:
                self._log.warning("%s: %s", self._failure, error)
            self._problem = str(error)
        except Exception as error:  # such as a programming error: the next run may succeed
            if repr(error) != self._problem:
                self._log.exception("%s", self._failure)
            self._problem = repr(error)


def say(line: str, level: int = logging.INFO) -> None:
    """Write a line for the operator to stderr; if the log is JSON, write it as a log record, whatever its level."""
    handlers = [one for one in logging.getLogger().handlers if isinstance(one.formatter, JsonLines)]
    if handlers:
        record = log.makeRecord(log.name, level, "", 0, line, (), None)
        for handler in handlers:
            handler.handle(record)
    else:
        print(_BEFORE.get(level, "") + line, file=sys.stderr, flush=True)
