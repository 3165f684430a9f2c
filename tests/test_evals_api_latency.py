"""What is taken for the API's share of the time to the first token."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from evals.api_latency import WARM_UP, FirstToken, measure, row


def test_what_is_added_is_neither_the_engines_nor_the_searchs() -> None:
    figures = row("m", [FirstToken(seen=100 + n, engine=60.0, retrieve=30.0) for n in range(1, 22)])
    assert (figures["n"], figures["seen_ms_p50"], figures["engine_ms_p50"]) == (21, 111, 60)
    assert (figures["added_ms_p50"], figures["added_ms_p95"]) == (21, 30)


def test_both_models_are_asked_and_answers_without_the_model_do_not_count() -> None:
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(
                200, json={"data": [{"id": "warmdesk", "kind": "desk"}, {"id": "lm", "kind": "language"}]}
            )
        body: dict[str, Any] = json.loads(request.content)
        asked.append(body["model"])
        prefill = 0.0 if body["model"] == "warmdesk" and len(asked) == WARM_UP + 1 else 5.0
        timings = {"retrieve": 0.0, "prefill": prefill, "ttft": -1e6}
        lines = [{"choices": [{"delta": {"content": "a"}}]}, {"choices": [], "warmdesk": {"timings_ms": timings}}]
        return httpx.Response(200, text="".join(f"data: {json.dumps(line)}\n\n" for line in lines) + "data: [DONE]\n\n")

    client = httpx.Client(base_url="http://desk", transport=httpx.MockTransport(handle))
    rows = measure(client, 4)["rows"]
    assert [(one["model"], one["n"]) for one in rows] == [("warmdesk", 3), ("lm", 4)]
    assert asked == ["warmdesk"] * (4 + WARM_UP) + ["lm"] * (4 + WARM_UP)
    assert rows[0]["added_ms_p50"] == pytest.approx(1e6, rel=0.01)
