"""What the API adds to the engine's first token: `python -m evals.api_latency URL KEY [--limit N]`.

Asks a running desk the sample questions, streamed, over one connection: the whole desk, and its language model alone.
KEY has the scopes chat and admin: others see rounded times. What is measured is the time to the first piece of text, as
the client sees it, minus what the engine says it took from submission to its first token. Search and decision are part
of the desk's work and listed apart. Start the desk with WARMDESK_ANSWER_MODE=free: a checked answer shows nothing
before its first sentence is whole.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import httpx

from app.domain.setting_values import SHIPPED_DATA
from evals.machine import describe_machine

WARM_UP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """Milliseconds of one question. seen: to the first piece of text at the client."""

    seen: float
    engine: float
    retrieve: float

    @property
    def added(self) -> float:
        """What is neither the engine's nor the search's."""
        return self.seen - self.engine - self.retrieve


def ask(client: httpx.Client, model: str, question: str) -> FirstToken | None:
    """Ask one question. None if the language model was not asked."""
    started, first = time.perf_counter(), 0.0
    extra: dict[str, Any] = {}
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": question}], "max_tokens": 16}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            first = first or time.perf_counter()
            chunk = json.loads(line.removeprefix("data: "))
            extra = chunk.get("warmdesk", extra)
    timings = extra["timings_ms"]
    if not timings["prefill"]:
        return None
    seen, retrieve = (first - started) * 1e3, timings["retrieve"]
    return FirstToken(seen=seen, engine=timings["ttft"] - retrieve, retrieve=retrieve)


def row(model: str, asked: Sequence[FirstToken]) -> dict[str, Any]:
    """Medians; of what is added also the least, which other programs of the machine disturb least, and the 95th
    percentile.
    """
    figures = {name: round(statistics.median(getattr(one, name) for one in asked), 1) for name in asdict(asked[0])}
    added = sorted(one.added for one in asked)
    return {
        "model": model,
        "n": len(asked),
        **{f"{name}_ms_p50": value for name, value in figures.items()},
        "added_ms_min": round(added[0], 1),
        "added_ms_p50": round(statistics.median(added), 1),
        "added_ms_p95": round(added[min(len(added) - 1, int(0.95 * len(added)))], 1),
    }


def measure(client: httpx.Client, limit: int) -> dict[str, Any]:
    """Both models in turn, the same questions."""
    models = client.get("/v1/models").raise_for_status().json()["data"]
    language = next(model["id"] for model in models if model["kind"] == "language")
    lines = (SHIPPED_DATA / "questions.jsonl").read_text("utf-8").splitlines()
    questions = [json.loads(line)["question"] for line in lines][: limit + WARM_UP]
    rows = []
    for model in ("warmdesk", language):
        asked = [ask(client, model, question) for question in questions][WARM_UP:]
        rows.append(row(model, [one for one in asked if one is not None]))
    return {"machine": describe_machine(), "rows": rows}


def main() -> None:
    """Read the arguments, measure, print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("key")
    parser.add_argument("--limit", type=int, default=40)
    given = parser.parse_args()
    headers = {"authorization": f"Bearer {given.key}"}
    with httpx.Client(base_url=given.url, headers=headers, trust_env=False, timeout=120) as client:
        print(json.dumps(measure(client, given.limit)))


if __name__ == "__main__":
    main()
