"""The YAML block that site generators (Jekyll, Hugo, Docusaurus) keep at the top of a page.

Only its title is used. Text that a page keeps in other fields, for its template to place, is not read.
"""

import re

import yaml

_BLOCK = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_TITLE_LINE = re.compile(r"^title:[ \t]*(.*)$", re.MULTILINE)
_MAX_CHARACTERS = 64 * 1024  # no real block is larger, and the YAML parser is slow


def split_front_matter(text: str) -> tuple[str | None, str]:
    """(title, body). The title is None where there is no block, and "" where the block gives none.

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
        return (line[1].strip(" \t\"'"), body) if line else (None, text)
    if fields is None:
        return "", body
    if not isinstance(fields, dict):
        return None, text
    title = fields.get("title", "")
    return (title if isinstance(title, str) else ""), body
