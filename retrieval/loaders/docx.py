"""Word files: mammoth converts them to HTML.

Keeps headings, lists, tables and footnotes; drops pictures, headers and footers, comments and tracked deletions. In a
file without headings, short bold paragraphs are the headings.
"""

import io
from pathlib import Path

import mammoth
from bs4 import BeautifulSoup, Tag

from retrieval.documents.document import Contents
from retrieval.parsing.containers import check_container, parsing
from retrieval.parsing.html_blocks import HEADINGS, blocks_of

_STYLES = "p[style-name='Title'] => h1:fresh\np[style-name='Subtitle'] => p:fresh"
_LONGEST_HEADING = 80
_FIRST_ROW_IS_HEADER_FROM = 3  # columns; a table of two columns reads well as "name: value" either way


def load_docx(data: bytes, path: Path) -> Contents:
    """Read a Word file. Raises UnreadableDocument for a damaged or encrypted one."""
    check_container(data, path)
    with parsing(path):
        html = mammoth.convert_to_html(io.BytesIO(data), style_map=_STYLES, convert_image=lambda image: []).value
    page = BeautifulSoup(html, "lxml")
    for anchor in page.find_all("a", href=False):  # bookmarks, also where tables allow nothing
        anchor.unwrap()
    for table in page.find_all("table"):
        _as_data(table)
    if not page.find(list(HEADINGS)):
        _headings_of_bold_lines(page)
    return Contents(blocks=blocks_of(page))


def _as_data(table: Tag) -> None:
    """A table in Word holds data even if its cells are styled as headings, and its first row is the header."""
    for heading in table.find_all(list(HEADINGS)):
        heading.name = "p"
    first = table.find("tr")
    if first and not table.find("th") and len(first.find_all("td")) >= _FIRST_ROW_IS_HEADER_FROM:
        for cell in first.find_all("td"):
            cell.name = "th"


def _headings_of_bold_lines(page: BeautifulSoup) -> None:
    for paragraph in page.find_all("p"):
        text = paragraph.get_text().strip()
        bold = "".join(part.get_text() for part in paragraph.find_all("strong", recursive=False)).strip()
        is_heading = text == bold and 0 < len(text) <= _LONGEST_HEADING and not text.endswith((".", ",", ";"))
        if is_heading and not paragraph.find_parent(("table", "li")):
            paragraph.name = "h2"
