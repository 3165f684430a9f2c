"""Finds the files in a user's list of files and folders.

Opens no file and checks no file type: the loader says of each unsupported file why it was skipped.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from retrieval.errors import file_problem


def find_files(paths: Iterable[Path | str]) -> Iterator[tuple[Path, str | None]]:
    """Yield each file once as (path, None), or (path, problem) with a one-line reason; never raises OSError.

    Folders are walked in sorted order, in each the files before the folders. Named paths are always given; inside
    folders, hidden names and special files are left out. A symbolic link is followed only to a place inside the given
    folder.
    """
    seen: set[tuple[int, int]] = set()  # device and inode: links and overlapping arguments give no duplicates
    for path in map(Path, paths):
        try:
            if path.is_dir():
                yield from _walk(path, seen)
            elif _is_new(path, seen):
                yield path, None
        except (OSError, ValueError) as error:
            yield path, file_problem(error)


def _walk(folder: Path, seen: set[tuple[int, int]]) -> Iterator[tuple[Path, str | None]]:
    root = folder.resolve()
    waiting = [folder]  # a stack and not recursion: folders nest deeper than Python's call stack
    while waiting:
        current = waiting.pop()
        folders: list[Path] = []
        try:
            if not _is_new(current, seen):
                continue
            names = sorted(os.listdir(current))
        except OSError as error:
            yield current, file_problem(error)
            continue
        for path in (current / name for name in names if not name.startswith(".")):
            try:
                if path.is_symlink() and not path.resolve(strict=True).is_relative_to(root):
                    yield path, "symbolic link to a place outside the folder"
                elif path.is_dir():
                    folders.append(path)
                elif path.is_file() and _is_new(path, seen):
                    yield path, None
            except (OSError, RuntimeError) as error:  # RuntimeError: a link loop, before Python 3.13
                yield path, file_problem(error)
        waiting.extend(reversed(folders))


def _is_new(path: Path, seen: set[tuple[int, int]]) -> bool:
    status = path.stat()
    key = (status.st_dev, status.st_ino)
    if key in seen:
        return False
    seen.add(key)
    return True
