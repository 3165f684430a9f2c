"""Measure all rows within a fixed time, even if a row hangs, and write the result as a section of docs/gpu.md.

Rows run in a child process, the most important first. Each has a share of the time. If a row takes twice its share, its
process is ended and the next row gets a new process, as after an error that leaves the device unusable. The values that
the row had measured so far stay.
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
from evals.gpu.session import Size
from evals.report import table

ROOT = Path(__file__).resolve().parents[2]
ENOUGH = 0.5  # a row starts if this part of its share is left
PATIENCE = 2.0  # a row is ended after this multiple of its share
STARTING_S = 90.0  # seconds that a process may take to start, in a run of ten minutes
WRITING_S = 5.0  # seconds kept for the result
NO_GPU = "measured on a CPU: this is no evidence for a GPU, and no goal is judged"


class RowProcess:
    """The child process. command: its program and arguments."""

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
        assert self._process.stdin is not None
        with suppress(OSError):  # it ended, and its messages will tell
            self._process.stdin.write(json.dumps({"row": row, "seconds": seconds}) + "\n")
            self._process.stdin.flush()

    def message(self, until: float) -> dict[str, Any] | None:
        """Return the next message, None if the process ended. Raises queue.Empty if none arrives before a time of the
        monotonic clock.
        """
        line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
        if line is None:
            return None
        message: dict[str, Any] = json.loads(line)
        return message

    def end(self) -> str:
        self._process.kill()
        status = self._process.wait()
        return f"exit status {status}" if status >= 0 else f"signal {-status}"

    def wait(self) -> str:
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
    """Measure rows; the result is ready for JSON. models: folder for the converted bundled model. names: rows to
    measure. command: replaces the child's command. Raises DeskError if the device cannot be used.
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
    """Runs rows in turn, in the current process or in a new one. card: the GPU as the process describes it."""

    def __init__(self, command: Sequence[str], minutes: float, report: Callable[[str], None]) -> None:
        self.started = time.monotonic()
        self.card: dict[str, Any] | None = None
        self._end = self.started + 60 * minutes - WRITING_S
        self._scale = minutes / MINUTES
        self._command, self._report = command, report
        self._child: RowProcess | None = None

    def measure(self, plan: RowPlan) -> list[dict[str, Any]]:
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
        if self._child is not None:
            self._child.end()
            self._child = None

    def _without_value(self, plan: RowPlan, note: str) -> list[dict[str, Any]]:
        self._report(f"{plan.name}: {note}")
        return [plan.empty(note).as_json()]

    def _ask(self, plan: RowPlan, share: float, lines: dict[str, dict[str, Any]]) -> str:
        try:
            child = self._ready()
            if child is None:
                return "its process could not start: see its stderr"
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
            return f"its process ended ({how}): see its stderr"
        except queue.Empty:
            self.close()
            return f"it took more than {PATIENCE:g} times its share of {share:.0f} s, or there is no time left"

    def _ready(self) -> RowProcess | None:
        """Return the process, started if needed, or None if it could not start. Raises DeskError, queue.Empty."""
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
    numbers = [f"{row['value']:,.4g} {row['unit']}"] if row["value"] is not None else []
    numbers += [f"{row['ratio']:.3g}x the baseline"] if row["ratio"] else []
    numbers += [f"{row['of_floor']:.3g}x the floor"] if row["of_floor"] else []
    numbers += [{True: "goal met", False: "goal missed"}[row["met"]]] if row["met"] is not None else []
    return f"{row['row']:14s} {row['what']}: {', '.join(numbers) or row['note']}"


COLUMNS = {
    "row": "row",
    "what": "what",
    "shape": "model",
    "value": "measured",
    "baseline": "baseline, times as good as it",
    "floor": "floor, times the floor",
    "goal": "goal",
    "met": "met",
    "note": "",
}
MET = {True: "yes", False: "**no**", None: ""}
MEASURE = "*not measured*: `warmdesk bench gpu --rows {}`"


def markdown(result: dict[str, Any], command: str) -> str:
    versions = ", ".join(f"{name} {result[name]}" for name in ("torch", "transformers", "triton") if result.get(name))
    card = f"{result.get('card', result['device'])}, {versions}" if versions else str(result["device"])
    warning = f" **{result['note'][0].upper()}{result['note'][1:]}.**" if result["note"] else ""
    return (
        f"`{command}` on {card}, {result['seconds']:,.0f} s in all.{warning} Medians; weights are random but for the "
        "bundled model.\n\n" + table(readable(result["rows"]), COLUMNS)
    )


def readable(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            **row,
            "row": f"`{row['row']}`",
            "value": measured(row),
            "baseline": f"{beside(row['baseline'], row['ratio'])} ({row['baseline_name']})" if row["baseline"] else "",
            "floor": beside(row["floor"], row["of_floor"]),
            "met": MET[row["met"]],
        }
        for row in rows
    ]


def measured(row: dict[str, Any]) -> str:
    if row["value"] is None:
        return MEASURE.format(row["row"])
    behind = f", 95 % within {number(row['p95'])}" if row["p95"] is not None else ""
    return f"{number(row['value'])} {row['unit']}".strip() + behind


def beside(other: float | None, times: float | None) -> str:
    return "" if other is None or times is None else f"{number(other)}, {number(times)}x"


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def drawing_of(plot: Path, page: Path | None) -> str:
    if page is None or page.absolute().parent != plot.absolute().parent:
        return ""
    return f"\n\n![Distance of the rows from the lower bound of the GPU]({plot.name})"
