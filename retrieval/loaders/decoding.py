"""Decodes text files, and protects the parsers of binary formats.

**Text** is decoded by its byte-order mark, else as UTF-8, else in the encoding that the page declares, else in the
encoding that charset-normalizer guesses. The guess can be wrong for short texts. UTF-16 without a byte-order mark is
refused as binary.

**Office files** are zip archives of XML. Before a parser reads one, its parts are unpacked here in small pieces. This
measures them and finds entity declarations, which only XML bombs need. Nothing is written to disk, so file names in an
archive are harmless. If a file passes these checks, the limits of `retrieval.reading` still apply.
"""

import codecs
import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import charset_normalizer

from retrieval.errors import UnreadableDocument

_MOST_UNPACKED = 200 * 2**20
_HIGHEST_RATIO = 200  # unpacked to packed size; ordinary sheets have 10 to 50
_RATIO_COUNTS_FROM = 20 * 2**20
_PIECE = 2**18
_OLD_BINARY = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_DECLARATIONS = (b"<!DOCTYPE", b"<!ENTITY")


def check_container(data: bytes, path: Path) -> None:
    """Raise UnreadableDocument for a file that is not a zip archive, is encrypted, or is a zip or XML bomb."""
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
            piece = before + piece.replace(b"\0", b"")  # so that UTF-16 reads as ASCII
            if any(declaration in piece for declaration in _DECLARATIONS):
                raise UnreadableDocument(path, "declares XML entities: refused")
            before = piece[-16:]


@contextmanager
def parsing(path: Path) -> Iterator[None]:
    """Run a library's parser and turn every failure into an UnreadableDocument. Parsers raise all kinds of exceptions
    on broken files, so all are caught here, and only here.
    """
    try:
        yield
    except (UnreadableDocument, RecursionError, MemoryError):
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError):
        raise UnreadableDocument(path, f"damaged {path.suffix.lower()} file") from None
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # raised by parsers in Rust
            raise
        raise UnreadableDocument(path, f"damaged, or not a {path.suffix.lower()} file") from None


_MARKS = {  # UTF-32 first: its little-endian mark begins with the mark of UTF-16
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-8-sig": (codecs.BOM_UTF8,),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
# Encodings of old files. Without this list, charset-normalizer takes English with curly quotes for DOS text.
_LEGACY = [
    *("cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp874", "iso8859_2"),
    *("iso8859_5", "iso8859_7", "koi8_r", "koi8_u", "gb18030", "big5", "cp932", "euc_jp", "cp949", "euc_kr"),
]


def decode(data: bytes, path: Path, *, declared: str | None = None) -> str:
    """Return a file's text. declared: encoding named in the document. Raises UnreadableDocument for binary content."""
    text = _decoded(data, declared)
    if text is None or "\0" in text:
        raise UnreadableDocument(path, f"not text: binary content in a {path.suffix.lower()} file")
    return text


def _decoded(data: bytes, declared: str | None) -> str | None:
    for encoding, marks in _MARKS.items():
        if data.startswith(marks):
            return _strict(data, encoding)
    text = _strict(data, "utf-8")
    if text is None and declared:
        text = _strict(data, declared)
    return text if text is not None else (_damaged_utf8(data) or _guessed(data))


def _strict(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except (UnicodeDecodeError, LookupError):  # a page may declare an encoding that does not exist
        return None


def _damaged_utf8(data: bytes) -> str | None:
    text = data.decode("utf-8", errors="replace")
    bad = text.count("\ufffd")
    good = sum(character > "\x7f" for character in text) - bad
    return text if good >= 10 * bad else None  # careless editors write a few bad bytes


def _guessed(data: bytes) -> str | None:
    matches = charset_normalizer.from_bytes(data, cp_isolation=_LEGACY)
    best = matches.best()
    if best is None:
        return None
    # Short Western texts also fit Central European or Japanese encodings; Windows-1252 is more likely if it also fits.
    for match in matches:
        fits = match.chaos <= best.chaos + 0.1 and match.coherence >= best.coherence - 0.02
        if fits and "cp1252" in match.could_be_from_charset:
            return _strict(data, "cp1252")
    return str(best)
