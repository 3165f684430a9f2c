"""HTML pages: the main content, not the menus around it.

Nothing is executed or fetched, so text written by scripts is missing. lxml repairs bad markup.
"""

from pathlib import Path

from bs4 import BeautifulSoup, Tag
from bs4.dammit import EncodingDetector

from retrieval.documents.document import Contents
from retrieval.errors import UnreadableDocument
from retrieval.parsing.addresses import web_address
from retrieval.parsing.decoding import decode
from retrieval.parsing.html_blocks import blocks_of

_MENUS = frozenset(("nav", "footer", "form"))
_ROLES_OF_MENUS = frozenset(("navigation", "search", "banner", "contentinfo"))


def load_html(data: bytes, path: Path) -> Contents:
    """Read an HTML page. Raises UnreadableDocument for binary content and for a page of pictures alone."""
    declared = EncodingDetector.find_declared_encoding(data, is_html=True)
    page = BeautifulSoup(decode(data, path, declared=declared), "lxml")
    body = page.body or page
    content = _main_content(page)
    blocks = blocks_of(content, _is_menu) if content else blocks_of(body, _is_around_content)
    if not blocks and (content or body).find("img"):
        raise UnreadableDocument(path, "only pictures, no text in it")
    canonical = page.find("link", rel="canonical", href=True)
    url = web_address(str(canonical["href"])) if isinstance(canonical, Tag) else ""
    return Contents(blocks=blocks, title=_title(page) or None, url=url)


def _main_content(page: BeautifulSoup) -> Tag | None:
    main = page.find("main") or page.find(role="main")
    if isinstance(main, Tag) and main.get_text(strip=True):
        return main
    articles = page.find_all("article", limit=2)  # several articles are a page of teasers or comments
    return articles[0] if len(articles) == 1 and articles[0].get_text(strip=True) else None


def _is_menu(tag: Tag) -> bool:
    return tag.name in _MENUS or tag.get("role") in _ROLES_OF_MENUS


def _is_around_content(tag: Tag) -> bool:
    """Inside <main> or <article>, a header holds the title and an aside is usually a note: there they are content."""
    if tag.name == "form":  # some servers wrap the whole page in a form
        return tag.find(["h1", "main", "article"]) is None
    return tag.name in ("header", "aside") or _is_menu(tag)


def _title(page: BeautifulSoup) -> str:
    """The page's <title>, or its first <h1> where that is the same without the site's name."""
    title = " ".join(page.title.get_text().split()) if page.title else ""
    first = page.find("h1")
    heading = " ".join(first.get_text().split()) if isinstance(first, Tag) else ""
    return heading if heading and (not title or heading.casefold() in title.casefold()) else title
