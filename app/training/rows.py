"""Files of documents with questions and answers, a JSON object per line, also compressed:

{"title": text, "context": text, "qas": [{"question": text, "answers": [text, ...]}, ...]}
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from app.domain.errors import DeskError


def read_rows(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The objects of all files. Raises DeskError that names the file and the line."""
    for file in files:
        try:
            with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as lines:
                for number, line in enumerate(lines, start=1):
                    if not line.strip():
                        continue
                    row = json.loads(line)
                    if wrong := row_error(row):
                        raise DeskError(f"{file}, line {number}: {wrong}", code="bad-row")
                    yield row
        except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
            raise DeskError(f"{file} cannot be read: {error}", code="bad-file") from error


def row_error(row: Any) -> str:
    """Why an object is no document with questions; empty if it is one."""
    if not isinstance(row, dict) or not {"title", "context", "qas"} <= row.keys():
        return "title, context and qas are needed"
    if not isinstance(row["qas"], list) or not all(isinstance(qa, dict) and "question" in qa for qa in row["qas"]):
        return "qas is a list of objects with a question"
    if not all(isinstance(qa.get("answers"), list) for qa in row["qas"]):
        return "answers of a question are a list of texts, empty where the document has none"
    return ""
