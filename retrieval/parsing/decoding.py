"""Decodes the bytes of a text file.

By its byte-order mark; else as UTF-8; else in the encoding that the page declares; else in the one that
charset-normalizer guesses, which can be wrong for short texts. UTF-16 without a byte-order mark is refused as binary.
"""

import codecs
from pathlib import Path

import charset_normalizer

from retrieval.errors import UnreadableDocument

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
    """The file's text. declared: the encoding that the document names. Raises UnreadableDocument for binary content."""
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
    """UTF-8 with a few bad bytes, which careless editors leave."""
    text = data.decode("utf-8", errors="replace")
    bad = text.count("\ufffd")
    good = sum(character > "\x7f" for character in text) - bad
    return text if good >= 10 * bad else None


def _guessed(data: bytes) -> str | None:
    matches = charset_normalizer.from_bytes(data, cp_isolation=_LEGACY)
    best = matches.best()
    if best is None:
        return None
    # Short Western texts also fit Central European or Japanese encodings; Windows-1252 is likelier if it fits as well.
    for match in matches:
        fits = match.chaos <= best.chaos + 0.1 and match.coherence >= best.coherence - 0.02
        if fits and "cp1252" in match.could_be_from_charset:
            return _strict(data, "cp1252")
    return str(best)
