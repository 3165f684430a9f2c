"""The errors of this package; each message is one line that names the thing and, if there is one, the cure.

    RetrievalError            a user's mistake or a missing piece: wrong model name, vectors that do not fit
    ├── UnreadableDocument    one file that cannot become a document; the others go on
    └── IndexDamaged          a saved index that must be rebuilt from the stored passages

Bugs of our own are assertions, not these.
"""

from pathlib import Path

from retrieval.text.terms import printable


class RetrievalError(Exception):
    """Base of everything this package raises on purpose."""


class UnreadableDocument(RetrievalError):
    """A file that gives no document. `reason` is one line without the path, such as "empty file"."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{printable(path)}: {reason}")
        self.path = path
        self.reason = reason


class IndexDamaged(RetrievalError):
    """A saved vector index that is missing, truncated, altered, or made by another embedder."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{printable(path)}: {reason}; rebuild the index from the stored passages")
        self.reason = reason


def file_problem(error: Exception) -> str:
    """Why a file or folder cannot be opened, in one line without its name."""
    match error:
        case FileNotFoundError():
            return "no such file or folder"
        case PermissionError():
            return "permission denied"
        case RuntimeError():
            return "symbolic link that leads to itself"
        case OSError() if error.strerror:
            return error.strerror.lower()
        case _:
            return "not a usable path"


def first_line(error: Exception) -> str:
    """The first line of a library's message, which may have many."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
