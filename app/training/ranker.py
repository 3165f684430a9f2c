"""`warmdesk train-ranker`: train the ranker on questions with literal answers."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.desk.calibration import find_ranker
from app.domain.errors import DeskError
from app.domain.settings import Settings
from retrieval.ranking.training import RankerCard, read_examples, train_ranker

REPORTED = 20
"""Steps between two lines of progress."""


def train(
    settings: Settings,
    data: Sequence[Path],
    folder: Path,
    *,
    minutes: float,
    go_on: bool,
    left_out: frozenset[str],
    local: frozenset[str],
    seed: int,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Train and write a ranker; return its card. go_on: start from the ranker in use. Raises DeskError for files that
    cannot be read, or without an answered question.
    """
    try:
        documents = read_examples(data, left_out, local, seed)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeskError(f"the questions cannot be read: {error}", code="bad-questions") from error
    questions = sum(len(passage.questions) for passages in documents for passage in passages)
    if not any(one.right for passages in documents for passage in passages for one in passage.questions):
        raise DeskError("no question has an answer that its context contains", code="too-few-questions")
    report(f"{len(documents):,} documents, {questions:,} questions")
    card = RankerCard(
        data=tuple(sorted(file.name for file in data)),
        left_out=tuple(sorted(left_out)),
        questions=questions,
        steps=0,
        minutes=0.0,
        seed=seed,
        loss=0.0,
    )

    def progress(step: int, done: float, loss: float) -> None:
        if step % REPORTED == 0:
            report(f"step {step}, {done:.0%} of the time, loss {loss:.3f}")

    start = find_ranker(settings) if go_on else None
    return asdict(train_ranker(documents, folder, card, minutes=minutes, start=start, report=progress))
