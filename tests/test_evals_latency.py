"""Time to the first token: all arms on a tiny model, and what its report computes from them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tiny import build, stock

from evals import report
from evals.peers.random_prompts import no_stop_tokens
from evals.peers.transformers_peer import TransformersPeer
from evals.speed import latency
from evals.speed.floor import Floor, ModelCost
from evals.speed.latency import ARMS, LatencyRow, Subject, describe, markdown, measure_size, slopes
from evals.speed.models import Measured

FLOOR = Floor(threads=1, bytes_per_s=1e9, flops=1e9)


@pytest.fixture(scope="module")
def subject() -> Subject:
    model = build()
    model.info = no_stop_tokens(model.info)
    measured = Measured(model=model, cost=ModelCost.of(stock()))
    return Subject(measured=measured, baseline=TransformersPeer(stock()))


def test_every_arm_is_measured_as_often_as_asked(subject: Subject) -> None:
    rows = [*measure_size(subject, 300, FLOOR, 5, 2, decode=True, arms=ARMS)]
    assert {row.arm: row.runs for row in rows} == {"full_prefill": 2, "no_reuse": 2, "prefix_cache": 2, "reuse": 6}
    full, *others = rows
    assert full.faster == 1
    assert all(row.faster == pytest.approx(full.ttft_ms_min / row.ttft_ms_min, rel=0.02) for row in others)
    assert [row.decode_tokens_per_s is None for row in rows] == [False, False, True, False]
    promised = {"arm", "threads", "document_tokens", "question_tokens", "ttft_ms_min", "ttft_ms_median"}
    assert {*promised, "decode_tokens_per_s", "model", "times_floor"} <= asdict(full).keys()


def test_only_the_arms_asked_for_are_measured(subject: Subject) -> None:
    (row,) = measure_size(subject, 100, FLOOR, 5, 1, decode=False, arms=("reuse", "llama.cpp bf16"))
    assert (row.arm, row.faster, row.decode_tokens_per_s) == ("reuse", None, None)


def test_llama_cpp_gets_the_same_documents_at_every_size(subject: Subject) -> None:
    lengths: list[int] = []

    class Server:
        def __enter__(self) -> Server:
            return self

        def __exit__(self, *_: object) -> None: ...

        def answer(self, prompt: list[int], count: int) -> Any:
            lengths.append(len(prompt))
            return type("Answer", (), {"ttft_s": 0.5})

    class Peer:
        def serve(self, *_: object, context: int, **__: object) -> Server:
            assert context > 40 + 100 + 5
            return Server()

    peers = Subject(measured=subject.measured, baseline=subject.baseline, llama_cpp=Peer())  # type: ignore[arg-type]
    (row,) = measure_size(peers, 100, FLOOR, 5, 2, decode=False, arms=("llama.cpp bf16",))
    assert lengths == [latency.SYSTEM_TOKENS + 100 + 5] * 3, "a first one is not counted"
    assert (row.ttft_ms_min, row.runs) == (500.0, 2)


def row_of(arm: str, size: int, ms: float, model: str = "m") -> LatencyRow:
    return LatencyRow(
        model=model,
        arm=arm,
        threads=1,
        document_tokens=size,
        question_tokens=24,
        ttft_ms_min=ms,
        ttft_ms_median=ms,
        runs=1,
        times_floor=2.0,
        faster=1.0 if arm == "full_prefill" else None,
    )


ROWS = [
    asdict(row_of(arm, size, ms + per_token * size))
    for arm, ms, per_token in (("full_prefill", 10, 2.0), ("reuse", 50, 0.05))
    for size in (512, 1024, 4096)
]


def test_what_each_document_token_costs_is_a_slope() -> None:
    full, reuse = slopes(ROWS)
    assert (full["ms_per_token"], reuse["ms_per_token"]) == (2.0, 0.05)
    assert (full["of_full_prefill"], reuse["of_full_prefill"]) == (1.0, pytest.approx(1 / 40))
    alone = asdict(row_of("reuse", 512, 7.0, model="measured at one length"))
    assert slopes([*ROWS, alone]) == slopes(ROWS)
    assert [one["of_full_prefill"] for one in slopes(ROWS[3:])] == [None]


def test_the_report_names_ratios_and_slopes(tmp_path: Path) -> None:
    result = {"machine": "machine", "dtype": "float32", "llama_cpp": None, "rows": ROWS, "slopes": slopes(ROWS)}
    json.dumps(result)
    page = markdown(result, "warmdesk bench latency")
    assert "| m | 1 | reuse | 50.0 | 2.50% |" in page
    assert "| m | 1 | 4,096 | reuse | 254.8 | 254.8 |  | 2.0 |" in page
    assert "then, tokens/s" not in page
    assert all(row["arm"] in describe(row) for row in ROWS)
    report.draw_latency(result, file := tmp_path / "latency.svg")
    wanted = ("reuse", "full_prefill", "document tokens", "first token, ms", "4,096")
    assert all(f"<!-- {text} -->" in file.read_text() for text in wanted)
