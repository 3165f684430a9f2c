"""Reads a page of a website: its text (as for an HTML file), its links and its metadata.

Out of scope: requesting pages, and choosing pages to keep (`app.websites`).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from bs4 import BeautifulSoup, Tag

from retrieval.documents import Contents, WebPage
from retrieval.errors import UnreadableDocument
from retrieval.loaders.load import document_of, html_contents, html_tree
from retrieval.text.terms import readable

_MOST_LINKS, _LONGEST_LINK = 5000, 4000
_FEW_CHARACTERS = 200
_SCRIPT_ROOTS = ["root", "app", "__next", "__nuxt", "___gatsby", "app-root", "main-app"]
_ASKS_FOR_SCRIPTS = re.compile(r"java\s?script", re.IGNORECASE)
_REFRESH = re.compile(r"^\s*\d*\s*;?\s*url\s*=\s*['\"]?([^'\"]+)", re.IGNORECASE)


def read_page(data: bytes, url: str, suffix: str, encoding: str = "") -> WebPage:
    """Read a page of a website. url: its address. Raises UnreadableDocument and RecursionError."""
    if suffix != ".html":
        name = unquote(urlsplit(url).path.rpartition("/")[2]) or "page"
        document = document_of(data, Path(name).with_suffix(suffix))
        return WebPage(title=document.title, blocks=document.blocks)
    path = Path("page.html")
    page = html_tree(data, path, encoding)
    links = tuple(_links(page, url))
    told = _told(page)
    try:
        contents = html_contents(page, path)
    except UnreadableDocument:  # only pictures
        contents = Contents(blocks=(), title="")
    length = sum(len(block.text) for block in contents.blocks)
    return WebPage(
        title=" ".join(readable(contents.title or "").split()),
        blocks=tuple(contents.blocks),
        links=links,
        canonical=contents.url,
        may_index="noindex" not in told and "none" not in told,
        may_follow="nofollow" not in told and "none" not in told,
        has_password=page.find("input", type="password") is not None,
        is_scripted=length < _FEW_CHARACTERS and _waits_for_a_script(page),
        link_share=min(1.0, _length_of_links(page) / length) if length else 0.0,
    )


def _links(page: BeautifulSoup, url: str) -> Iterator[str]:
    first = page.find("base", href=True)
    base = urljoin(url, str(first["href"])) if isinstance(first, Tag) else url
    found = [str(one["href"]) for one in page.find_all(["a", "area"], href=True, limit=_MOST_LINKS)]
    refresh = page.find("meta", attrs={"http-equiv": re.compile("^refresh$", re.I)}, content=True)
    if isinstance(refresh, Tag) and (told := _REFRESH.match(str(refresh["content"]))):
        found.append(told[1])
    for link in dict.fromkeys(found):
        if len(link) <= _LONGEST_LINK:
            try:
                yield urljoin(base, link)
            except ValueError:  # a broken IPv6 address
                continue


def _told(page: BeautifulSoup) -> set[str]:
    """Return the words of the page's <meta name="robots"> and <meta name="warmdesk">."""
    named = page.find_all("meta", attrs={"name": re.compile("^(robots|warmdesk)$", re.I)}, content=True)
    return {word.strip().lower() for one in named for word in str(one["content"]).split(",")}


def _waits_for_a_script(page: BeautifulSoup) -> bool:
    root = page.find(id=_SCRIPT_ROOTS)
    if isinstance(root, Tag) and not root.get_text(strip=True):
        return True
    return any(_ASKS_FOR_SCRIPTS.search(one.get_text()) for one in page.find_all("noscript"))


def _length_of_links(page: BeautifulSoup) -> int:
    within = page.find("main") or page.find("article") or page.body or page
    assert isinstance(within, Tag)
    links = (
        one for one in within.find_all("a", href=True) if not one.find_parent(["nav", "header", "footer", "aside"])
    )
    return sum(len(" ".join(one.get_text().split())) for one in links)
