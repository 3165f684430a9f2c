"""What is taken for the page's share of the time to the first words."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("selenium")

from app.storage.database import open_database
from app.storage.history import History
from evals.page_latency import SlowStream, fill, row


def test_the_least_the_median_and_the_95th_percentile() -> None:
    figures = row(200, [float(n) for n in range(21, 0, -1)])
    assert figures == {"messages": 200, "n": 21, "added_ms_min": 1.0, "added_ms_p50": 11.0, "added_ms_p95": 20.0}


def test_the_conversation_is_as_long_as_wanted_and_stays_so(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'desk.sqlite3'}")
    history = History(database)
    conversation = fill(history, 6)
    stream = SlowStream(conversation)
    assert "".join(stream) == stream.answer.answer
    assert stream.took_ms > 0
    assert len(history.turns(conversation)) == 6
    database.close()
