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


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/models", headers={"authorization": f"Bearer {KEY}"}, trust_env=False).is_success
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def url():
    """The address of a server that runs."""
    found, port = LlamaCpp.find(None, None), free_port()
    options = {
        "--model": found.file,
        "--port": port,
        "--threads": 1,
        "--parallel": 2,
        "--ctx-size": 2 * CONTEXT,
        "--cache-reuse": 0,
        "--api-key": KEY,
    }
    command = [*found.program, *(str(part) for option in options.items() for part in option)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/v1"
    while not is_ready(url):
        assert process.poll() is None
        time.sleep(0.05)
    yield url
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def desk(url, tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    (folder / "pages").mkdir()
    (folder / "pages" / "returns.md").write_text(RETURNS)
    with (
        pytest.MonkeyPatch.context() as patched,
        small_desk(folder / "desk", model=f"openai:{url}#any", answer_tokens=10, handoff="asked") as desk,
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


def test_openai_backend_real_key_is_needed_and_stands_in_no_log(desk, url, caplog):
    with caplog.at_level(logging.DEBUG):
        finish(desk, "How long do returns take?")
        for key, cure in ((None, "set"), ("sk-wrong-0123456789", "correct")):
            engine = RemoteEngine(ServerSpec(url=url, name="any", key=key), Limits())
            assert engine.problem == (
                f"the model's server {url} refused the key (401): {cure} WARMDESK_OPENAI_API_KEY in "
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


def test_openai_backend_real_server_is_sent_fewer_passages_where_all_are_too_long(url):
    engine = RemoteEngine(ServerSpec(url=url, name="any", key=KEY, context_tokens=10_000), Limits())
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
