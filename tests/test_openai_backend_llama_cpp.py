"""A desk whose model runs in a server that nobody here wrote: llama.cpp's, in a process of its own."""

import logging
import subprocess
import time

import httpx
import pytest
from desks import finish, small_desk

from app.domain.answers import PlainOptions, Said
from app.domain.errors import DeskError
from cache.decoding.sampling import Sampling
from cache.engine.request import Limits, Request
from cache.errors import PromptError
from cache.prompt.parts import Text, TextModule
from cache.remote.remote_engine import RemoteEngine
from cache.remote.reply import ServerSpec
from evals.peers.llama_cpp import LlamaCpp, free_port

CONTEXT = 512
KEY = "sk-real-0123456789"
RETURNS = """# Returns

Returns take thirty days from delivery. Keep the receipt, and send the parcel to the warehouse in Galway. Shoes can be
returned if they were worn indoors only. The refund arrives within five working days after the parcel has been received.

# Gift cards

Gift cards cannot be returned. They last five years from the day on which they were bought, in shops and on the web.
"""


class LlamaCppServer:
    """The server, which can be killed and started again at the same address."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._found = LlamaCpp.find(None, None)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = {
            "--model": self._found.file,
            "--port": self.port,
            "--threads": 1,
            "--parallel": 2,
            "--ctx-size": 2 * CONTEXT,
            "--cache-reuse": 0,
            "--api-key": KEY,
        }
        command = [*self._found.program, *(str(part) for option in options.items() for part in option)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not self._is_ready():
            assert self._process.poll() is None
            time.sleep(0.05)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def _is_ready(self) -> bool:
        try:
            headers = {"authorization": f"Bearer {KEY}"}
            return httpx.get(f"{self.url}/models", headers=headers, trust_env=False).is_success
        except httpx.HTTPError:
            return False


@pytest.fixture(scope="module")
def server():
    server = LlamaCppServer()
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def desk(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    (folder / "pages").mkdir()
    (folder / "pages" / "returns.md").write_text(RETURNS)
    with (
        pytest.MonkeyPatch.context() as patched,
        small_desk(folder / "desk", model=f"openai:{server.url}#any", answer_tokens=10, handoff="asked") as desk,
    ):
        patched.setenv("WARMDESK_OPENAI_API_KEY", KEY)
        desk.ingest([folder / "pages"])
        desk.prepare()
        desk.engine.settle()
        yield desk


def test_openai_backend_knows_the_context_of_a_real_server(desk):
    assert desk.engine.info.max_positions == CONTEXT
    assert desk.missing() == ()


def test_openai_backend_real_conversation_is_found_again_by_the_server(desk):
    stream = desk.ask("How long do returns take?")
    pieces = list(stream)
    first = stream.answer
    assert len(pieces) > 3, "it streams"
    assert "".join(pieces).strip() == first.answer
    assert first.usage.is_reuse_known
    assert first.usage.computed > 100
    assert first.usage.completion_tokens > 3
    assert 0 < first.timings.ttft <= first.timings.total
    assert first.citations[0].document.endswith("returns.md")
    assert desk.hand_off("asked", owner="operator", conversation_id=first.conversation_id).reason == "asked"
    with pytest.raises(DeskError, match="agent answers"):
        desk.ask("And shoes?", conversation_id=first.conversation_id)
    desk.end_handoff(first.conversation_id, "operator")
    for question in ("And shoes?", "And gift cards?"):
        answer = finish(desk, question, conversation_id=first.conversation_id)
        assert answer.answer
        assert answer.usage.prefix >= 0.8 * answer.usage.prompt_tokens
        assert answer.usage.module == answer.usage.session == 0, "exact beginnings are all that the server reuses"


def test_openai_backend_real_question_is_asked_again_and_changed(desk):
    first = finish(desk, "How long do returns take?")
    for question in ("How long do returns take?", "How long does a refund take?"):
        last = desk.last_question(first.conversation_id, "operator")
        answer = finish(desk, question, conversation_id=first.conversation_id, replaces=last)
        assert answer.usage.prefix >= 0.8 * answer.usage.prompt_tokens, "all but the question is found again"
    assert [turn.role for turn in desk.turns(first.conversation_id)] == ["user", "assistant"]


def test_openai_backend_real_key_is_needed_and_stands_in_no_log(desk, server, caplog):
    with caplog.at_level(logging.DEBUG):
        finish(desk, "How long do returns take?")
        for key, cure in ((None, "set"), ("sk-wrong-0123456789", "correct")):
            engine = RemoteEngine(ServerSpec(url=server.url, name="any", key=key), Limits())
            assert engine.problem == (
                f"the model's server {server.url} refused the key (401): {cure} WARMDESK_OPENAI_API_KEY in "
                "Warmdesk's environment"
            )
            engine.close()
    assert "send_request_headers" in caplog.text, "what was sent is logged, but for its headers"
    assert KEY not in caplog.text
    assert "sk-wrong" not in caplog.text


def test_openai_backend_real_answer_stops_when_nobody_wants_it(desk):
    stream = desk.ask("How long do returns take?")
    for _ in stream:
        stream.cancel()
    answer = stream.answer
    assert answer.notice is not None
    assert answer.usage.completion_tokens == 0, "what a server did not say is not known"
    assert finish(desk, "How long do returns take?").answer.startswith(answer.answer)


def test_openai_backend_real_server_is_sent_fewer_passages_where_all_are_too_long(server):
    engine = RemoteEngine(ServerSpec(url=server.url, name="any", key=KEY, context_tokens=10_000), Limits())
    try:
        system = TextModule(
            name="system", pieces=(Text(text="<system>", structural=True), Text(text="Answer briefly."))
        )
        pages = [
            TextModule(name=f"page{number}", pieces=(Text(text="Returns are free. " * 80),)) for number in range(6)
        ]
        end = [Text(text="Are they?"), Text(text="<assistant>", structural=True)]
        parts = [system, Text(text="<user>", structural=True), *pages, *end]
        completion = engine.submit(Request(plan=engine.arrange(parts), sampling=Sampling(max_tokens=2))).completion
        assert [use.name for use in completion.modules] == ["system", "page5"]
        assert completion.usage.prompt_tokens < CONTEXT
        parts = [*parts[:2], Text(text="free " * CONTEXT), *end]
        with pytest.raises(PromptError, match="exceed_context_size_error"):
            _ = engine.submit(Request(plan=engine.arrange(parts))).completion
    finally:
        engine.close()


def test_openai_backend_serves_a_real_model_alone(desk):
    options = PlainOptions(max_tokens=4, temperature=0.7, top_p=0.9, seed=1, stop=("\n",))
    answers = ["".join(desk.complete([Said(role="user", text="Hi")], options, owner="a")) for _ in range(2)]
    assert answers[0] == answers[1] != ""


def test_openai_backend_recovers_when_a_killed_server_is_back(desk, server, monkeypatch):
    monkeypatch.setattr("cache.remote.remote_engine.FRESH_S", 0)
    pieces = iter(desk.ask("Write a long story about returns, with many details"))
    next(pieces)
    server.kill()
    with pytest.raises(
        DeskError, match=rf"^the model's server {server.url} broke off in the middle of an answer: ask again$"
    ):
        list(pieces)
    with pytest.raises(DeskError, match=rf"^the model's server {server.url} cannot be reached \(.+\): start it, or"):
        finish(desk, "How long do returns take?")
    assert desk.missing() == ("engine",)
    server.start()
    assert finish(desk, "How long do returns take?").answer
    assert desk.missing() == ()
