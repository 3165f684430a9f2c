"""File names as text that is safe on a terminal and in a log. They are not shortened, and no longer valid paths."""

from pathlib import Path


def printable(path: Path | str) -> str:
    """The path with line breaks, escape codes, direction marks and undecodable bytes written as escapes."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in str(path)
    )
