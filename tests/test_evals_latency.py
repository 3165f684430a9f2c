"""Time to the first token: all arms on a tiny model, and the report of them."""

from pathlib import Path
from typing import Any

import pytest
from tiny import build, stock

from evals.peers.random_prompts import no_stop_tokens
from evals.peers.transformers_peer import TransformersPeer
from evals.report import draw_latency
from evals.speed.floor import Floor, ModelCost
from evals.speed.latency import ARMS, describe, markdown, measure_size, slopes
from evals.speed.models import Measured

FLOOR = Floor(threads=1, bytes_per_s=1e9, flops=1e9)


@pytest.fixture(scope="module")
def subject() -> tuple[Measured, TransformersPeer, None]:
    model = build()
    model.info = no_stop_tokens(model.info)
    return Measured(model=model, cost=ModelCost.of(stock())), TransformersPeer(stock()), None


def test_every_arm_is_measured_as_often_as_asked(subject: Any, tmp_path: Path) -> None:
    rows = [*measure_size(*subject, 120, FLOOR, 2, decode=True, arms=ARMS)]
    runs = {"full_prefill": 2, "no_reuse": 2, "prefix_cache": 2, "reuse": 6}
    assert {row["arm"]: row["runs"] for row in rows} == runs
    full, *others = rows
    assert full["faster"] == 1
    assert all(row["faster"] == pytest.approx(full["ttft_ms_min"] / row["ttft_ms_min"], rel=0.02) for row in others)
    assert [row["decode_tokens_per_s"] is None for row in rows] == [False, False, True, False]
    promised = {"arm", "threads", "document_tokens", "question_tokens", "ttft_ms_min", "ttft_ms_median"}
    assert {*promised, "decode_tokens_per_s", "model", "times_floor"} <= full.keys()
    found = [row | {"document_tokens": n, "ttft_ms_min": n * row["ttft_ms_min"]} for row in rows for n in (1, 2)]
    result = {"machine": "machine", "dtype": "float32", "llama_cpp": None, "rows": found, "slopes": slopes(found)}
    assert "| llama | 1 | 2 | reuse |" in markdown(result, "warmdesk bench latency")
    assert "reuse" in describe(rows[-1])
    draw_latency(result, file := tmp_path / "latency.svg")
    assert "<!-- full_prefill -->" in file.read_text(encoding="utf-8")


def test_only_the_arms_asked_for_are_measured(subject: Any) -> None:
    (row,) = measure_size(*subject, 100, FLOOR, 1, decode=False, arms=("reuse", "llama.cpp bf16"))
    assert (row["arm"], row["faster"], row["decode_tokens_per_s"]) == ("reuse", None, None)
