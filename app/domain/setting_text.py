"""Lists and tables of settings as text: a list has one entry a line, a table one `name = value` a line.

`lines_of` and `table_of` read what `text_of` writes. Not covered: what the entries may be (`settings`), sizes.
"""

import json
import re
from collections.abc import Mapping

_ROW = re.compile(r'(?P<name>"(?:[^"\\]|\\.)*"|[^"=\s]+(?:\s+[^"=\s]+)*)\s*=\s*(?P<value>.*)')


def lines_of(text: str, also: str = "\n") -> tuple[str, ...]:
    """The entries of a list, without empty ones. also: what else than the end of a line may stand between two."""
    return tuple(entry.strip() for entry in re.split(rf"[\n{also}]", text) if entry.strip())


def table_of(text: str) -> dict[str, str]:
    """The entries of a table. A name may, and one that is empty or has an equals sign in it must, stand in quotation
    marks, as in TOML. Raises ValueError.
    """
    table: dict[str, str] = {}
    for line in lines_of(text):
        row = _ROW.fullmatch(line)
        if row is None:
            raise ValueError(f"{line!r} is not name = value")
        name, value = (_unquoted(row[part]) for part in ("name", "value"))
        if name in table:
            raise ValueError(f"{name!r} stands there twice")
        table[name] = value
    return table


def text_of(value: object) -> str:
    """The value of a setting; empty if it is not set."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "\n".join(map(str, value))
    if isinstance(value, Mapping):
        return "\n".join(f"{json.dumps(name, ensure_ascii=False)} = {entry}" for name, entry in value.items())
    return str(value)


def _unquoted(text: str) -> str:
    return str(json.loads(text)) if len(text) > 1 and text[0] == text[-1] == '"' else text
