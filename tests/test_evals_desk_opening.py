"""Opening a large desk: it is made as an ingestion makes one, opens without reading anything again, and is timed."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from tiny import build

from cache.memory.disk import DiskTier
from evals import desk_opening
from evals.desk_opening import Stopwatch, make_desk, measure_opening
from evals.tiny_desk import small_settings

PASSAGES = 25


def test_a_desk_is_made_and_its_opening_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(desk_opening, "AT_ONCE", 20)
    settings = small_settings(tmp_path)
    make_desk(settings, PASSAGES)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        result = measure_opening(settings, lambda _: build())
    assert (result["documents"], result["passages"], result["modules"]) == (3, PASSAGES, PASSAGES)
    assert not [record for record in caplog.records if "is updated from the database" in record.message]
    assert set(result["parts"]) == {"database", "search", "statements", "engine", "finder", "rehearsal"}
    assert set(result["of_these"]) == {"vectors", "keywords", "module_headers"}
    assert result["seconds"] == pytest.approx(sum(result["parts"].values()), abs=0.01)
    json.dumps(result)
    headers = DiskTier(settings.modules_folder, settings.disk).headers()
    assert {header.name for header in headers} == {f"passage-{number + 1}" for number in range(PASSAGES)}


def test_what_is_loaded_counts_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 4.0, 5.0])  # a part begins, loading begins, loading ends, the part ends
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    watch = Stopwatch()
    with watch.part("engine"), watch.load():
        pass
    assert (watch.parts, watch.loading) == ({"engine": 2.0}, 3.0)
