"""Markdown pages, with what site generators add: front matter, Liquid tags, attribute lists, HTML.

The text is rendered to HTML and read from there, because real pages mix both freely. Template tags are
removed, not evaluated: included files and `site` values are not in the text. Footnotes and mathematics stay
as written.
"""

import re
from pathlib import Path

from bs4 import BeautifulSoup
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

from retrieval.characters import readable
from retrieval.decoding import decode
from retrieval.documents import Document, content_hash
from retrieval.front_matter import split_front_matter
from retrieval.html_blocks import blocks_of
from retrieval.titles import choose_title

_COMMENT_TAG = re.compile(r"\{%-?\s*(?:end)?comment\s*-?%\}")
_RAW_TAG = re.compile(r"\{%-?\s*(?:end)?raw\s*-?%\}")
_LIQUID = re.compile(r"\{%(?:(?!\{%).){0,4000}?%\}|\{\{[^{}]{0,1000}\}\}", re.DOTALL)
_BLOCK_HTML = re.compile(
    r"^[ \t]*</?(?:div|ol|ul|li|table|tr|section|details)\b", re.MULTILINE | re.IGNORECASE
)
_ATTRIBUTE_LIST = re.compile(r"[ \t]?\{:[^{}\n]*\}")
_HEADING_ID = re.compile(r"(?:[ \t]+#+)?[ \t]*\{#[^{}\s]+\}[ \t]*$")
_OPEN_TAG = re.compile(r"<([A-Za-z][\w-]*)")
_NEEDS_NO_CLOSING_TAG = frozenset(
    (
        "br",
        "col",
        "dd",
        "dt",
        "embed",
        "hr",
        "img",
        "input",
        "li",
        "option",
        "p",
        "source",
        "td",
        "th",
        "tr",
        "wbr",
    )
)


def load_markdown(data: bytes, path: Path) -> Document:
    """Read a Markdown page. Raises UnreadableDocument for binary content."""
    title, body = split_front_matter(readable(decode(data, path)))
    if title is not None:  # only pages with front matter go through a template engine
        body = _without_liquid(body)
    html = _renderer(body).render(body)
    blocks = blocks_of(BeautifulSoup(html, "lxml")) if html.strip() else ()
    return Document(
        path=path,
        title=choose_title(title or "", blocks, path),
        blocks=blocks,
        content_hash=content_hash(data),
    )


def _without_liquid(text: str) -> str:
    text = "".join(_outside(_COMMENT_TAG.split(text)))
    parts = _RAW_TAG.split(text)
    return "".join(_LIQUID.sub("", part) if number % 2 == 0 else part for number, part in enumerate(parts))


def _outside(parts: list[str]) -> list[str]:
    return parts[::2] if len(parts) % 2 else parts  # an even number: a tag without its partner, so keep all


def _renderer(text: str) -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": True, "maxNesting": 100}).enable(["table", "strikethrough"])
    if _BLOCK_HTML.search(text):
        markdown.disable("code")  # in such pages an indented line is nested HTML, not a program
    markdown.core.ruler.push("attribute_lists", _remove_attribute_lists)
    markdown.core.ruler.push("placeholders", _keep_placeholders)
    return markdown


def _remove_attribute_lists(state: StateCore) -> None:
    """Drop kramdown's `{: .class}` and the `{#id}` of headings, but not inside code."""
    for previous, token in zip([None, *state.tokens], state.tokens, strict=False):
        for child in _texts(token):
            child.content = _ATTRIBUTE_LIST.sub("", child.content)
            if previous is not None and previous.type == "heading_open":
                child.content = _HEADING_ID.sub("", child.content)


def _texts(token: Token) -> list[Token]:
    return [child for child in token.children or [] if child.type == "text"]


def _keep_placeholders(state: StateCore) -> None:
    """Show `<order number>` as text: Markdown takes it for a tag, but nothing closes it."""
    source = state.src.lower()
    for token in state.tokens:
        for child in token.children or []:
            opened = _OPEN_TAG.match(child.content) if child.type == "html_inline" else None
            if opened and opened[1].lower() not in _NEEDS_NO_CLOSING_TAG:
                closed = child.content.endswith("/>") or f"</{opened[1].lower()}" in source
                if not closed:
                    child.type = "text"
