"""Waiting for the first token while passages are encoded ahead, on a tiny model."""

from __future__ import annotations

import json

import pytest
from tiny import build, stock

from evals import encoding_ahead
from evals.encoding_ahead import measure
from evals.floor import ModelCost
from evals.measured_model import Measured
from evals.random_prompts import no_stop_tokens


def test_an_idle_desk_and_a_busy_one_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MODULE_TOKENS": 20, "WARM": 6, "PASSAGES": 2, "PAUSE_S": 0.0}.items():
        monkeypatch.setattr(encoding_ahead, name, value)
    model = build()
    model.info = no_stop_tokens(model.info)
    result = measure(Measured(model=model, cost=ModelCost.of(stock())), documents=2_000, questions=2)
    assert set(result) == {
        *("machine", "model", "questions", "idle_ms", "encoding_ms", "ratio", "evicted_meanwhile", "still_encoding")
    }
    assert result["still_encoding"], "there was enough to encode"
    json.dumps(result)
