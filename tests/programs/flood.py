"""Measure what one visitor at full speed does to a server, and to another customer.

    make flood FOLDER=data_folder [SECONDS=60]

The data folder is served in its own process. A customer asks, first alone, then while a visitor floods the server from
another process: events and requests whose answers are not read, texts of a megabyte, new pages, events that name files
and URLs, and 1,000 open connections. Prints one JSON document: the longest wait for /healthz, the customer's time to
the first words in both phases, the memory of the server's processes, the statuses that the visitor got, and files left
in the temporary folder or found with the text of a secret file. All requests come from 127.0.0.1, so limits by IP
address apply to both. Out of scope: many visitors, other IP addresses.
"""

import http.client
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from queue import Empty
from typing import Any, Final

import psutil
import typer

from app.access.identity import COOKIE, new_token
from evals.report import describe_machine

HOST: Final = "127.0.0.1"
JOIN: Final = "/gradio_api/queue/join"
CANARY: Final = "canary-5d41402abc4b2a76"
LONG: Final = json.dumps({"text": "\ufdfa" * 340_000}, ensure_ascii=False).encode()
CONNECTIONS: Final = 1000
PERIOD_S: Final = 1.5  # between two questions of the customer: an address may ask 100 a minute
QUESTIONS: Final = (
    "How long do returns take?",
    "Can I change my delivery address?",
    "Do gift cards expire?",
    "How do I cancel an order?",
    "What does express delivery cost?",
)
Sent = tuple[str, bytes]  # path and body


class Browser:
    """A visitor's requests. Each reuses the connection while possible."""

    def __init__(self, port: int, token: str) -> None:
        self._port, self._headers = port, {"cookie": f"{COOKIE}={token}", "content-type": "application/json"}
        self._connection: http.client.HTTPConnection | None = None

    def open(self, method: str, path: str, body: bytes = b"") -> http.client.HTTPResponse:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(HOST, self._port, timeout=60)
        try:
            self._connection.request(method, path, body, self._headers)
            return self._connection.getresponse()
        except BaseException:
            self.close()
            raise

    def send(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        response = self.open(method, path, body)
        return response.status, response.read()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def event(config: Mapping[str, Any], name: str, *data: object, page: str) -> bytes:
    number = next(one["id"] for one in config["dependencies"] if any(target[1] == name for target in one["targets"]))
    return json.dumps({"fn_index": number, "session_hash": page, "data": data, "event_data": None}).encode()


def first_words_s(port: int, number: int) -> float:
    """Ask, wait for the first words of the answer, and leave. Returns seconds, or infinity without an answer."""
    browser, page = Browser(port, new_token()), f"c{time.time_ns()}"
    config = json.loads(browser.send("GET", "/config")[1])
    began = time.perf_counter()
    browser.send("POST", JOIN, event(config, "submit", QUESTIONS[number % len(QUESTIONS)], "", "", page=page))
    stream = browser.open("GET", f"/gradio_api/queue/data?session_hash={page}")
    drawn = 0
    while line := stream.readline():
        drawn += b'"process_generating"' in line
        if drawn == 2:  # the first draws the question
            browser.close()
            return time.perf_counter() - began
        if b'"process_completed"' in line:
            break
    return float("inf")


def ask_for(port: int, seconds: float) -> list[float]:
    until, found = time.monotonic() + seconds, list[float]()
    for number in count():
        if time.monotonic() > until:
            return found
        began = time.monotonic()
        found.append(first_words_s(port, number))
        time.sleep(max(0.0, PERIOD_S - (time.monotonic() - began)))
    raise AssertionError


def flood(port: int, until: float, secret: str, statuses: "multiprocessing.Queue[Counter[str]]") -> None:
    token = new_token()
    config = json.loads(Browser(port, token).send("GET", "/config")[1])
    device, address = "/dev/zero", f"http://{HOST}:{port}/healthz"

    def file_data(path: str) -> bytes:
        named = {"path": path, "meta": {"_type": "gradio.FileData"}}
        return event(config, "load", named, page="file")

    kinds: dict[str, Callable[[int], Sent]] = {
        "unread events": lambda number: (JOIN, event(config, "load", "", page=f"u{number % 3}")),
        "new pages": lambda number: (JOIN, event(config, "load", "", page=f"n{number}")),
        "long typing": lambda number: ("/typing", LONG),
        "long question": lambda number: (JOIN, event(config, "submit", "\ufdfa" * 100_000, "", "", page="long")),
        "questions": lambda number: (JOIN, event(config, "submit", f"{number}?", "", "", page=f"q{number}")),
        "files": lambda number: (JOIN, file_data((device, secret, address)[number % 3])),
    }
    counted = Counter[str]()

    def send(kind: str, made: Callable[[int], Sent]) -> None:
        browser = Browser(port, token)
        for number in count():
            if time.time() > until:
                return
            path, body = made(number)
            try:
                counted[f"{kind}: {browser.send('POST', path, body)[0]}"] += 1
            except (OSError, http.client.HTTPException) as error:
                counted[f"{kind}: {type(error).__name__}"] += 1
                browser.close()

    def hold(request: bytes, many: int) -> None:
        held = list[socket.socket]()
        while time.time() < until:
            with suppress(OSError):
                held.append(socket.create_connection((HOST, port), timeout=5))
                held[-1].sendall(request)
            if len(held) > many:
                held.pop(0).close()
                time.sleep(0.01)

    page = f"GET / HTTP/1.1\r\nHost: {HOST}:{port}\r\nCookie: {COOKIE}={token}\r\n\r\n".encode()
    threads = [threading.Thread(target=send, args=one, daemon=True) for one in kinds.items() for _ in range(3)]
    threads += [
        threading.Thread(target=hold, args=(page * 20, 50), daemon=True),
        threading.Thread(target=hold, args=(b"GET / HT", CONNECTIONS), daemon=True),
    ]
    for thread in threads:
        thread.start()
    time.sleep(max(0.0, until - time.time()))
    statuses.put(Counter(counted))


@contextmanager
def served(folder: Path, temporary: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Serve a data folder in another process. Yields the process and its port."""
    temporary.mkdir()
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("warmdesk")), "serve", "--data-dir", str(folder), "--port", str(port)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True, env=environment)
    try:
        while True:
            with suppress(OSError, http.client.HTTPException):
                if Browser(port, "").send("GET", "/readyz")[0] == 200:
                    break
            if process.poll() is not None:
                sys.exit(f"the desk of {folder} does not open")
            time.sleep(0.5)
        yield process, port
    finally:
        process.terminate()
        process.wait(30)


class Watch:
    """Asks /healthz ten times a second over new connections, and reads the memory."""

    def __init__(self, process: psutil.Process, port: int) -> None:
        self.longest_s, self.most_bytes, self._process, self._port = 0.0, 0, process, port
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def memory(self) -> int:
        return int(self._process.memory_info().rss)

    def engine_memory(self) -> int:
        """Bytes of the engine's process, which fills its memory whoever asks."""
        return sum(one.memory_info().rss for one in self._process.children(recursive=True))

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            began = time.perf_counter()
            try:
                assert Browser(self._port, "").send("GET", "/healthz")[0] == 200
            except (OSError, http.client.HTTPException):
                self.longest_s = float("inf")
            self.longest_s = max(self.longest_s, time.perf_counter() - began)
            self.most_bytes = max(self.most_bytes, self.memory())

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def holding(files: Iterator[Path], words: str) -> list[str]:
    found = []
    for file in files:
        with suppress(OSError):
            if file.is_file() and words.encode() in file.read_bytes():
                found.append(str(file))
    return found


def measure(folder: Path, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, served(folder, Path(name, "temporary")) as (process, port):
        secret = Path(name, "secret.txt")
        secret.write_text(CANARY)
        with Watch(psutil.Process(process.pid), port) as watch:
            ask_for(port, 10)
            at_first = watch.memory()
            quiet, memory, engine = ask_for(port, seconds / 2), watch.memory(), watch.engine_memory()
            quiet_health, watch.longest_s, watch.most_bytes = watch.longest_s, 0.0, 0
            statuses: multiprocessing.Queue[Counter[str]] = multiprocessing.Queue()
            flooding = multiprocessing.Process(target=flood, args=(port, time.time() + seconds, str(secret), statuses))
            flooding.start()
            time.sleep(2)
            loud = ask_for(port, seconds - 4)
            try:
                sent = statuses.get(timeout=30)
            except Empty:
                sent = Counter()
            flooding.kill()
            longest, most = watch.longest_s, watch.most_bytes
            time.sleep(30)
            after, engine_after = watch.memory(), watch.engine_memory()
        left = [file for file in Path(name, "temporary").rglob("*") if file.is_file()]
        return {
            "machine": describe_machine(),
            "seconds": seconds,
            "healthz_longest_s": {"quiet": round(quiet_health, 3), "flood": round(longest, 3)},
            "first_words_ms": {"quiet": _times(quiet), "flood": _times(loud)},
            "p95_ratio": round(_p95(loud) / _p95(quiet), 2),
            "memory_mb": {
                "before_quiet": at_first >> 20,
                "before": memory >> 20,
                "most": most >> 20,
                "after_30_s": after >> 20,
                "most_added": (most - memory) >> 20,
                "engine_before": engine >> 20,
                "engine_after": engine_after >> 20,
            },
            "sent": dict(sorted(sent.items())),
            "left_in_temporary_folder": [str(file) for file in left],
            "canary_in": holding(iter(left), CANARY) + holding(folder.rglob("*"), CANARY),
        }


def _p95(times: list[float]) -> float:
    return sorted(times)[max(0, -(-len(times) * 95 // 100) - 1)]


def _times(times: list[float]) -> dict[str, float]:
    found = {"questions": len(times), "median": statistics.median(times) * 1e3, "p95": _p95(times) * 1e3}
    return {name: round(value, 1) for name, value in found.items()}


def main(folder: Path, seconds: float = 60) -> None:
    print(json.dumps(measure(folder.resolve(), seconds), indent=1))


if __name__ == "__main__":
    typer.run(main)
