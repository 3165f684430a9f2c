"""Removes the tags of Liquid, the template language of Jekyll pages.

Nothing is evaluated: included files, `site` values and loop items are missing. A field of the page's front matter
replaces a tag that names it, as in `{% include list.html items=page.x %}`.
"""

import re
from collections.abc import Mapping

_COMMENT_TAG = re.compile(r"\{%-?\s*(?:end)?comment\s*-?%\}")
_RAW_TAG = re.compile(r"\{%-?\s*(?:end)?raw\s*-?%\}")
_TAG = re.compile(r"\{%(?:(?!\{%).){0,4000}?%\}|\{\{[^{}]{0,1000}\}\}", re.DOTALL)
_PLACES_FIELD = re.compile(r"\{\{|\{%-?\s*(?:include|for)\b")
_FIELD = re.compile(r"\bpage\.(\w+)")


def without_liquid(text: str, fields: Mapping[str, str]) -> str:
    """The text without comments and tags, with the page's `fields` filled in. `{% raw %}` parts stay."""
    parts = _COMMENT_TAG.split(text)
    if len(parts) % 2:  # an even number of parts: a tag without its partner, so keep all
        text = "".join(parts[::2])
    parts = _RAW_TAG.split(text)
    return "".join(
        part if number % 2 else _TAG.sub(lambda tag: _field(tag[0], fields), part) for number, part in enumerate(parts)
    )


def _field(tag: str, fields: Mapping[str, str]) -> str:
    named = _FIELD.search(tag) if _PLACES_FIELD.match(tag) else None
    value = fields.get(named[1], "") if named else ""
    return f"\n\n{value}\n\n" if tag.startswith("{%") and value else value
