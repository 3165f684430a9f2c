"""Finds files, and reads them in a separate process with limits of time and memory.

A hostile file can cost a minute but cannot stop the server. A child that exceeds a limit is replaced. The child is not
a sandbox: it can open every file that its user can open. Requests and responses are lines of JSON on standard input and
output, so a file that takes over the child can only produce a wrong document. The child never imports torch.
"""

import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import threading
import warnings
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar

from pydantic import TypeAdapter

from retrieval.documents import Document, WebPage
from retrieval.errors import UnreadableDocument, file_problem
from retrieval.text.terms import printable

_ROOT = Path(__file__).resolve().parents[2]
_COMMAND = (sys.executable, "-m", "retrieval.reading")
_LONGEST_RESPONSE = 256 * 2**20
_DOCUMENT = TypeAdapter(Document)
_PAGE = TypeAdapter(WebPage)
T = TypeVar("T")


def find_files(paths: Iterable[Path | str]) -> Iterator[tuple[Path, str | None]]:
    """Yield each file once as (path, None), or (path, problem) with a one-line reason. Never raises OSError. Folders
    are walked in sorted order, files before folders. Named paths are always yielded. Inside folders, hidden names and
    special files are skipped. A symbolic link is followed only to a place inside the given folder. No file is opened,
    and types are not checked.
    """
    seen: set[tuple[int, int]] = set()  # device and inode, so links and overlapping arguments cause no duplicates
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
    waiting = [folder]  # a stack, because folders can be nested deeper than Python's call stack
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
        """seconds: limit for one file. memory: address space of the child, in bytes."""
        self._seconds = seconds
        self._command = [*command, str(memory)]
        self._child: _Child | None = None
        self._lock = threading.Lock()

    def __exit__(self, *error: object) -> None:
        self.close()

    def load(self, path: Path) -> Document:
        """Read one file, as `loaders.load` does. Raises UnreadableDocument, also for a file that takes too long, needs
        too much memory, or crashes the child.
        """
        fields = self._fields({"path": os.path.abspath(path)}, path)
        return _checked(_DOCUMENT, fields | {"path": path}, path)

    def load_page(self, data: bytes, url: str, suffix: str, encoding: str = "") -> WebPage:
        """Read a page of a website. suffix: of its format, for example ".html". encoding: of its text, if the server
        sent it. Raises the errors of `load`.
        """
        request = {"data": b64encode(data).decode(), "url": url, "suffix": suffix, "encoding": encoding}
        return _checked(_PAGE, self._fields(request, Path(url)), Path(url))

    def _fields(self, request: dict[str, str], path: Path) -> dict[str, Any]:
        with self._lock:
            if self._child is None:
                self._child = _Child(self._command)
            response = None
            try:
                response = self._child.request(request, self._seconds)
            except TimeoutError:
                raise UnreadableDocument(path, f"took longer than {self._seconds:g} s to read") from None
            finally:  # also after an interrupt: a late response must not be used for the next file
                if response is None:
                    self._end_child()
        try:
            fields = json.loads(response or b"null")
            reason = fields.get("reason")
        except (ValueError, AttributeError, RecursionError):
            raise _crashed(path) from None
        if reason is not None:
            raise UnreadableDocument(path, printable(str(reason)))
        return dict(fields)

    def close(self) -> None:
        """End the child. The next `load` starts another."""
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
            start_new_session=True,  # the parent handles Ctrl-C
        )
        self._responses: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        assert self._process.stdout is not None
        threading.Thread(target=_collect, args=(self._process.stdout, self._responses), daemon=True).start()

    def request(self, request: dict[str, str], seconds: float) -> bytes | None:
        """Return the response, or None if the child has crashed. Raises TimeoutError."""
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
    """Collect responses in a thread, so that a pipe can be read with a time limit on every system. The last is b""."""
    line = b"start"
    while line:
        try:
            line = source.readline(_LONGEST_RESPONSE)
        except (OSError, ValueError):  # closed by `end`
            line = b""
        responses.put(line if line.endswith(b"\n") else b"")


def _checked(kind: TypeAdapter[T], fields: dict[str, Any], path: Path) -> T:
    """Return the value in the child's response. It is checked, because it is as untrusted as the file."""
    try:
        return kind.validate_python(fields)
    except (ValueError, TypeError, RecursionError):
        raise _crashed(path) from None


def _crashed(path: Path) -> UnreadableDocument:
    return UnreadableDocument(path, "the program that reads files crashed on it")


def main() -> None:
    """Answer requests until the parent ends. The program's argument is the limit of its address space, in bytes."""
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a library's output is not a response
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limit, macOS refuses it
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, requests), daemon=True).start()
    while True:
        responses.write(_response(requests.get()) + b"\n")
        responses.flush()


def _listen(source: BinaryIO, requests: "queue.SimpleQueue[bytes]") -> None:
    """End the process when the parent has ended, even while a file is being read."""
    for line in source:
        requests.put(line)
    os._exit(0)


def _response(request: bytes) -> bytes:
    from retrieval.loaders.load import load  # takes half a second, so it is not imported at the start
    from retrieval.loaders.web_page import read_page

    try:
        wanted = json.loads(request)
        if "path" in wanted:
            return json.dumps(asdict(load(Path(wanted["path"]))), default=str).encode()
        wanted["data"] = b64decode(wanted["data"])
        return json.dumps(asdict(read_page(**wanted))).encode()
    except UnreadableDocument as error:
        reason = error.reason
    except MemoryError:
        reason = "needs too much memory to read"
    return json.dumps({"reason": reason}).encode()


if __name__ == "__main__":
    main()
