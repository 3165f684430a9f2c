"""Files of the indexes: complete or not there, and refused if they are not exactly as they were written.

A file is a line that names its kind, a line with the digest of the rest, a line of JSON, and bytes. Not covered: what
is in it (`vector_index`, `keyword_files`).
"""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval.documents.document import content_hash
from retrieval.errors import IndexDamaged


def write_index_file(path: Path, kind: str, header: Mapping[str, Any], *payload: bytes | memoryview) -> None:
    """Write a file, readable for this user only; at any moment it is the old or the new one. Raises OSError."""
    line = json.dumps(header).encode("ascii") + b"\n"
    start = f"{kind}\n{content_hash(line, *payload)}\n".encode("ascii")
    _replace(path, (start, line, *payload))


def read_index_file(path: Path, kind: str) -> tuple[dict[str, Any], bytes]:
    """The header and the bytes of a file. Raises IndexDamaged when it is missing, truncated, altered, or another kind
    of file.
    """
    try:
        with path.open("rb") as file:
            kind_line, digest, header = (file.readline() for _ in range(3))
            payload = file.read()
    except OSError as error:
        reason = "no index file" if isinstance(error, FileNotFoundError) else str(error)
        raise IndexDamaged(path, reason) from None
    if kind_line != f"{kind}\n".encode("ascii"):
        raise IndexDamaged(path, "not an index of this program")
    if f"{content_hash(header, payload)}\n".encode("ascii") != digest:
        raise IndexDamaged(path, "truncated or altered")
    return json.loads(header), payload


def _sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _replace(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    _sync_folder(path.parent)
