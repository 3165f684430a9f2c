"""The quality harness on a tiny model: its two ways of reading agree, and its figures are what they say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from recording import Recorder
from tiny import build, stock

from app.errors import DeskError
from app.settings import Settings
from cache.engine import Engine
from cache.lesson_model import LessonModel
from evals.quality import POLICIES, SLOT, Bench, contains, interval, plan_of, summarise


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [
        {
            "src": "squad",
            "title": "Shop",
            "context": f"Shelf {n} holds {n * n} cups.",
            "qas": [{"question": f"What is on shelf {n}?", "answers": [f"{n * n} cups"] if n % 3 else []}],
        }
        for n in range(6)
    ]
    rows.append({"src": "other", "title": "Shop", "context": "x", "qas": []})
    file = tmp_path / "qa.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    settings = Settings(data_dir=tmp_path, system_text="Answer.", repetition_penalty=1.0)
    engine = Engine(build(), memory=8 << 20).start()
    yield Bench(settings, engine, LessonModel(stock()))
    engine.close()


def test_cases_are_the_same_every_time_and_hold_their_document(bench: Bench, data: Path) -> None:
    cases = bench.cases(data, 3, 8)
    assert cases == bench.cases(data, 3, 8)
    assert all(len(case.modules) == 3 for case in cases)
    assert {bool(case.answers) for case in cases} == {True, False}
    for case in cases:
        for answer in case.answers:
            assert answer in bytes(case.modules[case.right]).decode()
    with pytest.raises(DeskError, match="no title with 9 documents"):
        bench.cases(data, 9, 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_teacher_forcing_and_the_engine_read_the_same(bench: Bench, data: Path, policy: str) -> None:
    """The first token's distribution of the engine is that of the lesson, under every policy."""
    recorder = Recorder(bench.engine.model)  # type: ignore[arg-type]
    for case in bench.cases(data, 3, 3):
        bench.decode(case, policy)
        lesson = bench.log_probabilities(case, policy, (7,))[0]
        assert (recorder.logits[0].log_softmax(-1) - lesson).abs().max() < 1e-4
        recorder.logits.clear()


def test_published_slots_start_at_fixed_distances(bench: Bench, data: Path) -> None:
    case = bench.cases(data, 3, 1)[0]
    _, *modules, question = plan_of(case, "prompt_cache", bench.prefix).spans
    assert [span.start for span in modules] == [len(bench.prefix) + SLOT * n for n in range(3)]
    assert question.start == modules[-1].end
    assert all(span.unit is not None and span.unit.prefix is None for span in modules)


def test_full_attention_has_no_distance_from_itself(bench: Bench, data: Path) -> None:
    cases = bench.cases(data, 3, 4)
    outcomes = [bench.run(case, POLICIES) for case in cases]
    rows = {policy: summarise(policy, cases, outcomes) for policy in POLICIES}
    assert rows["full"].kl == pytest.approx(0, abs=1e-6)
    assert (rows["full"].top1, rows["full"].gold_logp_delta) == (1.0, 0.0)
    assert rows["full"].recomputed_tokens > rows["gold"].recomputed_tokens > rows["fast"].recomputed_tokens == 0
    for policy in ("fast", "prompt_cache", "none", "gold"):
        kl = rows[policy].kl
        assert kl is not None
        assert kl > 1e-4
        low, high = rows[policy].kl_interval or (0, 0)
        assert low <= kl <= high


def test_answers_are_found_as_words() -> None:
    assert contains("It costs EUR 3.90.", ["eur 3 90"])
    assert contains("The Normans, of course", ["normans"])
    assert not contains("Abnormans", ["normans"])
    assert interval([]) is None
    assert interval([2.0, 2.0]) == (2.0, 2.0)
