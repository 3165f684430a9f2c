"""A model's answer as HTML that can do nothing harmful: a little Markdown, everything else is text.

Honoured: paragraphs, line breaks, lists, **bold**, *italic*, `code`; headings become bold lines. Never honoured: raw
HTML, images, links (a Markdown link becomes "label (address)" as plain text), tables, LaTeX. Only the contacts of the
settings become links, and only where the desk speaks itself (`linked`).
"""

import re
from collections.abc import Mapping
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markupsafe import Markup

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
_BULLET = re.compile(r"^([ \t]{0,8})•(?=[ \t])", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}[ \t]+([^\s#].*)$", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\[\]\n]{0,200})\]\(([^()\s]{0,500})[^()\n]{0,100}\)")
_END = re.compile(r"((?:</(?:p|li|ul|ol)>)+)$")
_EMPHASIS = (
    ("em", re.compile(r"\*(\*\*[^\s*][^*\n]{0,300}\*\*)\*")),
    ("strong", re.compile(r"\*\*(?=\S)([^*\n]{1,500}?)(?<=\S)\*\*")),
    ("em", re.compile(r"(?<![\w*])\*(?=[^\s*])([^*\n]{1,300}?)(?<=[^\s*])\*(?![\w*])")),
)


def without_controls(text: str) -> str:
    """The text without control characters. Bidirectional ones go, too: with them a passage could reorder what stands
    beside it.
    """
    return _CONTROL.sub("", text)


def answer_html(text: str) -> Markup:
    """A model's answer. Right for half an answer, too: an unfinished ** or list is shown as it stands."""
    text = _LINK.sub(lambda link: f"{link[1]} ({link[2]})" if link[1] else link[2], without_controls(text))
    text = _HEADING.sub(lambda heading: f"**{heading[1].rstrip('# ').replace('**', '')}**", _BULLET.sub(r"\1-", text))
    return Markup(_renderer().render(text).replace("\n", ""))


def linked(html: Markup, links: Mapping[str, str]) -> Markup:
    """HTML with an anchor for every text of `links` that stands in it; links: addresses by text, of the settings."""
    by_html = {escapeHtml(text): escapeHtml(address) for text, address in links.items()}
    if not by_html:
        return html
    longest_first = "|".join(map(re.escape, sorted(by_html, key=len, reverse=True)))

    def anchor(found: re.Match[str]) -> str:
        return f'<a href="{by_html[found[0]]}" rel="noopener noreferrer">{found[0]}</a>'

    return Markup(re.sub(longest_first, anchor, str(html)))


def caret_html(text: str) -> Markup:
    """The answer so far, with a caret behind its last word."""
    return at_its_end(answer_html(text), Markup('<span class="wd-caret"></span>'))


def at_its_end(html: Markup, more: Markup) -> Markup:
    """The HTML of an answer with something more within its last block."""
    return Markup(_END.sub(lambda end: f"{more}{end[1]}", str(html)))


@cache
def _renderer() -> MarkdownIt:
    markdown = MarkdownIt("zero", {"breaks": True, "maxNesting": 100}).enable(["list", "backticks", "newline"])
    markdown.inline.ruler.push("emphasis_by_stars", _emphasis)
    markdown.core.ruler.push("blocks", _set_up_blocks)
    return markdown


def _emphasis(state: StateInline, silent: bool) -> bool:
    """CommonMark's own rule takes 2*3*4 for emphasis, and does not end bold text between Chinese punctuation and a
    letter. silent, which asks only whether the rule matches, is never set: no rule that is switched on looks ahead.
    """
    for tag, pattern in _EMPHASIS:
        if match := pattern.match(state.src, state.pos, state.posMax):
            end = state.posMax
            state.push(f"{tag}_open", tag, 1)
            state.pos, state.posMax = match.span(1)
            state.md.inline.tokenize(state)
            state.push(f"{tag}_close", tag, -1)
            state.pos, state.posMax = match.end(), end
            return True
    return False


def _set_up_blocks(state: StateCore) -> None:
    """Each block has its own direction of writing; lists look the same with and without empty lines."""
    hide = False
    for before, token in zip([None, *state.tokens], state.tokens, strict=False):
        if token.type in ("paragraph_open", "list_item_open"):
            token.attrSet("dir", "auto")
        if token.type == "paragraph_open":
            hide = before is not None and before.type == "list_item_open"
        if token.type in ("paragraph_open", "paragraph_close"):
            token.hidden = hide
