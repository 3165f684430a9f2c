"""What Ray and Serve say, in one line."""

import re


def reason_in(message: str) -> str:
    """The error at the end of a traceback, else all that is said."""
    errors = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|Stopped): (.+)$", message, re.MULTILINE)
    return " ".join((errors[-1] if errors else message).split())


def first_line(error: BaseException) -> str:
    """Of its message, behind which much may stand about processes."""
    return next(iter(str(error).splitlines()), type(error).__name__)
