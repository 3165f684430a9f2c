"""Markdown pages, with the additions of site generators: front matter, Liquid tags, attribute lists, HTML.

The page is rendered to HTML and read as HTML, because real pages mix both. Footnotes and mathematics stay as written.

**Front matter** is the YAML block at the top of a page (Jekyll, Hugo, Docusaurus). If the page has no body, the
sentences among its fields are the text.

**Liquid** is the template language of Jekyll. Its tags are removed and never evaluated, so included files, `site`
values and loop items are missing. A field of the front matter replaces a tag that names it: `{% include list.html
items=page.x %}`.

**Boxes, tabs and imported components** become ordinary paragraphs: Docusaurus and MDX (`:::tip`, `<TabItem label="…">`,
`import`), VitePress (`::: tip`), MkDocs Material (`!!! note`, `??? question "…"`, `=== "Tab"` with an indented body),
GitHub (`> [!NOTE]`), Hugo (`{{< note >}}`).
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml
from bs4 import BeautifulSoup
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore

from retrieval.documents import Block, Contents
from retrieval.errors import UnreadableDocument
from retrieval.loaders.decoding import decode
from retrieval.loaders.html_blocks import blocks_of
from retrieval.text.terms import readable

_BLOCK = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_TITLE_LINE = re.compile(r"^title:[ \t]*(.*)$", re.MULTILINE)
_MAX_CHARACTERS = 64 * 1024  # no real block is larger, and the YAML parser is slow
_HEADING_FIELD = re.compile(r"(?:sub)?(?:title|heading|question|name)\d*")
_ABOUT_THE_PAGE = frozenset(("title", "description"))  # at the top level; not part of the text
_SENTENCE = re.compile(r"\S+\s+\S+\s.*\S[.!?](?:\W*\s|\W*\Z)|[。！？]", re.DOTALL)


class FrontMatter(NamedTuple):
    """The front matter as Markdown."""

    fields: dict[str, str]  # by name, lists as bullet lists
    text: str  # the sentences among all fields, with the headings of nested fields


def split_front_matter(text: str) -> tuple[FrontMatter | None, str]:
    """Return the front matter and the body. A block that is no mapping and has no title line is part of the body."""
    found = _BLOCK.match(text[:_MAX_CHARACTERS])
    if not found:
        return None, text
    block, body = found[1], text[found.end() :]
    try:
        # BaseLoader makes only strings, lists and mappings, so `title: On` stays a string.
        fields = yaml.load(block, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError):  # usually a title with an unquoted colon
        line = _TITLE_LINE.search(block)
        return (FrontMatter({"title": line[1].strip(" \t\"'")}, ""), body) if line else (None, text)
    if not isinstance(fields, dict | None):
        return None, text
    named = {name: value for name, value in (fields or {}).items() if isinstance(name, str)}
    nested = {name: value for name, value in named.items() if name not in _ABOUT_THE_PAGE}
    sentences = "\n\n".join(_sentences(nested, set()))
    return FrontMatter({name: _markdown(value) for name, value in named.items()}, sentences), body


def _sentences(value: object, seen: set[int]) -> Iterator[str]:
    if isinstance(value, str):
        if _SENTENCE.search(value):
            yield value
    elif isinstance(value, dict | list):
        if id(value) in seen:  # an anchor used twice, or many nested ones in a hostile file
            return
        seen.add(id(value))
        heading = ""
        for name, part in value.items() if isinstance(value, dict) else [("", part) for part in value]:
            if isinstance(name, str) and _HEADING_FIELD.fullmatch(name) and isinstance(part, str):
                heading = " ".join(part.lstrip("# ").split())
                continue
            for sentence in _sentences(part, seen):
                yield from [f"### {heading}", sentence] if heading else [sentence]
                heading = ""


def _markdown(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(f"- {' '.join(item.split())}" for item in value if isinstance(item, str))
    return value if isinstance(value, str) else ""


_COMMENT_TAG = re.compile(r"\{%-?\s*(?:end)?comment\s*-?%\}")
_RAW_TAG = re.compile(r"\{%-?\s*(?:end)?raw\s*-?%\}")
_TAG = re.compile(r"\{%(?:(?!\{%).){0,4000}?%\}|\{\{[^{}]{0,1000}\}\}", re.DOTALL)
_PLACES_FIELD = re.compile(r"\{\{|\{%-?\s*(?:include|for)\b")
_FIELD = re.compile(r"\bpage\.(\w+)")


def without_liquid(text: str, fields: Mapping[str, str]) -> str:
    """Return the text without comments and tags, with the page's `fields` filled in. `{% raw %}` parts stay."""
    parts = _COMMENT_TAG.split(text)
    if len(parts) % 2:  # an even number of parts: one tag has no partner, so keep all
        text = "".join(parts[::2])
    parts = _RAW_TAG.split(text)
    return "".join(
        part if number % 2 else _TAG.sub(lambda tag: _field(tag[0], fields), part) for number, part in enumerate(parts)
    )


def _field(tag: str, fields: Mapping[str, str]) -> str:
    named = _FIELD.search(tag) if _PLACES_FIELD.match(tag) else None
    value = fields.get(named[1], "") if named else ""
    return f"\n\n{value}\n\n" if tag.startswith("{%") and value else value


_WEB = re.compile(r"https?://[^\s<>\"'`\\{}]{3,2000}")


def web_address(text: str) -> str:
    """Return the text if it is the complete address of a web page, else "", because other links could do harm."""
    text = text.strip()
    return text if _WEB.fullmatch(text) else ""


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
    front, body = split_front_matter(readable(decode(data, path)))
    if front is None:
        blocks = _blocks(body)
        if not blocks and _IMAGE.search(body):
            raise UnreadableDocument(path, "only pictures, no text in it")
        return Contents(blocks=blocks)
    # Only pages with front matter go through a site generator.
    text = without_liquid(body, front.fields)
    # The rule below the first row of a table: kramdown does not need it, Markdown does.
    blocks = _blocks(_BARE_TABLE.sub(lambda row: row[0] + "|---" * (row[1].count("|") - 1) + "|\n", text))
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
    text = "\n".join(_common_markdown(text.split("\n")))
    html = _renderer(text).render(text)
    return blocks_of(BeautifulSoup(html, "lxml")) if html.strip() else ()


def _renderer(text: str) -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": True, "maxNesting": 100}).enable(["table", "strikethrough"])
    if _BLOCK_HTML.search(text):
        markdown.disable("code")  # in such pages an indented line is nested HTML, not code
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


_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_INDENTED_BOX = re.compile(
    r'(?P<indent>[ \t]*)(?:(?:!!!|\?\?\?\+?)[ \t]+[\w-]+(?:[ \t]+[\w-]+)*|={3}[+!]*)[ \t]*(?:"(?P<title>.*)")?[ \t]*'
)
_CONTAINER = re.compile(r"[ \t]*:{3,}[ \t]*[\w-]*[ \t]*(?:\[(?P<bracketed>.*)\]|(?P<plain>[^{]*))(?:\{.*\})?[ \t]*")
_LABELLED = re.compile(
    r"<(?:TabItem|Tab|Admonition|Step|Accordion)\b[^>]{0,400}?\b(?:label|title)=[\"'](?P<label>[^\"'<>]{0,200})[\"'][^>]{0,400}>"
)
_ALERT = re.compile(r"^([ \t]*>[ \t]*)\[!\w+\][+-]?[ \t]*", re.MULTILINE)
_IMPORT = re.compile(
    r"(?:import\s(?:[\w$*{},\s]+\sfrom\s)?\s*[\"'][@\w./-]+[\"']|export\s+(?:const|let|default|function)\b.*);?\s*"
)
_COMMENT = re.compile(r"\{/\*.{0,4000}?\*/\}", re.DOTALL)
_SHORTCODE = re.compile(r"\{\{[<%].{0,400}?[%>]\}\}")
_INDENT = 4  # of the body of a box of MkDocs


def _common_markdown(lines: list[str]) -> Iterator[str]:
    """Yield the lines, with boxes and tabs as ordinary paragraphs. Fenced code does not change."""
    fence = ""
    boxes: list[int] = []  # indents of open boxes of MkDocs
    prose: list[str] = []  # lines outside of fenced code
    for line in lines:
        indent = len(line) - len(line.lstrip())
        while boxes and line.strip() and indent < boxes[-1] + _INDENT:
            boxes.pop()
        shift = _INDENT * len(boxes)
        line = line[min(shift, indent) :]
        mark = _FENCE.match(line)
        if fence or mark:
            if mark and not fence:
                fence = mark[1]
                yield from _prose(prose)
                prose = []
            elif mark and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            yield line
        elif box := _INDENTED_BOX.fullmatch(line):
            boxes.append(indent)
            title = box["title"] or ""
            prose += ["", f"{title}:" if line.lstrip().startswith("=") else title, ""]
        else:
            prose.append(line)
    yield from _prose(prose)


def _prose(lines: list[str]) -> Iterator[str]:
    text = "\n".join(lines)
    text = _SHORTCODE.sub("", _COMMENT.sub("", _ALERT.sub(r"\1", _LABELLED.sub("\n\n\\g<label>:\n\n", text))))
    for line in text.split("\n"):
        if container := _CONTAINER.fullmatch(line):
            yield from ("", container["bracketed"] or container["plain"] or "", "")
        elif not _IMPORT.fullmatch(line):
            yield line
