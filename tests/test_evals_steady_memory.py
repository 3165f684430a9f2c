"""Memory while modules come and go, on a tiny model."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from recording import answer, running
from test_cache_engine import SYSTEM, A, plan_of
from tiny import build, stock

from evals.floor import ModelCost
from evals.measured_model import Measured
from evals.random_prompts import no_stop_tokens
from evals.steady_memory import check_accounting, measure


def test_modules_come_and_go_within_their_room() -> None:
    model = build()
    model.info = no_stop_tokens(model.info)
    result = measure(Measured(model=model, cost=ModelCost.of(stock())), modules=24, room=6, requests=16)
    assert len(result["resident_mib"]) == 8
    assert 0 < result["hit_rate"] < 1
    assert result["evictions"] > 0
    json.dumps(result)


def test_a_token_without_a_source_is_found() -> None:
    plan = plan_of(SYSTEM, A, "What now?")
    with running(build()) as engine:
        completion = answer(engine, plan)
    check_accounting(plan, completion)
    usage = replace(completion.usage, computed=completion.usage.computed - 1)
    with pytest.raises(AssertionError):
        check_accounting(plan, replace(completion, usage=usage))
