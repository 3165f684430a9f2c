"""The end of a failed command: one line `error: ...` on stderr and a non-zero status; with --json
also JSON on stdout.
"""

import json
import logging
import sys
from typing import NoReturn

from app.domain.logs import say

INTERRUPTED = "interrupted; finished work is kept, and the same command continues"


def fail(code: str, message: str, *, status: int = 1, details: dict[str, object] | None = None) -> NoReturn:
    """Print an error as one line, with --json also as JSON, and end the program. details: more JSON keys."""
    line = " ".join(message.split())
    if "--json" in sys.argv:
        print(json.dumps({"error": {"code": code, "message": line, **(details or {})}}))
    say(line, logging.ERROR)
    raise SystemExit(status)


def known_error(error: Exception) -> tuple[str | None, dict[str, object]]:
    """Code and details of an intended error of `cache` or `retrieval`; no code for a programming error."""
    from cache.errors import CacheError, PMLError
    from retrieval.errors import RetrievalError

    if isinstance(error, PMLError):
        return "pml", {"line": error.line, "column": error.column, "where": error.where, "source": error.source}
    if isinstance(error, CacheError):
        return type(error).__name__.removesuffix("Error").lower(), {}
    return "retrieval" if isinstance(error, RetrievalError) else None, {}


def explain(error: OSError) -> str:
    """An operating-system error as a line that names the thing and, if known, the fix."""
    reason = error.strerror or str(error)
    where = f" ({error.filename})" if error.filename else ""
    cure = ": free some space and run the same command again" if "space" in reason.lower() else ""
    return f"{reason[:1].lower()}{reason[1:]}{where}{cure}"
