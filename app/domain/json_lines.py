"""Read files of JSON lines, plain or compressed with gzip."""

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from app.domain.errors import DeskError

T = TypeVar("T")


def read_json_lines(file: Path, parse: Callable[[Any], T], what: str, code: str) -> dict[int, T]:
    """Parse every line that is not blank; return the results by line number. what: name of a valid line, for the
    message. Raises DeskError with `code` for a damaged file or an invalid line, or with not-text or no-such-file.
    """
    found, number = dict[int, T](), 0
    try:
        with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    found[number] = parse(json.loads(line))
    except FileNotFoundError as error:
        raise DeskError(f"{file}: {error.strerror}", code="no-such-file") from error
    except UnicodeDecodeError as error:
        raise DeskError(f"{file} is not UTF-8 text: convert it", code="not-text") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DeskError(f"{file} cannot be read: {error}", code=code) from error
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise DeskError(f"{file}, line {number} is not a {what} ({error!r})", code=code) from error
    return found
