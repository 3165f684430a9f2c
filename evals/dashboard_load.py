"""How long the dashboard's queries take on a desk that has answered for months: `python -m evals.dashboard_load`.

It writes a database of made-up answers, and then asks for every number that the dashboard shows, each several times.
Nothing of it comes from a model; the texts are as long as real ones, because SQLite reads past them.

Not covered: the engine's own numbers, and drawing the page.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from app.desk.overview import summarise_savings
from app.domain.quality import WEAK
from app.storage.database import Database, open_database
from app.storage.first_tallies import count_recorded
from app.storage.statistics import SavingsSamples, Statistics
from app.storage.tables import Base, ConversationRow, MessageRow, ModuleUseRow, SavingsRow, TimingsRow, UsageRow
from evals.machine import describe_machine

MESSAGES, MODULE_USES = 100_000, 1_000_000
DAYS, PASSAGES = 90, 5_000
AT_ONCE = 1_000
"""Answers that are written together."""
TURNS = 3
"""Questions of a conversation."""
NOW = datetime(2026, 1, 1, tzinfo=UTC)
REASONS = ("never built", "evicted", "document changed", "load failed")

KEYS = [f"b2:{passage:060}" for passage in range(PASSAGES)]

TABLES = (ConversationRow, MessageRow, UsageRow, TimingsRow, ModuleUseRow, SavingsRow)
SAVINGS_EVERY = 20
"""One answer of so many was computed a second time."""

Rows = dict[type[Base], list[dict[str, Any]]]


def fill(database: Database, messages: int = MESSAGES, uses: int = MODULE_USES, *, seed: int = 0) -> None:
    """Write answers of the last months, a question before each, with their numbers and module uses."""
    answers = messages // 2
    chance = random.Random(seed)
    for first in range(0, answers, AT_ONCE):
        rows: Rows = {table: [] for table in TABLES}
        for number in range(first, min(first + AT_ONCE, answers)):
            add_answer(rows, number, NOW - timedelta(days=DAYS) * (1 - number / answers), uses // answers, chance)
        with database.write() as session:
            for table, some in rows.items():
                if some:
                    session.execute(table.__table__.insert(), some)  # type: ignore[attr-defined]
    with database.write() as session:
        count_recorded(session.connection())


def add_answer(rows: Rows, number: int, created: datetime, uses: int, chance: random.Random) -> None:
    """The rows of one question and its answer."""
    conversation, turn = f"c{number // TURNS}", number % TURNS
    if turn == 0:
        rows[ConversationRow].append(
            {"id": conversation, "owner": "operator", "title": "x" * 40, "created": created, "updated": created}
        )
    position, outcome = 2 * turn, chance.choices(("answered", "unsure", "nothing", "smalltalk"), (80, 9, 8, 3))[0]
    common = {"conversation_id": conversation, "created": created, "tokens": None, "grounding": None, "quoted": None}
    common |= {"question_id": None, "finish_reason": None, "policy": None, "exact": None, "notice": None}
    asked = {**common, "id": f"q{number}", "role": "user", "position": position, "text": "x" * 60, "outcome": None}
    said = {**common, "id": f"a{number}", "role": "assistant", "position": position + 1, "text": "x" * 500}
    said |= {"question_id": f"q{number}", "finish_reason": "stop", "outcome": outcome, "policy": "fast", "exact": False}
    said |= {"grounding": 0.4 if chance.random() < 0.01 else 1.0, "quoted": chance.random() < 0.1}
    rows[MessageRow] += [asked, said]
    cold, message = chance.random() < 0.1, {"message_id": f"a{number}"}
    ttft = chance.lognormvariate(6.5 if cold else 4.5, 0.4)
    times = {"queue": 0.1, "retrieve": 20.0, "load": 1.0, "prefill": ttft, "ttft": ttft, "total": ttft + 500}
    rows[TimingsRow].append({**message, **times})
    tokens = {"prompt_tokens": 200 * uses, "computed": 60, "session": 0, "prefix": 140, "module": 200 * uses - 200}
    rows[UsageRow].append({**message, **tokens, "completion_tokens": 80})
    if number % SAVINGS_EVERY == 0:
        sample = {"created": created, "question_id": f"q{number}", "policy": "fast", "prompt_tokens": 200 * uses}
        sample |= {"computed_tokens": 60, "first_token_ms": ttft, "without_reuse_ms": 9 * ttft, "likeness": 1.0}
        rows[SavingsRow].append(sample)
    for rank in range(uses):
        missed, passage = cold and rank == 1, int(PASSAGES * chance.random() ** 2)
        use = {"rank": rank, "id": KEYS[passage], "name": f"page#{passage}", "document": f"/kb/{passage}.md"}
        use |= {"passage": "Page > Section (1)", "passage_id": passage, "tokens": 200, "position": 200 * rank}
        use |= {"source": "computed" if missed else "device", "created": created}
        use |= {"miss_reason": chance.choice(REASONS) if missed else None}
        rows[ModuleUseRow].append(message | {"key" if name == "id" else name: value for name, value in use.items()})


def queries(database: Database) -> dict[str, Callable[[], object]]:
    """Every query of the dashboard, by name."""
    numbers, savings = Statistics(database), SavingsSamples(database)
    return {
        "totals": numbers.totals,
        "points": numbers.points,
        "misses": numbers.misses,
        "weakly supported": lambda: numbers.weakly_supported(WEAK),
        "miss reasons": numbers.miss_reasons,
        "module hits": numbers.module_hits,
        "savings": lambda: summarise_savings(savings.between(NOW - timedelta(days=30), NOW)),
        "a month": lambda: numbers.over_time(NOW - timedelta(days=30), NOW, timedelta(hours=6)),
    }


def measure(database: Database, times: int) -> Iterator[tuple[str, float]]:
    """Median milliseconds of each query."""
    for name, query in queries(database).items():
        taken = []
        for _ in range(times):
            started = time.perf_counter()
            query()
            taken.append((time.perf_counter() - started) * 1e3)
        yield name, statistics.median(taken)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="How long the dashboard's queries take")
    parser.add_argument("--file", type=Path, help="database to use, made if it is not there; default: a temporary one")
    parser.add_argument("--times", type=int, default=5, help="how often each query is asked")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = options.file or Path(folder) / "dashboard.sqlite3"
        is_there = file.exists()
        with closing(open_database(f"sqlite:///{file.absolute()}")) as database:
            if not is_there:
                fill(database)
            print(describe_machine())
            taken = dict(measure(database, options.times))
    for name, ms in taken.items():
        print(f"{name:20} {ms:9.1f} ms")
    print(f"{'together':20} {sum(taken.values()):9.1f} ms")


if __name__ == "__main__":
    main()
