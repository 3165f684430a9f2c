"""The log of a process on stderr, as text or as one JSON object per line.

It contains no words of customers: an exception that may quote its input (`QUOTING`) is logged without its message.
"""

import json
import logging
import sys
import threading
import traceback
from datetime import UTC, datetime
from typing import Literal, TypeAlias

LogFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

QUOTING = (ValueError, LookupError)
"""Exceptions whose messages may quote values, including exceptions of pydantic and of decoding."""
_PACKAGES = ("app", "cache", "retrieval", "evals")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "request_id"}

log = logging.getLogger(__name__)


class TextLines(logging.Formatter):
    """Formats a record as text: level, logger, message, and the request id if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        request = f" [request {found}]" if (found := getattr(record, "request_id", "")) else ""
        line = f"{record.levelname} {record.name}: {said(record)}{request}"
        return f"{line}\n{told}" if (told := traced(record)) else line


class JsonLines(logging.Formatter):
    """Formats a record as one object: time (UTC), level, logger, message, request_id, `extra` fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": said(record),
        }
        if found := getattr(record, "request_id", ""):
            line["request_id"] = found
        given = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        line |= {key: value for key, value in given.items() if not key.startswith("_")}  # those are libraries' own
        if told := traced(record):
            line["exception"] = told
        return json.dumps(line, ensure_ascii=False, default=str)


def said(record: logging.LogRecord) -> str:
    if isinstance(record.args, tuple):
        args = tuple(type(one).__name__ if isinstance(one, QUOTING) else one for one in record.args)
        return str(record.msg) % args if args else str(record.msg)
    return record.getMessage()


def traced(record: logging.LogRecord) -> str:
    """Return the tracebacks of the exception and its causes, latest last; "" without exception."""
    error = record.exc_info[1] if record.exc_info else None
    parts: list[str] = []
    while error is not None and len(parts) < 10:
        last = [type(error).__qualname__] if isinstance(error, QUOTING) else traceback.format_exception_only(error)
        parts.append("".join([*traceback.format_tb(error.__traceback__), *last]).rstrip())
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\nwhich caused:\n".join(reversed(parts))


def write_log(format_: LogFormat = "text", level: LogLevel = "warning", *filters: logging.Filter) -> None:
    """Set up the log of this process, unless it has one. level: for our packages; libraries log warnings only."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(written := logging.StreamHandler(sys.stderr))
        written.setFormatter(TextLines())
    ours = [handler for handler in root.handlers if isinstance(handler.formatter, TextLines | JsonLines)]
    for handler in ours:
        handler.setFormatter(JsonLines() if format_ == "json" else TextLines())
        handler.filters[:] = filters
    if ours:
        root.setLevel(logging.WARNING)
        for name in _PACKAGES:
            logging.getLogger(name).setLevel(level.upper())
        threading.excepthook = _thread_failed
        if format_ == "json":
            logging.captureWarnings(True)
            sys.excepthook = _program_failed


def _thread_failed(args: threading.ExceptHookArgs) -> None:
    name = args.thread.name if args.thread is not None else "?"
    log.critical("the thread %s failed", name, exc_info=args.exc_value)


def _program_failed(kind: object, error: BaseException, trace: object) -> None:
    log.critical("the program failed", exc_info=error)
