"""What is counted, under which names, and that the dashboard in docs names nothing else."""

import json
import re
import threading
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from desks import finish, small_desk, write_pages
from prometheus_client.parser import text_string_to_metric_families

from app.api.metrics import Meter
from app.domain.answers import PlainOptions, Said
from app.domain.errors import DeskError
from cache.engine.engine_core import EngineCore
from cache.serving.local_engine import LocalEngine

DASHBOARD = Path(__file__).parent.parent / "docs" / "grafana.json"
Samples = dict[str, dict[tuple[str, ...], float]]


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    with small_desk(folder / "desk", pages=write_pages(folder / "pages")) as opened:
        opened.prepare()
        yield opened


def samples(meter: Meter) -> Samples:
    """Values by name and labels (without the model's name)."""
    found: Samples = {}
    for family in text_string_to_metric_families(meter.text().decode()):
        for sample in family.samples:
            labels = tuple(value for name, value in sample.labels.items() if name != "model_name")
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_answers_are_counted_by_outcome_and_tokens_by_source(desk):
    meter = Meter(desk)
    answers = [finish(desk, "How long do returns take?"), finish(desk, "hello")]
    stream = desk.complete([Said("user", "abc")], PlainOptions(max_tokens=2), owner="k-1")
    list(stream)
    counted = samples(meter)
    assert counted["warmdesk_answers_total"] == {("answered",): 1, ("smalltalk",): 1, ("plain",): 1}
    prompt = sum(one.usage.prompt_tokens for one in (*answers, stream.answer))
    reused = sum(one.usage.cached_tokens for one in (*answers, stream.answer))
    assert counted["vllm:prompt_tokens_total"] == {(): prompt}
    assert sum(counted["warmdesk_prompt_tokens_total"].values()) == prompt
    assert counted["vllm:prefix_cache_queries_total"] == {(): prompt}
    assert counted["vllm:prefix_cache_hits_total"] == {(): reused}
    written = sum(one.usage.completion_tokens for one in (*answers, stream.answer))
    assert counted["vllm:generation_tokens_total"] == {(): written}
    assert counted["vllm:time_to_first_token_seconds_count"] == {(): 2}  # small talk asks no model
    assert counted["vllm:e2e_request_latency_seconds_count"] == {(): 3}
    assert counted["warmdesk_retrieve_seconds_count"] == {(): 2}
    seconds = (answers[0].timings.ttft + stream.answer.timings.ttft) / 1e3
    assert counted["vllm:time_to_first_token_seconds_sum"][()] == pytest.approx(seconds)


def test_gauges_are_read_at_each_scrape(desk, tmp_path):
    counted = samples(Meter(desk))
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "warmdesk_documents")
    assert [counted[name][()] for name in names] == [0, 0, 4]
    load = desk.load()
    share = load.num_bytes["device"] / load.capacity["device"]
    assert counted["vllm:kv_cache_usage_perc"][()] == pytest.approx(share)
    assert set(counted["warmdesk_tier_bytes"]) == {("device",), ("disk",)}
    with small_desk(tmp_path / "idle") as idle:
        assert samples(Meter(idle))["vllm:kv_cache_usage_perc"] == {(): 0}, "it has not started"


def test_the_dashboard_names_only_what_there_is(desk):
    meter = Meter(desk)
    finish(desk, "How long do returns take?")
    there = set(samples(meter))
    board = json.loads(DASHBOARD.read_text())
    named = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"(?:vllm:|warmdesk_|process_)\w+", target["expr"])
    }
    assert named <= there
    assert len(named) > 15
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_device_memory_that_ran_out_is_counted(tmp_path, monkeypatch):
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages")) as desk:
        meter = Meter(desk)
        desk.prepare()
        assert samples(meter)["warmdesk_memory_shortages_total"] == {(): 0}
        forward, failures = EngineCore._forward, iter([True])

        def short_once(core: EngineCore, *given: Any) -> Any:
            if next(failures, False):
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return forward(core, *given)

        monkeypatch.setattr(EngineCore, "_forward", short_once)
        finish(desk, "How long do returns take?")
        assert samples(meter)["warmdesk_memory_shortages_total"] == {(): 1}


def test_an_engine_that_failed_is_counted_and_metrics_outlive_it(tmp_path, monkeypatch):
    """Was wrong once: /metrics failed with the engine, when it is needed most."""
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages")) as desk:
        desk.prepare()
        meter = Meter(desk)
        assert samples(meter)["warmdesk_engine_restarts_total"] == {(): 0}
        with monkeypatch.context() as broken:
            broken.setattr(EngineCore, "step", lambda core: 1 // 0)
            with pytest.raises(DeskError, match="the engine failed and is restarting"):
                finish(desk, "How long do returns take?")
        finish(desk, "How long do returns take?")
        assert samples(meter)["warmdesk_engine_restarts_total"] == {(): 1}
        assert desk.missing() == ()
        desk.engine.close()
        assert desk.missing() == ("engine",)
        assert samples(meter)["warmdesk_engine_restarts_total"] == {(): 1}
        assert desk.overview().modules


def test_an_engine_that_is_too_busy_to_say_what_it_holds_keeps_no_scrape(desk, monkeypatch):
    """Was wrong once: each scrape waited for it, until no thread was left for anything else."""
    began, goes_on = threading.Event(), threading.Event()
    monkeypatch.setattr("cache.serving.local_engine.CONTENTS_S", 0.1)
    engine = cast("LocalEngine", desk.engine)
    busy = threading.Thread(target=lambda: engine.call(lambda store: (began.set(), goes_on.wait(60))))
    busy.start()
    assert began.wait(20)
    seen = samples(Meter(desk))
    assert seen["warmdesk_passages"][()] > 0
    assert "warmdesk_tier_bytes" not in seen
    assert desk.overview().passages > 0
    goes_on.set()
    busy.join()
    assert samples(Meter(desk))["warmdesk_tier_bytes"]
