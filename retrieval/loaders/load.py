"""The table of formats, and the function that reads a file.

A format is one loader function and one line in `FORMATS`. The upload form and the messages use the table. No loader
executes or fetches anything that a document contains. A hostile file can still use much time and memory, so
`retrieval.reading` sets limits. The loaders of this file:

    text                blank lines separate paragraphs; a short first line that is alone is the title
    Word                mammoth converts it to HTML; pictures, headers, footers, comments, tracked deletions are dropped
    PowerPoint          each slide is a section; text frames, tables, notes; no charts, SmartArt or pictures
    Rich Text           striprtf removes the markup; each line is a paragraph
    reStructuredText    docutils converts it to HTML; directives that insert files or raw HTML are off
    HTML                the main content without the menus; text written by scripts is missing
    EPUB                the chapters in reading order, each read as HTML, without table of contents, pictures and
                        protected books. Source: EPUB 3.3 (W3C, 2023), sections 4 and 5
    mail                subject, day and text, then the attached texts. Other attachments are named in a remark. Names
                        and addresses of people are left out, because customers see the contents of documents
"""

import io
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from email import policy
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

import mammoth
from bs4 import BeautifulSoup, Tag
from bs4.dammit import EncodingDetector
from docutils.core import publish_parts
from lxml import etree
from pptx import Presentation
from striprtf.striprtf import rtf_to_text

from retrieval.documents import (
    MAX_BYTES,
    STORED,
    Block,
    BlockKind,
    Contents,
    Document,
    content_hash,
    load_stored,
    read_bytes,
)
from retrieval.errors import UnreadableDocument
from retrieval.loaders.decoding import check_container, decode, parsing
from retrieval.loaders.html_blocks import HEADINGS, blocks_of, table_grid
from retrieval.loaders.markdown import load_markdown, web_address
from retrieval.loaders.opendocument import load_open_document_text
from retrieval.loaders.pdf import load_pdf, load_picture
from retrieval.loaders.records import load_delimited, load_json, load_json_lines
from retrieval.loaders.spreadsheets import load_spreadsheet
from retrieval.loaders.tables import header_rows, one_line, table_blocks
from retrieval.text.terms import readable

_LONGEST_HEADING = 80
_LIST_ITEM = re.compile(r"[ \t]*(?:[-*•+]|\d{1,3}[.)])[ \t]")


def load_text(data: bytes, path: Path) -> Contents:
    text = readable(decode(data, path))
    found = re.split(r"\n[ \t]*(?:\n[ \t]*)+", text)
    paragraphs = [paragraph.strip("\n").rstrip() for paragraph in found if paragraph.strip()]
    blocks = [Block(kind=_kind(paragraph), text=paragraph) for paragraph in paragraphs]
    if len(paragraphs) > 1 and _is_title(paragraphs[0]):
        blocks[0] = Block(kind="heading", text=paragraphs[0].strip(), level=1)
    return Contents(blocks=blocks)


def _kind(paragraph: str) -> BlockKind:
    return "list" if all(_LIST_ITEM.match(line) for line in paragraph.split("\n")) else "text"


def _is_title(paragraph: str) -> bool:
    line = paragraph.strip()
    return len(line) <= _LONGEST_HEADING and "\n" not in line and not line.endswith((".", ":", ",", ";", "。", "："))


_STYLES = "p[style-name='Title'] => h1:fresh\np[style-name='Subtitle'] => p:fresh"
_FIRST_ROW_IS_HEADER_FROM = 3  # columns; a table of two columns is always "name: value"


def load_docx(data: bytes, path: Path) -> Contents:
    check_container(data, path)
    with parsing(path):
        html = mammoth.convert_to_html(io.BytesIO(data), style_map=_STYLES, convert_image=lambda image: []).value
    page = BeautifulSoup(html, "lxml")
    for anchor in page.find_all("a", href=False):  # bookmarks, some in places where tables allow no content
        anchor.unwrap()
    for table in page.find_all("table"):
        _as_data(table)
    if not page.find(list(HEADINGS)):
        _headings_of_bold_lines(page)
    return Contents(blocks=blocks_of(page))


def _as_data(table: Tag) -> None:
    """Mark a Word table as data, also if its cells are styled as headings, and its first rows as the header."""
    for heading in table.find_all(list(HEADINGS)):
        heading.name = "p"
    rows = table.find_all("tr")
    grid = table_grid(rows, lambda cell: one_line(cell.get_text(" ")))
    if table.find("th") or max(map(len, grid), default=0) < _FIRST_ROW_IS_HEADER_FROM:
        return
    captions = next((number for number, row in enumerate(grid) if len(set(row)) > 1), 0)
    for row in rows[: captions + max(header_rows(grid[captions:]), 1)]:
        for cell in row.find_all("td"):
            cell.name = "th"


def _headings_of_bold_lines(page: BeautifulSoup) -> None:
    for paragraph in page.find_all("p"):
        text = paragraph.get_text().strip()
        bold = "".join(part.get_text() for part in paragraph.find_all("strong", recursive=False)).strip()
        is_heading = text == bold and 0 < len(text) <= _LONGEST_HEADING and not text.endswith((".", ",", ";"))
        if is_heading and not paragraph.find_parent(("table", "li")):
            paragraph.name = "h2"


def load_pptx(data: bytes, path: Path) -> Contents:
    check_container(data, path)
    blocks: list[Block] = []
    with parsing(path):
        for number, slide in enumerate(Presentation(io.BytesIO(data)).slides, start=1):
            blocks += _slide(slide, number)
    titles = [block.text for block in blocks if block.kind == "heading" and not block.text.startswith("Slide ")]
    return Contents(blocks=blocks, title=next(iter(titles), ""))


# python-pptx has no types: its objects are Any.
def _slide(slide: Any, number: int) -> list[Block]:
    title_shape = slide.shapes.title
    title = one_line(title_shape.text_frame.text) if title_shape is not None else ""
    blocks: list[Block] = []
    for shape in _leaves(slide.shapes):
        if title_shape is not None and shape.shape_id == title_shape.shape_id:
            continue
        if getattr(shape, "has_table", False):
            blocks += table_blocks([[cell.text for cell in row.cells] for row in shape.table.rows])
        elif getattr(shape, "has_text_frame", False):
            blocks += _text(shape.text_frame.paragraphs)
    if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
        blocks += _text(slide.notes_slide.notes_text_frame.paragraphs)
    if not title and not blocks:
        return []
    return [Block(kind="heading", text=title or f"Slide {number}", level=1), *blocks]


def _leaves(shapes: Iterable[Any]) -> Iterator[Any]:
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from _leaves(shape.shapes)
        else:
            yield shape


def _text(paragraphs: Iterable[Any]) -> list[Block]:
    lines = [(paragraph.level, one_line(paragraph.text)) for paragraph in paragraphs]
    lines = [(level, line) for level, line in lines if line]
    if len(lines) == 1:
        return [Block(kind="text", text=lines[0][1])]
    return [Block(kind="list", text="\n".join("  " * level + "- " + line for level, line in lines))] if lines else []


def load_rtf(data: bytes, path: Path) -> Contents:
    if not data.lstrip().startswith(b"{\\rtf"):
        raise UnreadableDocument(path, "damaged, or not a .rtf file")
    with parsing(path):
        lines = readable(rtf_to_text(data.decode("latin-1"), errors="ignore")).split("\n")
    blocks: list[Block] = []
    for is_table, group in groupby(filter(str.strip, lines), key=lambda line: line.rstrip().endswith("|")):
        if is_table:  # "cell|cell|"
            blocks += table_blocks([line.rstrip().removesuffix("|").split("|") for line in group])
        else:
            blocks += [Block(kind=_kind(line), text=line.strip()) for line in group]
    return Contents(blocks=blocks)


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


_MENUS = frozenset(("nav", "footer", "form"))
_ROLES_OF_MENUS = frozenset(("navigation", "search", "banner", "contentinfo"))


def load_html(data: bytes, path: Path) -> Contents:
    return html_contents(html_tree(data, path), path)


def html_tree(data: bytes, path: Path, encoding: str = "") -> BeautifulSoup:
    """Parse a page. encoding: its name, if the server sent it."""
    declared = encoding or EncodingDetector.find_declared_encoding(data, is_html=True)
    return BeautifulSoup(decode(data, path, declared=declared), "lxml")


def html_contents(page: BeautifulSoup, path: Path) -> Contents:
    body = page.body or page
    content = _main_content(page)
    blocks = blocks_of(content, _is_menu) if content else blocks_of(body, _is_around_content)
    if not blocks and (content or body).find("img"):
        raise UnreadableDocument(path, "only pictures, no text in it")
    canonical = page.find("link", rel="canonical", href=True)
    url = web_address(str(canonical["href"])) if isinstance(canonical, Tag) else ""
    return Contents(blocks=blocks, title=_html_title(page) or None, url=url)


def _main_content(page: BeautifulSoup) -> Tag | None:
    main = page.find("main") or page.find(role="main")
    if isinstance(main, Tag) and main.get_text(strip=True):
        return main
    articles = page.find_all("article", limit=2)  # a page of several articles shows teasers or comments
    return articles[0] if len(articles) == 1 and articles[0].get_text(strip=True) else None


def _is_menu(tag: Tag) -> bool:
    return tag.name in _MENUS or tag.get("role") in _ROLES_OF_MENUS


def _is_around_content(tag: Tag) -> bool:
    """Return whether a tag is around the content. In <main> or <article>, headers and asides are content."""
    if tag.name == "form":  # some servers put the whole page into a form
        return tag.find(["h1", "main", "article"]) is None
    return tag.name in ("header", "aside") or _is_menu(tag)


def _html_title(page: BeautifulSoup) -> str:
    """Return the page's <title>, or its first <h1> if <title> is missing or contains it (with the site's name)."""
    title = " ".join(page.title.get_text().split()) if page.title else ""
    first = page.find("h1")
    heading = " ".join(first.get_text().split()) if isinstance(first, Tag) else ""
    return heading if heading and (not title or heading.casefold() in title.casefold()) else title


_PAGES = ("application/xhtml+xml", "text/html")


def load_epub(data: bytes, path: Path) -> Contents:
    check_container(data, path)
    blocks: list[Block] = []
    with parsing(path):
        archive = zipfile.ZipFile(io.BytesIO(data))
        if "META-INF/encryption.xml" in archive.namelist():
            raise UnreadableDocument(path, "protected against copying (DRM): it cannot be read")
        root = _parsed(archive.read("META-INF/container.xml")).find(".//{*}rootfile")
        assert root is not None, "every container names its package"
        package_name = root.get("full-path", "")
        package = _parsed(archive.read(package_name))
        items = {item.get("id"): item for item in package.iterfind("{*}manifest/{*}item")}
        for reference in package.iterfind("{*}spine/{*}itemref"):
            item = items.get(reference.get("idref"))
            is_page = item is not None and item.get("media-type") in _PAGES
            if item is None or not is_page or "nav" in item.get("properties", "").split():
                continue
            name = posixpath.normpath(posixpath.join(posixpath.dirname(package_name), unquote(item.get("href", ""))))
            blocks += load_html(archive.read(name), Path(name)).blocks
        title = package.findtext("{*}metadata/{*}title") or ""
    return Contents(blocks=blocks, title=title)


def _parsed(data: bytes) -> etree._Element:
    return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True))


_ATTACHED = {"text/plain": ".txt", "text/html": ".html", "text/markdown": ".md", "text/csv": ".csv"}
_MOST_ATTACHMENTS = 50


def load_mail(data: bytes, path: Path) -> Contents:
    """Read a mail and its attached texts. Raises UnreadableDocument for a file without the headers of a mail."""
    remarks: list[str] = []
    with parsing(path):
        message = BytesParser(_class=EmailMessage, policy=policy.default).parsebytes(data)
        if not {"from", "subject", "date"} & {name.lower() for name in message}:
            raise UnreadableDocument(path, "damaged, or not a .eml file")
        sent = getattr(message["date"], "datetime", None)
        blocks = [Block(kind="text", text=f"Date: {sent.date().isoformat()}")] if sent else []
        body = message.get_body(("plain", "html"))
        if body is not None:
            blocks += _attached(body)
        for number, part in enumerate(message.iter_attachments()):
            name = one_line(part.get_filename() or "without a name")
            if number < _MOST_ATTACHMENTS and part.get_content_type() in _ATTACHED:
                blocks += [Block(kind="heading", text=name, level=1), *_attached(part)]
            else:
                remarks.append(f"attachment {name} skipped: save it as a file")
    return Contents(blocks=blocks, title=one_line(str(message["subject"] or "")), remarks=remarks[:_MOST_ATTACHMENTS])


def _attached(part: MIMEPart) -> list[Block]:
    suffix = _ATTACHED.get(part.get_content_type(), ".txt")
    return list(SUPPORTED[suffix](part.get_content().encode(), Path(f"part{suffix}")).blocks)


Loader: TypeAlias = Callable[[bytes, Path], Contents]
"""Arguments: the bytes of the file, not empty; its path, for messages and the suffix."""


class Format(NamedTuple):
    """A document format, an entry of `FORMATS`."""

    name: str  # for people
    suffixes: str  # in lower case, separated by spaces
    loader: Loader


FORMATS = (
    Format("PDF", ".pdf", load_pdf),
    Format("Word", ".docx", load_docx),
    Format("PowerPoint", ".pptx", load_pptx),
    Format("OpenDocument", ".odt", load_open_document_text),
    Format("Rich Text", ".rtf", load_rtf),
    Format("EPUB", ".epub", load_epub),
    Format("picture", ".png .jpg .jpeg .tif .tiff .webp", load_picture),
    Format("mail", ".eml", load_mail),
    Format("Excel", ".xlsx .xls .ods", load_spreadsheet),
    Format("CSV", ".csv .tsv .tab .psv", load_delimited),
    Format("Markdown", ".md .markdown .mdx", load_markdown),
    Format("HTML", ".html .htm", load_html),
    Format("reStructuredText", ".rst", load_rst),
    Format("JSON", ".json", load_json),
    Format("JSON Lines", ".jsonl .ndjson", load_json_lines),
    Format("text", ".txt", load_text),
)
SUPPORTED: dict[str, Loader] = dict(
    sorted({suffix: form.loader for form in FORMATS for suffix in form.suffixes.split()}.items())
)

_REPLACEMENTS = {".doc": ".docx", ".msg": ".eml", ".odp": ".pptx", ".ppt": ".pptx"}

_LONGEST_TITLE = 200


def load(path: Path, *, max_bytes: int = MAX_BYTES) -> Document:
    suffix = path.suffix.lower()
    if suffix in _REPLACEMENTS:
        raise UnreadableDocument(path, f"{path.suffix} files are not supported: save it as {_REPLACEMENTS[suffix]}")
    if suffix not in SUPPORTED and suffix != STORED:
        kind = f"{path.suffix} files are" if suffix else "files without a suffix are"
        raise UnreadableDocument(path, f"{kind} not supported (supported: {' '.join(SUPPORTED)})")
    data = read_bytes(path, max_bytes)
    if not data:
        raise UnreadableDocument(path, "empty file")
    try:
        document = document_of(data, path)
    except RecursionError:
        raise UnreadableDocument(path, "nested too deeply") from None
    if not document.blocks:
        raise UnreadableDocument(path, "no text in it")
    return document


def document_of(data: bytes, path: Path) -> Document:
    """Return the document in a file's bytes, which may have no blocks. Raises UnreadableDocument and RecursionError."""
    suffix = path.suffix.lower()
    contents = load_stored(data, path) if suffix == STORED else SUPPORTED[suffix](data, path)
    blocks, long_words = _without_long_words(contents.blocks)
    skipped = [f"{long_words} words of more than {_LONGEST_WORD:,} characters skipped"] if long_words else []
    return Document(
        path=path,
        title=_title(contents, path),
        blocks=blocks,
        content_hash=content_hash(data),
        is_faq=contents.is_faq,
        url=contents.url,
        remarks=(*contents.remarks, *skipped),
    )


_LONGEST_WORD = 2000  # characters; longer words are encoded data, and counting their tokens takes minutes
# Thai, Lao, Burmese, Khmer, Chinese and Japanese have no spaces between words.
_LONG_WORD = re.compile(rf"[^\s\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\uffff]{{{_LONGEST_WORD + 1},}}")


def _without_long_words(blocks: Sequence[Block]) -> tuple[tuple[Block, ...], int]:
    found = [_LONG_WORD.subn("…", block.text) for block in blocks]
    kept = [replace(block, text=text) for block, (text, _) in zip(blocks, found, strict=True) if text != "…"]
    return tuple(kept), sum(number for _, number in found)


def _title(contents: Contents, path: Path) -> str:
    """Return the loader's title, else the first heading, else the readable file name: one line, never empty."""
    headings = (block.text for block in contents.blocks if block.kind == "heading")
    given = next(headings, "") if contents.title is None else contents.title
    name = re.sub(r"[\s._-]+", " ", path.stem).strip()
    title = " ".join(readable(given).split()) or " ".join(readable(name[:1].upper() + name[1:]).split()) or "Untitled"
    return title if len(title) <= _LONGEST_TITLE else title[: _LONGEST_TITLE - 1] + "…"
