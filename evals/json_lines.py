"""Files of JSON lines, also compressed (.gz)."""

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from app.domain.errors import DeskError

T = TypeVar("T")


def read_json_lines(file: Path, parse: Callable[[Any], T], what: str, code: str) -> list[T]:
    """Parse every line that is not blank. Raises DeskError: `code` if a line is not a `what`, with its number and what
    `parse` raised; no-such-file.
    """
    found, number = [], 0
    try:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
            for line in lines:
                number += 1
                if line.strip():
                    found.append(parse(json.loads(line)))
    except FileNotFoundError as error:
        raise DeskError(f"{file}: {error.strerror}", code="no-such-file") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DeskError(f"{file} cannot be read: {error}", code=code) from error
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise DeskError(f"{file}, line {number} is not a {what} ({error!r})", code=code) from error
    return found
