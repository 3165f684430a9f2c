"""Markdown pages, with what site generators add: front matter, Liquid tags, attribute lists, HTML.

The page is rendered to HTML and then read as HTML, because real pages mix both. Footnotes and mathematics stay as
written.
"""

import re
from pathlib import Path

from bs4 import BeautifulSoup
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore

from retrieval.documents.document import Block, Contents
from retrieval.errors import UnreadableDocument
from retrieval.parsing.addresses import web_address
from retrieval.parsing.decoding import decode
from retrieval.parsing.front_matter import split_front_matter
from retrieval.parsing.html_blocks import blocks_of
from retrieval.parsing.liquid import without_liquid
from retrieval.text.characters import readable

_BLOCK_HTML = re.compile(r"^[ \t]*</?(?:div|ol|ul|li|table|tr|section|details)\b", re.MULTILINE | re.IGNORECASE)
_BARE_TABLE = re.compile(r"^[ \t]*\n(\|.*\|)[ \t]*\n(?=\|(?![ \t:]*-).*\|[ \t]*$)", re.MULTILINE)
_ATTRIBUTE_LIST = re.compile(r"[ \t]?\{:[^{}\n]*\}")
_HEADING_ID = re.compile(r"(?:[ \t]+#+)?[ \t]*\{#[^{}\s]+\}[ \t]*$")
# Other Markdown programs accept bold next to Chinese punctuation and image addresses with spaces; CommonMark does not.
_LEFT_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
_LEFT_IMAGE = re.compile(r"!\[[^\[\]]*\]\([^()\n]*\)")
_IMAGE = re.compile(r"!\[|<img\b", re.IGNORECASE)
_OPEN_TAG = re.compile(r"<([A-Za-z][\w-]*)")
_NEEDS_NO_CLOSING_TAG = frozenset("br col dd dt embed hr img input li option p source td th tr wbr".split())  # noqa: SIM905


def load_markdown(data: bytes, path: Path) -> Contents:
    """Read a Markdown page. Raises UnreadableDocument for binary content and for pages without text."""
    front, body = split_front_matter(readable(decode(data, path)))
    if front is None:
        blocks = _blocks(body)
        if not blocks and _IMAGE.search(body):
            raise UnreadableDocument(path, "only pictures, no text in it")
        return Contents(blocks=blocks)
    # Only pages with front matter go through a site generator.
    blocks = _blocks(_with_table_rules(without_liquid(body, front.fields)))
    blocks = blocks or _blocks(without_liquid(front.text, front.fields))
    if not blocks:
        raise UnreadableDocument(path, "only front matter and template tags, no text")
    named = (front.fields.get(name, "") for name in ("url", "canonical_url", "permalink"))
    return Contents(
        blocks=blocks,
        title=front.fields.get("title", "").strip() or None,
        url=next(filter(None, map(web_address, named)), ""),
    )


def _blocks(text: str) -> tuple[Block, ...]:
    html = _renderer(text).render(text)
    return blocks_of(BeautifulSoup(html, "lxml")) if html.strip() else ()


def _with_table_rules(text: str) -> str:
    """Add the rule below the first row of a table: kramdown needs none, Markdown does."""
    return _BARE_TABLE.sub(lambda row: row[0] + "|---" * (row[1].count("|") - 1) + "|\n", text)


def _renderer(text: str) -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": True, "maxNesting": 100}).enable(["table", "strikethrough"])
    if _BLOCK_HTML.search(text):
        markdown.disable("code")  # in such pages an indented line is nested HTML, not a program
    markdown.core.ruler.push("left_markup", _correct_markup)
    return markdown


def _correct_markup(state: StateCore) -> None:
    """Drop markup that CommonMark takes for text, such as kramdown's `{: .class}`, but not inside code. Show `<order
    number>` as text: Markdown takes it for a tag, but nothing closes it.
    """
    source = state.src.lower()
    for previous, token in zip([None, *state.tokens], state.tokens, strict=False):
        for child in token.children or []:
            if child.type == "text":
                text = _LEFT_BOLD.sub(r"\1", _ATTRIBUTE_LIST.sub("", _LEFT_IMAGE.sub("", child.content)))
                is_heading = previous is not None and previous.type == "heading_open"
                child.content = _HEADING_ID.sub("", text) if is_heading else text
            elif child.type == "html_inline" and (opened := _OPEN_TAG.match(child.content)):
                name = opened[1].lower()
                closes = name in _NEEDS_NO_CLOSING_TAG or child.content.endswith("/>") or f"</{name}" in source
                child.type = "html_inline" if closes else "text"
