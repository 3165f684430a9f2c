"""The child process, which measures the rows that its parent asks for: `python -m evals.gpu.child OPTIONS`.

OPTIONS is one JSON object: device, size, folder, models. Both directions use JSON lines. It reads {"row": name,
"seconds": share}. It writes {"card": ...} or {"unusable": why} once, then {"line": row} for each value, and {"done":
why it failed, or ""} after each row. It ends when its input ends, and after a row that left the device unusable,
because such errors persist in a process.
"""

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from cache.errors import ModelError
from cache.model.loading import find_device
from evals.gpu.plan import PLANS, Measure, reason_of
from evals.gpu.session import Session, Share, describe_card, synchronize


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


if __name__ == "__main__":
    main()
