"""Addresses of pages, as files give them."""

import re

_WEB = re.compile(r"https?://[^\s<>\"'`\\{}]{3,2000}")


def web_address(text: str) -> str:
    """The text if it is the whole address of a web page, else "": a link to anything else could do harm."""
    text = text.strip()
    return text if _WEB.fullmatch(text) else ""
