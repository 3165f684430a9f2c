"""Reads files in a process of their own, so that a hostile file can cost a minute but cannot stop the desk.

The child has limits of time and memory; when it breaks one, it is replaced. It is no sandbox: it may open what its user
may open. Only JSON comes back.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from retrieval.documents.document import Document
from retrieval.errors import UnreadableDocument, file_problem
from retrieval.text.terms import printable

_ROOT = Path(__file__).resolve().parents[2]
_COMMAND = (sys.executable, "-m", "retrieval.reading.process")
_LONGEST_RESPONSE = 256 * 2**20
_DOCUMENT = TypeAdapter(Document)


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


class FileReader(contextlib.AbstractContextManager["FileReader"]):
    """Reads one file at a time, from any thread. Starts its child with the first file; `close()` ends it."""

    def __init__(self, *, seconds: float = 60.0, memory: int = 2 * 2**30, command: Sequence[str] = _COMMAND) -> None:
        """seconds: the limit for one file; memory: bytes of address space, for the child as a whole."""
        self._seconds = seconds
        self._command = [*command, str(memory)]
        self._child: _Child | None = None
        self._lock = threading.Lock()

    def __exit__(self, *error: object) -> None:
        self.close()

    def load(self, path: Path) -> Document:
        """Read one file, as `loaders.load` does. Raises UnreadableDocument, also for a file that takes too long, needs
        too much memory, or breaks the child.
        """
        with self._lock:
            if self._child is None:
                self._child = _Child(self._command)
            response = None
            try:
                response = self._child.request({"path": os.path.abspath(path)}, self._seconds)
            except TimeoutError:
                raise UnreadableDocument(path, f"took longer than {self._seconds:g} s to read") from None
            finally:  # also after an interrupt: a late response must not be taken for that of the next file
                if response is None:
                    self._end_child()
        return _document(response, path)

    def close(self) -> None:
        """End the child; a later `load` starts another."""
        with self._lock:
            self._end_child()

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


class _Child:
    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=_ROOT,  # where `-m` finds this package
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        self._responses: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        assert self._process.stdout is not None
        threading.Thread(target=_collect, args=(self._process.stdout, self._responses), daemon=True).start()

    def request(self, request: dict[str, str], seconds: float) -> bytes | None:
        """The response, or None if the child has crashed. Raises TimeoutError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            return self._responses.get(timeout=seconds) or None
        except queue.Empty:
            raise TimeoutError from None
        except OSError:
            return None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            with contextlib.suppress(OSError):
                pipe.close()


def _collect(source: IO[bytes], responses: "queue.SimpleQueue[bytes]") -> None:
    """Runs in a thread: that is how to wait for a pipe with a time limit on every system. Ends with b""."""
    line = b"start"
    while line:
        try:
            line = source.readline(_LONGEST_RESPONSE)
        except (OSError, ValueError):  # closed by `end`
            line = b""
        responses.put(line if line.endswith(b"\n") else b"")


def _document(response: bytes | None, path: Path) -> Document:
    """The child's response, checked: it is trusted as little as the file."""
    try:
        fields = json.loads(response or b"null")
        if "reason" in fields:
            raise UnreadableDocument(path, printable(fields["reason"]))
        return _DOCUMENT.validate_python(fields | {"path": path})
    except (ValueError, TypeError, RecursionError):
        raise UnreadableDocument(path, "the reader stopped unexpectedly on it") from None
