"""Messages of Ray and Serve in one line."""

import re


def reason_in(message: str) -> str:
    """Return the error at the end of a traceback, or else the message."""
    errors = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|Stopped): (.+)$", message, re.MULTILINE)
    return " ".join((errors[-1] if errors else message).split())


def first_line(error: BaseException) -> str:
    """Return the first line of its message; details of processes follow it."""
    return next(iter(str(error).splitlines()), type(error).__name__)
