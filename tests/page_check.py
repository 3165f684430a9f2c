"""Reads our pages as a browser would and fails on anything that our own templates do not write."""

import re
from html.parser import HTMLParser

TAGS = {
    "article", "aside", "b", "blockquote", "br", "button", "caption", "code", "dd", "details", "div", "dl",
    "dt", "em", "form", "h1", "h2", "h3", "h4", "header", "i", "input", "label", "li", "main", "mark", "nav", "ol", "p",
    "path", "rect", "section", "small", "span", "strong", "summary", "svg", "table", "tbody", "td", "th", "thead",
    "time", "tr", "title", "figure", "figcaption", "ul", "a",
}  # fmt: skip


LINKS = re.compile(
    r"/|/my-data|/sign-out|/admin/[\w?=&;%-]*|\?range=\w+|#wd-box|https://help\.example/returns|/sources/[\w%./~-]+/\d"
    r"|/conversations/[\w%./~-]+/export\.(md|csv|json)"
)


class Checker(HTMLParser):
    """Fails on any tag or attribute that our own templates do not write, and on unbalanced tags."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        for name, value in attrs:
            assert not name.startswith("on"), name
            assert name not in ("src", "srcset", "srcdoc", "style") or (value or "").startswith("width:"), (name, value)
            assert name not in ("href", "action") or LINKS.fullmatch(value or ""), value
        if tag not in ("br", "input", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "path":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def check(page: str) -> str:
    """The page's visible text."""
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return "".join(checker.words)
