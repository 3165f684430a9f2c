"""Removes characters without meaning for a reader.

Not covered: white space between words, lines and markup. Full-width digits and ligatures stay as they are.
"""

import re
import unicodedata

_LINE_END = re.compile(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]")
# Control characters, soft hyphens, zero-width spaces, byte-order marks, direction overrides, lone surrogates.
# Zero-width joiners stay: emoji, Persian and Indic scripts need them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u2060\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_WIDE_SPACE = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")


def readable(text: str) -> str:
    """The text in Unicode's composed form, with plain spaces, "\\n" line ends and nothing invisible."""
    text = _INVISIBLE.sub("", _LINE_END.sub("\n", text))
    return unicodedata.normalize("NFC", _WIDE_SPACE.sub(" ", text))
