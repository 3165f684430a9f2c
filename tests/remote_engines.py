"""Engines whose model runs elsewhere, for tests: a server that answers as the test says, and questions for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fake_server import FakeServer, stream, whole
from stored_answers import a_passage

from app.knowledge.prompts import PromptBuilder, PromptTurn
from cache.decoding.sampling import Sampling
from cache.engine.request import Limits, Request
from cache.remote.remote_engine import RemoteEngine
from cache.remote.reply import ServerSpec

SPEC = ServerSpec(url="http://model.test/v1", name="m", key="sk-secret", session_headers=("x-session-id",))
OK = stream(whole("Thirty days.", prompt_tokens=50, completion_tokens=3))
PAGES = [
    replace(a_passage(number, f"Text of page {number}.", f"page{number}.md"), title=f"Page {number}")
    for number in range(6)
]


@contextmanager
def engine_for(server: FakeServer, spec: ServerSpec = SPEC, limits: Limits | None = None) -> Iterator[RemoteEngine]:
    engine = RemoteEngine(spec, limits or Limits(), transport=server)
    try:
        yield engine
    finally:
        engine.close()


def request(engine: RemoteEngine, *questions: str, pages: int = 3, **fields: Any) -> Request:
    prompts = PromptBuilder(engine.tokenizer.template, "Answer from the pages.")
    turns = [PromptTurn(passages=tuple(PAGES[:pages]), question=q, answer=f"Answer to {q}") for q in questions[:-1]]
    turns.append(PromptTurn(passages=tuple(PAGES[:pages]), question=questions[-1]))
    fields.setdefault("sampling", Sampling(max_tokens=20))
    return Request(plan=engine.arrange(prompts.prompt(turns)), **fields)


def said(engine: RemoteEngine, **fields: Any) -> str:
    return engine.submit(request(engine, "How long?", **fields)).completion.text
