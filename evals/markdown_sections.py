"""Sections of a Markdown page that commands write, each between two markers; and Markdown tables."""

import os
from pathlib import Path
from typing import Any

from app.domain.errors import DeskError


def read_section(file: Path, name: str) -> tuple[str, str]:
    """The text before and after the section `name`, markers included. Raises DeskError if there is no such section."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    try:
        content = file.read_text(encoding="utf-8")
    except OSError as error:
        raise DeskError(f"{file}: {error.strerror or error}", code="no-such-file") from error
    if content.count(begin) != 1 or content.count(end) != 1 or content.index(begin) > content.index(end):
        raise DeskError(f"{file} has no section between {begin!r} and {end!r}: add both lines", code="no-section")
    return content[: content.index(begin) + len(begin)], content[content.index(end) :]


def write_section(file: Path, name: str, text: str) -> None:
    """Replace the section `name` of a Markdown file by `text`, whole or not at all. Raises DeskError."""
    head, tail = read_section(file, name)
    temporary = file.with_suffix(".tmp")
    temporary.write_text(f"{head}\n{text.strip()}\n{tail}", encoding="utf-8")
    os.replace(temporary, file)


def table(rows: list[dict[str, Any]], columns: dict[str, str]) -> str:
    """A Markdown table. columns: key of a row to its heading."""
    lines = ["| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(row[key]) for key in columns) + " |" for row in rows]
    return "\n".join(lines)


def cell(value: object) -> str:
    """A cell: numbers with a thousands separator, empty for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
