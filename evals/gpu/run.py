"""Measures all rows within a time that is kept, whatever a row does.

Rows run in a process of their own, the most important first. Each has a share of the time. One that takes twice its
share is ended with that process, and the next one gets another process, as after an error that leaves the device
unusable. What a row had measured by then stays.
"""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app.domain.errors import DeskError
from evals.gpu.plan import MINUTES, NO_TIME, PLANS, RowPlan
from evals.gpu.sizes import Size

ROOT = Path(__file__).resolve().parents[2]
ENOUGH = 0.5
"""A row is begun if so much of its share is left."""
PATIENCE = 2.0
"""Times its share after which a row is ended."""
STARTING_S = 90.0
"""A process may take so long to begin, in ten minutes."""
WRITING_S = 5.0
"""Kept for the result."""
NO_GPU = "measured on a processor: this says nothing of a GPU, and no goal is judged"


class RowProcess:
    """The process that measures. command: its own, with arguments."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, row: str, seconds: float) -> None:
        """Have a row measured."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, as its messages will say
            self._process.stdin.write(json.dumps({"row": row, "seconds": seconds}) + "\n")
            self._process.stdin.flush()

    def message(self, until: float) -> dict[str, Any] | None:
        """The next one; None if it ended. Raises queue.Empty if there is none at that time of the monotonic clock."""
        line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
        if line is None:
            return None
        message: dict[str, Any] = json.loads(line)
        return message

    def end(self) -> str:
        """End it by force; gives how it ended."""
        self._process.kill()
        status = self._process.wait()
        return f"exit status {status}" if status >= 0 else f"signal {-status}"

    def wait(self) -> str:
        """How it ended by itself."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        return self.end()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)


def measure_gpu(
    *,
    device: str,
    size: Size,
    models: Path,
    names: Sequence[str],
    minutes: float,
    report: Callable[[str], None],
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Measure rows; the result is ready for JSON. models: folder for the converted bundled model. names: of rows.
    command: of the process instead of the real one. Raises DeskError if the device cannot be used.
    """
    with TemporaryDirectory(prefix="warmdesk-gpu-") as folder:
        options = json.dumps({"device": device, "size": size, "folder": folder, "models": str(models)})
        run = Run(command or (sys.executable, "-P", "-m", "evals.gpu.child", options), minutes, report)
        try:
            rows = [row for plan in PLANS if plan.name in names for row in run.measure(plan)]
        finally:
            run.close()
    is_gpu = device.startswith("cuda")
    return {
        **(run.card or {"device": device}),
        "is_gpu": is_gpu,
        "note": "" if is_gpu else NO_GPU,
        "size": size,
        "seconds": round(time.monotonic() - run.started, 1),
        "rows": rows,
    }


class Run:
    """Rows in turn, each in the process that is there, or in a new one. card: what the process says of it."""

    def __init__(self, command: Sequence[str], minutes: float, report: Callable[[str], None]) -> None:
        self.started = time.monotonic()
        self.card: dict[str, Any] | None = None
        self._end = self.started + 60 * minutes - WRITING_S
        self._scale = minutes / MINUTES
        self._command, self._report = command, report
        self._child: RowProcess | None = None

    def measure(self, plan: RowPlan) -> list[dict[str, Any]]:
        """The lines of a row: at least one, which says why if there is no value."""
        share = plan.seconds * self._scale
        if self._end - time.monotonic() < ENOUGH * share:
            return self._without_value(plan, NO_TIME)
        lines: dict[str, dict[str, Any]] = {}
        why = self._ask(plan, share, lines)
        if why:
            lines[""] = plan.empty(f"not measured further: {why}" if lines else f"not measured: {why}").as_json()
            self._report(f"{plan.name}: {why}")
        return [*lines.values()] or self._without_value(plan, "not measured: there is nothing to measure")

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _without_value(self, plan: RowPlan, note: str) -> list[dict[str, Any]]:
        self._report(f"{plan.name}: {note}")
        return [plan.empty(note).as_json()]

    def _ask(self, plan: RowPlan, share: float, lines: dict[str, dict[str, Any]]) -> str:
        """Collect the lines of a row, by what they are about; gives why it failed, or nothing."""
        try:
            child = self._ready()
            if child is None:
                return "its process could not begin: see what it wrote to stderr"
            until = min(self._end, time.monotonic() + PATIENCE * share)
            child.ask(plan.name, min(share, self._end - time.monotonic()))
            while (message := child.message(until)) is not None:
                if "done" in message:
                    return str(message["done"])
                row = message["line"]
                lines[row["what"]] = row
                self._report(describe(row))
            how = child.wait()
            self._child = None
            return f"its process ended ({how}): see what it wrote to stderr"
        except queue.Empty:
            self.close()
            return f"it took more than {PATIENCE:g} times its share of {share:.0f} s, or there is no time left"

    def _ready(self) -> RowProcess | None:
        """The process, begun if there is none; None if it could not begin. Raises DeskError, queue.Empty."""
        if self._child is not None:
            return self._child
        child = self._child = RowProcess(self._command)
        first = child.message(min(self._end, time.monotonic() + STARTING_S * max(1.0, self._scale)))
        if first is None:
            child.wait()
            self._child = None
            return None
        if "unusable" in first:
            self.close()
            raise DeskError(first["unusable"], code="no-device")
        self.card = first["card"]
        return child


def describe(row: dict[str, Any]) -> str:
    """A row for people."""
    numbers = [f"{row['value']:,.4g} {row['unit']}"] if row["value"] is not None else []
    numbers += [f"{row['ratio']:.3g}x the baseline"] if row["ratio"] else []
    numbers += [f"{row['of_floor']:.3g}x the floor"] if row["of_floor"] else []
    numbers += [{True: "goal met", False: "goal missed"}[row["met"]]] if row["met"] is not None else []
    return f"{row['row']:14s} {row['what']}: {', '.join(numbers) or row['note']}"


def row_names(text: str | None) -> list[str]:
    """What --rows says: all if None. Raises DeskError."""
    known = [plan.name for plan in PLANS]
    names = known if text is None else [name.strip() for name in text.split(",")]
    if strange := [name for name in names if name not in known]:
        raise DeskError(f"--rows has {strange[0]!r}: choose from {', '.join(known)}", code="usage")
    return names
