"""What a process that is killed leaves of a data folder: a copy of the folder at each line at which it has changed.

A kill loses memory and leaves files as they are, so such a copy is what the next process finds. Not covered: what is
lost with the power.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import app
from app.storage.data_folder import LOCK_FILE, OWNER_FILE

FILES = {
    *("storage/archive.py", "storage/data_folder.py", "storage/files.py", "storage/document_change.py"),
    *("knowledge/forget.py", "knowledge/uploads.py", "knowledge/ingest.py", "support/faq.py", "storage/faq.py"),
}
"""Where code is whose lines count."""
CODE = {str(Path(app.__file__).parent / name) for name in FILES}
UNPACKING = {"read_archive", "_unpack"}  # each member would be a kill, with the same to be cleaned up after it
OF_THE_LOCK = {LOCK_FILE, OWNER_FILE}


@contextmanager
def at_each_line(look: Callable[[FrameType], None]) -> Iterator[None]:
    """Call this before each line of that code which this thread runs, and behind the last one of each function."""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in CODE or frame.f_code.co_name in UNPACKING:
            return None
        if event in ("line", "return"):
            look(frame)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class Killed(BaseException):
    """Ends work of which nobody wants to see more."""


def left_by_kills(folder: Path, copies: Path, work: Callable[[], object], only: int | None = None) -> list[Path]:
    """What a kill at any line of some work leaves of a folder: copies, each another one, the first as it begins. only:
    the number of the one copy that is wanted, with which the work ends; there is none if it ends before.
    """
    found, last, numbers = list[Path](), list[object](), iter(range(10_000))
    shutil.rmtree(copies, ignore_errors=True)

    def look(frame: FrameType) -> None:
        if last == (now := [*looks(str(folder))]):
            return
        last[:], number = now, next(numbers)
        if only in (None, number):
            found.append(copies / str(number))
            copy(folder, found[-1])
        if number == only:
            raise Killed

    with suppress(Killed), at_each_line(look):
        work()
    return found


def looks(folder: str) -> Iterator[tuple[str, int, int]]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:  # a thread of the desk's may remove what is here
        for one in entries:
            if one.is_dir(follow_symlinks=False):
                yield one.path, 0, 0
                yield from looks(one.path)
            elif one.name not in OF_THE_LOCK:
                status = one.stat(follow_symlinks=False)
                if status.st_size:  # one that was just made is not worth a kill
                    yield one.path, status.st_size, status.st_mtime_ns


def copy(folder: Path, other: Path) -> None:
    shutil.rmtree(other, ignore_errors=True)
    with suppress(shutil.Error):  # as above
        shutil.copytree(folder, other, symlinks=True)


def kill_again(left: Sequence[Path], folder: Path, copies: Path, finish: Callable[[Path], object]) -> None:
    """Let `finish` make good what each kill left, when it was killed itself before, each time at another line. finish:
    is given the copy of what the first kill left, and looks itself whether all is well.
    """
    for number, one in enumerate(left):
        copy(one, folder)
        for again in left_by_kills(folder, copies, partial(finish, one), only=number * 7 % 23):
            copy(again, folder)
            finish(one)


def tree(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder, but for its lock."""
    paths = (path for path in folder.rglob("*") if path.name not in OF_THE_LOCK)
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}
