"""Measure commands, indexing, a killed ingest, the start of a server, search, and the memory of the server.

Every step runs in a separate process, as in real use, in data folders made for the measurement. Questions are asked
over HTTP, one at a time: each once after the start, while the server encodes the passages, and again when it is idle.
Encoding a thousand passages takes a quarter of an hour, but only once for a data folder that is kept.
"""

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import psutil

from app.domain.errors import DeskError
from evals.report import describe_machine, percentile, table
from evals.speed.models import wall_seconds

WARMDESK: Final = str(Path(sys.executable).with_name("warmdesk"))
KILLED_AFTER_S: Final = (15, 30)
PERIOD_S: Final = 1.5  # between two questions
IDLE_S: Final = 5.0
COMMANDS: Final = (("--help",), ("documents", "--json"), ("stats", "--json"), ("sync", "list", "--json"))


def measure_desk(
    *, documents: Path, questions: Sequence[str], repeats: int, kept: Path | None, report: Callable[[str], None]
) -> dict[str, Any]:
    """Measure all steps. documents: a folder to ingest. questions: asked in turn. repeats: runs of each command. kept:
    data folder to keep. If an earlier run has filled it, indexing is not measured.
    """
    rows: list[dict[str, Any]] = []

    def add(what: str, unit: str, **figures: float) -> None:
        rows.append({"what": what, "unit": unit, "median": None, "p95": None} | figures)
        report(f"{what}: {', '.join(f'{name} {value:,.1f}' for name, value in figures.items())} {unit}")

    with TemporaryDirectory(prefix="warmdesk-bench-") as name:
        folder = kept or Path(name, "desk")
        is_new = not folder.exists()
        for seconds in KILLED_AFTER_S if is_new else ():
            figure = documents_kept(Path(name, f"killed-{seconds}"), documents, seconds)
            add(f"documents kept by an ingest killed after {seconds} s", "documents", figure=figure)
        began = time.perf_counter()
        ingested = warmdesk("ingest", str(documents), "--json", "--no-warm", folder=folder)
        rate = ingested["passages"] / (time.perf_counter() - began)
        if is_new:
            add("passages indexed, whole command", "a second", figure=rate)
        for command in (*COMMANDS, ("ask", questions[0])):
            times = [wall_seconds(partial(warmdesk, *command, folder=folder)) for _ in range(repeats)]
            add(f"warmdesk {command[0]}", "s", figure=min(times), median=statistics.median(times))
        own = f"bench {os.getpid()}"  # a kept desk has the keys of earlier runs
        key = warmdesk("keys", "create", own, "--scope", "chat,admin", "--json", folder=folder)["key"]
        with served(folder, key) as desk:
            add("served: first response / ready", "s", figure=desk.open_s, median=desk.ready_s)
            for phase in ("while passages are encoded", "quiet"):
                if phase == "quiet":
                    desk.become_idle()
                answers = list(desk.ask(questions))
                for what, stage in (("first token", "ttft"), ("search", "retrieve")):
                    ms = [one[stage] for one in answers]
                    middle = statistics.median(ms) if ms else 0.0
                    add(f"{what} {phase}", "ms", figure=len(ms), median=middle, p95=percentile(ms, 95))
            add("resident memory, engine and pages", "MiB", figure=desk.resident_mib())
    return {
        "machine": describe_machine(),
        "passages": ingested["passages"],
        "questions": len(questions),
        "rows": rows,
    }


def warmdesk(*arguments: str, folder: Path) -> Any:
    """Run a command until it ends. Returns its JSON document, if it prints one. Raises DeskError."""
    command = [WARMDESK, *arguments, *([] if "--help" in arguments else ["--data-dir", str(folder)])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise DeskError(f"{' '.join(command)}: {done.stderr[-500:]}", code="bench")
    return json.loads(done.stdout) if "--json" in arguments else None


def documents_kept(folder: Path, documents: Path, seconds: float) -> int:
    command = [WARMDESK, "ingest", str(documents), "--data-dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return len(warmdesk("documents", "--json", folder=folder)["documents"]) if folder.is_dir() else 0


class ServedDesk:
    """A server that this process has started. open_s, ready_s: seconds until its first response, and until /readyz."""

    def __init__(self, process: "subprocess.Popen[bytes]", client: httpx.Client) -> None:
        self._process, self._client, began = process, client, time.perf_counter()
        self.open_s = self.ready_s = 0.0
        while not self.ready_s:
            if process.poll() is not None:
                raise DeskError("the server ended during its start", code="bench")
            try:
                status = client.get("/readyz").status_code
            except httpx.TransportError:
                time.sleep(0.1)
                continue
            now = time.perf_counter() - began
            self.open_s = self.open_s or now
            if status == 200:
                self.ready_s = now
            time.sleep(0.1)

    def ask(self, questions: Sequence[str]) -> Iterator[dict[str, float]]:
        """Ask questions one at a time. Yields the milliseconds of each answer's stages."""
        for question in questions:
            began = time.perf_counter()
            body = {"model": "warmdesk", "messages": [{"role": "user", "content": question}]}
            answer = self._client.post("/v1/chat/completions", json=body).raise_for_status().json()
            yield answer["warmdesk"]["timings_ms"]
            time.sleep(max(0.0, PERIOD_S - (time.perf_counter() - began)))

    def become_idle(self) -> None:
        """Wait until the server has used less than a tenth of a CPU for IDLE_S seconds."""
        while self._processor_s(IDLE_S) > IDLE_S / 10:
            pass

    def _processor_s(self, seconds: float) -> float:
        before = {one: one.cpu_times() for one in self._processes()}
        time.sleep(seconds)
        used = (sum(one.cpu_times()[:2]) - sum(times[:2]) for one, times in before.items() if one.is_running())
        return float(sum(used))

    def _processes(self) -> list[psutil.Process]:
        parent = psutil.Process(self._process.pid)
        return [parent, *parent.children(recursive=True)]

    def resident_mib(self) -> float:
        return float(sum(one.memory_info().rss for one in self._processes())) / 2**20


@contextmanager
def served(folder: Path, key: str) -> Iterator[ServedDesk]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [WARMDESK, "serve", "--data-dir", str(folder), "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    headers = {"authorization": f"Bearer {key}"}
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=120) as client:
            yield ServedDesk(process, client)
    finally:
        process.terminate()
        process.wait(30)


def markdown(result: dict[str, Any], command: str) -> str:
    columns = {"what": "what", "figure": "figure (of questions: their number)", "median": "median", "p95": "95 %"}
    return (
        f"`{command}` on {result['machine']}; {result['passages']} passages, {result['questions']} questions. "
        "Commands: the smallest time and the median.\n\n" + table(result["rows"], columns | {"unit": "unit"})
    )
