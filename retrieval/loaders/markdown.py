"""Markdown pages, with what site generators add: front matter, Liquid tags, attribute lists, HTML.

The text is rendered to HTML and read from there, because real pages mix both freely. Footnotes and
mathematics stay as written.
"""

import re
from pathlib import Path

from bs4 import BeautifulSoup
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

from retrieval.documents.document import Block, Document, content_hash
from retrieval.errors import UnreadableDocument
from retrieval.parsing.decoding import decode
from retrieval.parsing.front_matter import front_matter_text, split_front_matter
from retrieval.parsing.html_blocks import blocks_of
from retrieval.parsing.liquid import without_liquid
from retrieval.parsing.titles import choose_title
from retrieval.text.characters import readable

_BLOCK_HTML = re.compile(r"^[ \t]*</?(?:div|ol|ul|li|table|tr|section|details)\b", re.MULTILINE | re.IGNORECASE)
_BARE_TABLE = re.compile(r"^[ \t]*\n(\|.*\|)[ \t]*\n(?=\|(?![ \t:]*-).*\|[ \t]*$)", re.MULTILINE)
_ATTRIBUTE_LIST = re.compile(r"[ \t]?\{:[^{}\n]*\}")
_HEADING_ID = re.compile(r"(?:[ \t]+#+)?[ \t]*\{#[^{}\s]+\}[ \t]*$")
# What other Markdown programs accept and CommonMark does not: bold next to Chinese punctuation, and image
# addresses with spaces.
_LEFT_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
_LEFT_IMAGE = re.compile(r"!\[[^\[\]]*\]\([^()\n]*\)")
_IMAGE = re.compile(r"!\[|<img\b", re.IGNORECASE)
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
    """Read a Markdown page. Raises UnreadableDocument for binary content and for pages without text."""
    text = readable(decode(data, path))
    fields, body = split_front_matter(text)
    if fields is None:
        blocks = _blocks(body)
        if not blocks and _IMAGE.search(body):
            raise UnreadableDocument(path, "only pictures, no text in it")
    else:  # only pages with front matter go through a site generator
        blocks = _blocks(_with_table_rules(without_liquid(body, fields)))
        blocks = blocks or _blocks(without_liquid(front_matter_text(text), fields))
        if not blocks:
            raise UnreadableDocument(path, "only front matter and template tags, no text")
    return Document(
        path=path,
        title=choose_title((fields or {}).get("title", ""), blocks, path),
        blocks=blocks,
        content_hash=content_hash(data),
    )


def _blocks(text: str) -> tuple[Block, ...]:
    html = _renderer(text).render(text)
    return blocks_of(BeautifulSoup(html, "lxml")) if html.strip() else ()


def _with_table_rules(text: str) -> str:
    """Give the tables of kramdown, which need no rule below their first row, the rule that Markdown needs."""
    return _BARE_TABLE.sub(lambda row: row[0] + "|---" * (row[1].count("|") - 1) + "|\n", text)


def _renderer(text: str) -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": True, "maxNesting": 100}).enable(["table", "strikethrough"])
    if _BLOCK_HTML.search(text):
        markdown.disable("code")  # in such pages an indented line is nested HTML, not a program
    markdown.core.ruler.push("left_markup", _remove_left_markup)
    markdown.core.ruler.push("placeholders", _keep_placeholders)
    return markdown


def _remove_left_markup(state: StateCore) -> None:
    """Drop markup that CommonMark takes for text, such as kramdown's `{: .class}`, but not inside code."""
    for previous, token in zip([None, *state.tokens], state.tokens, strict=False):
        for child in _texts(token):
            child.content = _ATTRIBUTE_LIST.sub("", _LEFT_IMAGE.sub("", child.content))
            child.content = _LEFT_BOLD.sub(r"\1", child.content)
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
