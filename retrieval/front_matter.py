"""The YAML block that site generators (Jekyll, Hugo, Docusaurus) keep at the top of a page.

Gives the fields that are text or a list of texts. Which of them belong to the page is not decided here.
"""

import re

import yaml

_BLOCK = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_TITLE_LINE = re.compile(r"^title:[ \t]*(.*)$", re.MULTILINE)
_MAX_CHARACTERS = 64 * 1024  # no real block is larger, and the YAML parser is slow


def split_front_matter(text: str) -> tuple[dict[str, str] | None, str]:
    """(fields, body). Fields are Markdown, lists as bullet lists; None where the page has no such block.

    A block that is not a mapping is text between two rules and stays in the body.
    """
    found = _BLOCK.match(text[:_MAX_CHARACTERS])
    if not found:
        return None, text
    block, body = found[1], text[found.end() :]
    try:
        # BaseLoader makes nothing but strings, lists and mappings, and leaves `title: On` a string.
        fields = yaml.load(block, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError):  # mostly a title with an unquoted colon
        line = _TITLE_LINE.search(block)
        return ({"title": line[1].strip(" \t\"'")}, body) if line else (None, text)
    if fields is None:
        return {}, body
    if not isinstance(fields, dict):
        return None, text
    return {name: _markdown(value) for name, value in fields.items() if isinstance(name, str)}, body


def _markdown(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(f"- {' '.join(item.split())}" for item in value if isinstance(item, str))
    return value if isinstance(value, str) else ""
