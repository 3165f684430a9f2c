"""reStructuredText: docutils converts it to HTML.

Directives that insert files or raw HTML are off, and no settings files are read. Sphinx's own roles keep their text;
its own directives are left out with their contents.
"""

import re
from pathlib import Path

from bs4 import BeautifulSoup
from docutils.core import publish_parts

from retrieval.documents.document import Contents
from retrieval.parsing.containers import parsing
from retrieval.parsing.decoding import decode
from retrieval.parsing.html_blocks import blocks_of
from retrieval.text.characters import readable

_SETTINGS = {
    "_disable_config": True,
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "report_level": 5,  # no messages in the text
    "halt_level": 6,
    "line_length_limit": 2**30,
    "embed_stylesheet": False,
    "syntax_highlight": "none",
    "math_output": "LaTeX",
    "input_encoding": "unicode",
}
_ROLE = re.compile(r":[\w:.+-]+:`~?([^`<]*?)(?:\s*<[^>`]*>)?`")


def load_rst(data: bytes, path: Path) -> Contents:
    """Read a reStructuredText page. Raises UnreadableDocument for binary content."""
    source = readable(decode(data, path))
    with parsing(path):
        html = publish_parts(source, writer="html5", settings_overrides=dict(_SETTINGS))["html_body"]
    page = BeautifulSoup(html, "lxml")
    for text_with_role in page.find_all(string=_ROLE):
        if not text_with_role.find_parent(("pre", "code")):
            text_with_role.replace_with(_ROLE.sub(r"\1", text_with_role))
    for unwanted in page.find_all(class_="system-message"):
        unwanted.decompose()
    return Contents(blocks=blocks_of(page))
