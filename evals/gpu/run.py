"""Measure all rows within a fixed time, even if a row hangs, and write the result as a section of docs/gpu.md.

Rows run in a child process, the most important first. Each has a share of the time. If a row takes twice its share, its
process is ended and the next row gets a new process, as after an error that leaves the device unusable. The values that
the row had measured so far stay.

The child is `python -m evals.gpu.run OPTIONS`. OPTIONS is one JSON object: device, size, folder, models. Both
directions use JSON lines. It reads {"row": name, "seconds": share}. It writes {"card": ...} or {"unusable": why} once,
then {"line": row} for each value, and {"done": why it failed, or ""} after each row. It ends when its input ends, and
after a row that left the device unusable, because such errors persist in a process.
"""

import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from app.domain.errors import DeskError
from cache.errors import ModelError
from cache.model.loading import find_device
from evals.gpu.plan import MINUTES, NO_TIME, PLANS, Measure, RowPlan, reason_of
from evals.gpu.session import Session, Share, Size, describe_card, synchronize
from evals.report import table

ROOT = Path(__file__).resolve().parents[2]
ENOUGH = 0.5  # a row starts if this part of its share is left
PATIENCE = 2.0  # a row is ended after this multiple of its share
STARTING_S = 90.0  # seconds that a process may take to start, in a run of ten minutes
WRITING_S = 5.0  # seconds reserved for writing the result
NO_GPU = "measured on a CPU: this is no evidence for a GPU, and no goal is judged"


class RowProcess:
    """The child process that measures rows. command: its program and arguments."""

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
        with suppress(OSError):  # the process ended; its messages tell why
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
        run = Run(command or (sys.executable, "-P", "-m", "evals.gpu.run", options), minutes, report)
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
    """Measures rows one after another, in one process while it works. card: the process's description of the GPU."""

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


class LastError(logging.Handler):
    """Remembers the error of an engine thread, because callers of the engine get a shorter message."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.error = record.exc_info[1]


def main() -> None:
    tell = own_output()
    options = json.loads(sys.argv[1])
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger().addHandler(seen := LastError())
    try:
        device = find_device(options["device"])
    except ModelError as error:
        tell({"unusable": str(error)})
        return
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    session = Session(device, options["size"], Path(options["folder"]), Path(options["models"]))
    tell({"card": describe_card(device)})
    for line in sys.stdin:
        asked = json.loads(line)
        seen.error = None
        session.share = Share(asked["seconds"])
        tell({"done": measure(session, asked["row"], tell, seen)})
        if not works(device):
            sys.exit(f"after the row {asked['row']} the device cannot be used any more")


def own_output() -> Callable[[dict[str, Any]], None]:
    """Return a function that writes a line to the parent. Output of libraries goes to stderr from now on."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(message: dict[str, Any]) -> None:
        stream.write(json.dumps(message) + "\n")
        stream.flush()

    return tell


def measure(session: Session, name: str, tell: Callable[[dict[str, Any]], None], seen: LastError) -> str:
    """Measure a row. Returns the reason for a failure in one line, or ""."""
    plan = next(plan for plan in PLANS if plan.name == name)
    file, function = plan.where.split(".")
    run: Measure = getattr(import_module(f"evals.gpu.{file}"), function)
    try:
        for row in run(session, plan):
            tell({"line": (row if session.is_gpu else replace(row, met=None)).as_json()})
    except Exception as error:
        traceback.print_exc()
        why = reason_of(error)
        cause = "" if seen.error is None else f" ({reason_of(seen.error)})"
    else:
        return ""
    session.close()  # after the except clause, which holds the objects of the failed row
    return why + cause


def works(device: torch.device) -> bool:
    try:
        synchronize(device)
        torch.ones(1, device=device).item()
    except Exception:
        return False
    return True


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
        f"`{command}` on {card}, {result['seconds']:,.0f} s in all.{warning} Medians; weights are random, except the "
        "bundled model's.\n\n" + table(readable(result["rows"]), COLUMNS)
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


if __name__ == "__main__":
    main()
