"""Progress on stderr: a bar per stage of ingestion, and one for training."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from app.domain.progress import STAGES
from app.domain.progress import Progress as Report

if TYPE_CHECKING:  # training needs libraries that answering does not
    from cache.training.trainer import TrainingProgress


@contextmanager
def progress_bar() -> Iterator[Report]:
    """A bar per stage on stderr; nothing if stderr is not a terminal."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description:18}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(STAGES.get(stage, stage), total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield report


@contextmanager
def training_bar() -> "Iterator[Callable[[TrainingProgress], None]]":
    """A bar on stderr; occasional lines if stderr is not a terminal."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description:54}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task("Training", total=1.0)

        def report(training: "TrainingProgress") -> None:
            loss = f"loss {training.loss:.3f}, held out {training.held_out:.3f}"
            shown = f"step {training.step}, {loss}, {training.tokens_per_s:.0f} tokens/s"
            bars.update(task, completed=training.done, description=shown)
            if not console.is_terminal and training.step % 10 == 0:
                print(f"{training.done:.0%} {shown}", file=sys.stderr, flush=True)

        yield report
