"""Which language a text is written in, as a two-letter code of ISO 639-1.

A stand-in: Chinese characters are Chinese, everything else is the default.
"""

import re

_HAN = re.compile("[\u3400-\u9fff\uf900-\ufaff]")


def language_of(text: str, default: str = "en") -> str:
    """The language of a text, or the default if that is not clear."""
    return "zh" if _HAN.search(text) else default
