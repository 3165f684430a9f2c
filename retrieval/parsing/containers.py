"""Protection around the parsers of binary formats: checks of zip containers, and one clear error for every failure.

Office files are zip archives of XML. Before a parser reads one, its parts are unpacked here once, in small pieces, to
measure them and to find entity declarations, which only XML bombs need. Nothing is written to disk, so file names in an
archive do no harm. If a file gets past these checks, the limits of `retrieval.reading` still hold.
"""

import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retrieval.errors import UnreadableDocument

_MOST_UNPACKED = 200 * 2**20
_HIGHEST_RATIO = 200  # unpacked to packed; ordinary sheets have 10 to 50
_RATIO_COUNTS_FROM = 20 * 2**20
_PIECE = 2**18
_OLD_BINARY = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_DECLARATIONS = (b"<!DOCTYPE", b"<!ENTITY")


def check_container(data: bytes, path: Path) -> None:
    """Raise UnreadableDocument for a file that is no zip archive, is encrypted, or is a zip or XML bomb."""
    if data.startswith(_OLD_BINARY):
        suffix = path.suffix.lower()
        raise UnreadableDocument(path, f"encrypted or in an old format: save it as {suffix} without a password")
    with parsing(path):
        try:
            archive = zipfile.ZipFile(io.BytesIO(data))
        except zipfile.BadZipFile:
            raise UnreadableDocument(path, f"damaged, or not a {path.suffix.lower()} file") from None
        parts = archive.infolist()
        size = sum(part.file_size for part in parts)
        if size > _MOST_UNPACKED or (size > _RATIO_COUNTS_FROM and size > _HIGHEST_RATIO * len(data)):
            raise UnreadableDocument(path, f"unpacks to {size / 2**20:,.0f} MB: refused as a zip bomb")
        if any(part.flag_bits & 1 for part in parts):
            raise UnreadableDocument(path, "encrypted: save it without a password")
        for part in parts:
            if part.filename.lower().endswith((".xml", ".rels")):
                _check_part(archive, part, path)


def _check_part(archive: zipfile.ZipFile, part: zipfile.ZipInfo, path: Path) -> None:
    before = b""
    with archive.open(part) as unpacked:
        while piece := unpacked.read(_PIECE):
            piece = before + piece.replace(b"\0", b"")  # UTF-16 read as ASCII
            if any(declaration in piece for declaration in _DECLARATIONS):
                raise UnreadableDocument(path, "declares XML entities: refused")
            before = piece[-16:]


@contextmanager
def parsing(path: Path) -> Iterator[None]:
    """Runs a library's parser: every failure becomes an UnreadableDocument.

    Parsers raise every kind of exception on broken files, so all are caught here, and only here.
    """
    try:
        yield
    except (UnreadableDocument, RecursionError, MemoryError):
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError):
        raise UnreadableDocument(path, f"damaged {path.suffix.lower()} file") from None
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of parsers in Rust
            raise
        raise UnreadableDocument(path, f"damaged, or not a {path.suffix.lower()} file") from None
