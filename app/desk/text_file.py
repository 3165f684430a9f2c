"""Reading a text file that somebody named on the command line."""

from pathlib import Path

from app.domain.errors import DeskError


def read_text(file: Path) -> str:
    """The content of a UTF-8 file. Raises DeskError."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DeskError(f"{file} is not UTF-8 text: convert it", code="not-text") from error
    except OSError as error:
        raise DeskError(f"{file}: {error.strerror or error}", code="no-such-file") from error
