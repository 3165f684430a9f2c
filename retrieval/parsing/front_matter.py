"""The YAML block that site generators (Jekyll, Hugo, Docusaurus) keep at the top of a page.

Gives the fields that are text or a list of texts, and all sentences among the fields: for a page without a body they
are its text. The caller decides what of it belongs to the page.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import yaml

_BLOCK = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_TITLE_LINE = re.compile(r"^title:[ \t]*(.*)$", re.MULTILINE)
_MAX_CHARACTERS = 64 * 1024  # no real block is larger, and the YAML parser is slow
_HEADING_FIELD = re.compile(r"(?:sub)?(?:title|heading|question|name)\d*")
_ABOUT_THE_PAGE = frozenset(("title", "description"))  # at the top; not shown among the text
_SENTENCE = re.compile(r"\S+\s+\S+\s.*\S[.!?](?:\W*\s|\W*\Z)|[。！？]", re.DOTALL)


class FrontMatter(NamedTuple):
    """The block as Markdown."""

    fields: dict[str, str]  # by name, lists as bullet lists
    text: str  # the sentences among all fields, with the headings beside them in nested fields


def split_front_matter(text: str) -> tuple[FrontMatter | None, str]:
    """The front matter, if any, and the body. A block that is not a mapping is text between two rules: body."""
    found = _BLOCK.match(text[:_MAX_CHARACTERS])
    if not found:
        return None, text
    block, body = found[1], text[found.end() :]
    try:
        # BaseLoader makes nothing but strings, lists and mappings, and leaves `title: On` a string.
        fields = yaml.load(block, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError):  # mostly a title with an unquoted colon
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
        if id(value) in seen:  # an anchor used twice, or a bomb of them
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
