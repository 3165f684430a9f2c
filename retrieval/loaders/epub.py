"""EPUB: the chapters in reading order, each read as HTML. Source: EPUB 3.3 (W3C, 2023), sections 4 and 5.

Table of contents, pictures and protected books are out of scope.
"""

import io
import posixpath
import zipfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from lxml import etree

from retrieval.documents import Block, Contents
from retrieval.errors import UnreadableDocument
from retrieval.loaders.decoding import check_container, parsing

_PAGES = ("application/xhtml+xml", "text/html")


def load_epub(data: bytes, path: Path, load_page: Callable[[bytes, Path], Contents]) -> Contents:
    """load_page: the loader of HTML."""
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
            blocks += load_page(archive.read(name), Path(name)).blocks
        title = package.findtext("{*}metadata/{*}title") or ""
    return Contents(blocks=blocks, title=title)


def _parsed(data: bytes) -> etree._Element:
    return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True))
