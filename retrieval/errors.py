"""The errors of this package. Each message is one line that names the thing and, if there is one, the fix.

    RetrievalError            a user's mistake or a missing file: wrong model name, vectors of another size
    ├── UnreadableDocument    one file that cannot become a document; other files are still read
    └── IndexDamaged          a saved index that must be rebuilt from the stored passages

Bugs are assertions, not these errors.
"""

from pathlib import Path

from retrieval.text.terms import printable


class RetrievalError(Exception):
    """Base of all errors that this package raises on purpose."""


class UnreadableDocument(RetrievalError):
    """A file that cannot become a document. `reason` is one line without the path, for example "empty file"."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{printable(path)}: {reason}")
        self.path = path
        self.reason = reason


class IndexDamaged(RetrievalError):
    """A saved index that is missing, truncated, altered, or made by another embedder."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{printable(path)}: {reason}; rebuild the index from the stored passages")
        self.reason = reason


def file_problem(error: Exception) -> str:
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
    return (str(error).strip() or type(error).__name__).splitlines()[0]
