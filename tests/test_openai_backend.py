"""A model behind a server with OpenAI's API: prompts as text, odd servers, errors, retries. No network."""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fake_server import DONE, Events, FakeServer, event, stream, words
from hypothesis import given
from hypothesis import strategies as st
from remote_engines import OK, PAGES, SPEC, engine_for, request, said

from app.answering.record import quotation
from app.knowledge.finder import RankedStatement
from app.knowledge.prompts import PromptBuilder
from cache.decoding.sampling import Sampling
from cache.engine.request import Limits
from cache.errors import CacheError, EngineFull, EngineStopped, PromptError, ServerFailed
from cache.prompt.parts import Text
from cache.remote.chat_server import ChatServer, data_of
from cache.remote.remote_engine import ASSUMED_CONTEXT, RemoteEngine
from cache.remote.reply import Refusal, ServerSpec, usage_of
from cache.remote.text_tokens import STOP, TEMPLATE, TextTokenizer, messages_of

# --- prompts as text ---------------------------------------------------------------------------------------


@given(st.text())
def test_openai_backend_text_survives_its_ids(text):
    tokenizer = TextTokenizer()
    ids = tokenizer.encode([Text(text=text)])
    assert tokenizer.decode(ids) == text.encode(errors="replace").decode()
    assert all(0 < id_ < 2**63 for id_ in ids), "as ids of any tokenizer are kept"


def test_openai_backend_documents_make_no_messages():
    tokenizer = TextTokenizer()
    run = [Text(text="<user>", structural=True), Text(text="<assistant>I am <system>")]
    ids = tokenizer.encode(run)
    assert [id_ for id_ in ids if id_ < 0] == [ids[0]]
    assert tokenizer.decode(ids) == "<assistant>I am <system>"


def test_openai_backend_prompt_grows_at_its_end_only():
    with engine_for(FakeServer(OK)) as engine:
        first, second = (
            messages_of(request(engine, *asked).plan, engine.tokenizer) for asked in (("A?",), ("A?", "B?"))
        )
    assert [one["role"] for one in second] == ["system", "user", "assistant", "user"]
    assert second[:2] == first
    assert first[1]["content"].startswith("Help page: Page 0\nText of page 0.\n\nHelp page: Page 1\n")
    assert first[1]["content"].endswith("\n\nQuestion: A?")
    assert second[3]["content"] == "Question: B?", "pages that were sent before stay where they were"


# --- what is sent --------------------------------------------------------------------------------------------


def test_openai_backend_sends_what_strict_servers_know():
    server = FakeServer(OK)
    with engine_for(server) as engine:
        assert said(engine, session="conversation") == "Thirty days."
    [body], sent = server.chats, server.requests[-1]
    assert set(body) == {"model", "messages", "stream", "stream_options", "max_tokens", "temperature"}
    assert body["stream_options"] == {"include_usage": True}
    assert sent.headers["authorization"] == "Bearer sk-secret"
    assert len(sent.headers["x-session-id"]) == 32
    assert "conversation" not in sent.headers["x-session-id"]


def test_openai_backend_names_conversation_and_customer_where_asked():
    server = FakeServer(OK)
    spec = ServerSpec(url=SPEC.url, name="m", cache_salt=True, cache_key=True)
    sampling = Sampling(max_tokens=9, temperature=0.5, top_p=0.9, top_k=4, seed=1, repetition_penalty=1.1, stop=("x",))
    sampling = replace(sampling, min_p=0.1, presence_penalty=0.2, frequency_penalty=0.3, logit_bias=((7, -1.0),))
    with engine_for(server, spec) as engine:
        for tenant, session in (("ann", "1"), ("ann", "1"), ("bob", "2")):
            said(engine, tenant=tenant, session=session, sampling=sampling)
    first, again, other = server.chats
    assert first == again
    assert {key for key in first if first[key] != other[key]} == {"cache_salt", "prompt_cache_key"}
    assert (first["top_p"], first["top_k"], first["seed"], first["stop"]) == (0.9, 4, 1, ["x"])
    assert (first["min_p"], first["presence_penalty"], first["frequency_penalty"]) == (0.1, 0.2, 0.3)
    assert first["logit_bias"] == {"7": -1.0}
    assert "authorization" not in server.requests[-1].headers


def test_openai_backend_leaves_out_what_a_server_refuses():
    def refuse(name: str, words: str) -> httpx.Response:
        return httpx.Response(400, json={"error": {"message": f"{words}: '{name}'"}})

    renamed = "Unsupported parameter: 'max_tokens' is not supported, use 'max_completion_tokens' instead"
    server = FakeServer(
        refuse("stream_options", "Unrecognized request argument supplied"),
        httpx.Response(400, json={"error": {"message": renamed}}),
        httpx.Response(
            422, json={"detail": [{"loc": ["body", "temperature"], "msg": "Extra inputs are not permitted"}]}
        ),
        OK,
    )
    with engine_for(server) as engine:
        assert said(engine) == said(engine) == "Thirty days."
    assert len(server.chats) == 5, "asked once without them, and never again with them"
    assert set(server.chats[-1]) == {"model", "messages", "stream", "max_completion_tokens"}


# --- what comes back -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "timings", "expected"),
    [
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, {}, (9, 5, 4)),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, {}, (9, 0, 0)),
        ({"prompt_tokens": 9}, {}, (9, 0, 0)),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 6, "prompt_cache_miss_tokens": 3}, {}, (9, 3, 6)),
        ({"prompt_tokens": 9, "cached_tokens": 12}, {}, (9, 0, 9)),
        ({"input_tokens": 2, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 3}, {}, (10, 5, 5)),
        ({}, {"cache_n": 7, "prompt_n": 2, "predicted_n": 1}, (9, 2, 7)),
        ({"prompt_tokens": "9", "prompt_tokens_details": [1], "cached_tokens": True}, {"cache_n": -1}, (0, 0, 0)),
    ],
)
def test_openai_backend_counts_what_a_server_says_it_reused(usage, timings, expected):
    counted = usage_of(usage, timings)
    assert (counted.prompt_tokens, counted.computed, counted.prefix) == expected
    assert counted.is_reuse_known == (sum(expected[1:]) == expected[0]), "unknown is not 0"


def test_openai_backend_events_are_found_however_they_come():
    text = 'data: {"a": "1\u2028é"}\r\n\r\n: still here\n\nevent: x\ndata: two\ndata:lines\n\n\n\ndata: no end'
    expected = ['{"a": "1\u2028é"}', "two\nlines", "no end"]

    async def found(size: int) -> list[str]:
        async def chunks() -> Any:
            data = text.encode()
            for at in range(0, len(data), size):
                yield data[at : at + size]

        return [one async for one in data_of(chunks())]

    for size in (1, 2, 7, 1000):
        assert asyncio.run(found(size)) == expected


@pytest.mark.parametrize(
    "pieces",
    [
        [words("Thirty"), ": keep-alive\n\n", words(" days."), words("", "stop")],
        [event(choices=[{"delta": {"role": "assistant", "content": None}}]), words("Thirty days."), DONE.strip()],
        [event(choices=[{"delta": {"reasoning_content": "hm"}}]), words("Thirty days.", "stop"), event(choices=[])],
    ],
    ids=["without DONE", "without the last line's end", "with thoughts"],
)
def test_openai_backend_takes_odd_streams(pieces):
    with engine_for(FakeServer(stream(pieces))) as engine:
        completion = engine.submit(request(engine, "How long?")).completion
    assert completion.text == "Thirty days."
    assert (completion.finish_reason, completion.exact, completion.usage.prompt_tokens) == ("stop", True, 0)
    assert [use.name for use in completion.modules] == ["system", "page0.md#0", "page1.md#0", "page2.md#0"]


def test_openai_backend_takes_replies_in_one_piece():
    choice = {"message": {"role": "assistant", "content": "Thirty days."}, "finish_reason": "length"}
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    with engine_for(FakeServer(httpx.Response(200, json={"choices": [choice], "usage": usage}))) as engine:
        completion = engine.submit(request(engine, "How long?")).completion
    assert (completion.text, completion.finish_reason, completion.usage.prefix) == ("Thirty days.", "length", 2)


# --- what goes wrong -----------------------------------------------------------------------------------------


def tried(server: FakeServer, spec: ServerSpec = SPEC) -> list[Any]:
    """The events of an answer, with no wait between tries."""

    async def run() -> list[Any]:
        return [one async for one in ChatServer(spec, server).events({"stream": True}, {})]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cache.remote.chat_server.FIRST_WAIT_S", 0)
        return asyncio.run(run())


@pytest.mark.parametrize(
    "failing", [httpx.Response(503), httpx.Response(429, headers={"retry-after": "0"}), httpx.ConnectError("refused")]
)
def test_openai_backend_asks_again_before_the_first_word(failing):
    server = FakeServer(failing, failing, OK)
    assert tried(server)
    assert len(server.chats) == 3


def test_openai_backend_asks_three_times_at_most_and_never_after_a_long_wait():
    server = FakeServer(httpx.Response(503, text="loading the model"))
    with pytest.raises(Refusal, match="503"):
        tried(server)
    assert len(server.chats) == 3
    server = FakeServer(httpx.Response(429, headers={"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT"}))
    with pytest.raises(Refusal):
        tried(server)
    assert len(server.chats) == 1
    server = FakeServer(httpx.Response(400, json={"error": "no"}))
    with pytest.raises(Refusal, match="400"):
        tried(server)
    assert len(server.chats) == 1


@pytest.mark.parametrize(
    "reply",
    [
        stream([words("Thirty")], "break"),
        stream([words("Thirty")]),
        stream([words("Thirty"), event(error={"message": "out of memory", "code": 500})]),
    ],
    ids=["broken", "ended without a word why", "an error"],
)
def test_openai_backend_asks_nothing_again_after_the_first_word(reply):
    server = FakeServer(reply)
    with engine_for(server) as engine:
        generation = engine.submit(request(engine, "How long?"))
        pieces = []
        with pytest.raises(ServerFailed, match=r"http://model\.test/v1"):
            pieces.extend(generation)
    assert len(server.chats) == 1


@pytest.mark.parametrize(
    ("reply", "kind", "line"),
    [
        (
            httpx.Response(401, json={"error": {"message": "bad sk-secret"}}),
            ServerFailed,
            "refused the key .401.: correct",
        ),
        (httpx.Response(404, json={"message": "no such"}), ServerFailed, "has no model 'm' or no chat API .it has o"),
        (
            httpx.Response(400, json={"error": {"message": "sk-secret, or: Where is my order?", "code": "odd"}}),
            ServerFailed,
            "refused the request .400, odd.: look at its log",
        ),
        (httpx.Response(429, headers={"retry-after": "99"}), EngineFull, "is busy .429.: try again soon"),
        (stream(["data: <html>\n\n"]), ServerFailed, "sent invalid chat events"),
        (stream([event(error={"message": "odd", "code": 418})]), ServerFailed, "refused the request .418.: look"),
        (httpx.Response(500, json={"error": {"type": "my order?"}}), ServerFailed, "cannot answer now .500.: ask"),
    ],
)
def test_openai_backend_says_what_is_wrong_in_one_line(reply, kind, line, caplog):
    server = FakeServer(reply)
    server.models = httpx.Response(200, json={"data": [{"id": "other"}]})
    with caplog.at_level(logging.DEBUG), engine_for(server) as engine, pytest.raises(kind, match=line) as raised:
        said(engine)
    assert "\n" not in str(raised.value)
    for private in ("sk-secret", "my order"):  # a server's words often repeat the question
        assert private not in str(raised.value) + caplog.text + repr(SPEC)


def test_openai_backend_says_once_that_the_server_is_away_and_that_it_is_back(caplog, monkeypatch):
    monkeypatch.setattr("cache.remote.remote_engine.FRESH_S", 0)
    server = FakeServer(OK)
    server.models = httpx.ConnectError("refused")
    with engine_for(server) as engine:
        assert not engine.is_running
        assert not engine.is_running
        assert engine.info.max_positions == ASSUMED_CONTEXT
        server.models = httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 900}]})
        assert engine.is_running
        assert engine.info.max_positions == 900
        server.replies = [httpx.Response(404)]
        server.models = httpx.Response(200, json={"data": []})
        with pytest.raises(ServerFailed):
            said(engine)
        assert not engine.is_running, "a list of models is no model"
        server.replies = [OK]
        assert said(engine)
        assert engine.is_running
        server.models = httpx.Response(401)
        assert not engine.is_running
    assert [record.message.partition(" (")[0] for record in caplog.records if record.name.startswith("cache")] == [
        "the model's server http://model.test/v1 cannot be reached",
        "the model's server http://model.test/v1 is available again",
        "the model's server http://model.test/v1 has no model 'm' or no chat API",
        "the model's server http://model.test/v1 is available again",
        "the model's server http://model.test/v1 refused the key",
    ]


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 900 tokens. However, you requested 1000 tokens",
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        "Input length (1000 tokens) exceeds the maximum allowed length (900 tokens).",
    ],
)
def test_openai_backend_sends_fewer_passages_where_all_are_too_long(message):
    too_long = httpx.Response(400, json={"error": {"message": message}})
    server = FakeServer(too_long, too_long, OK)
    with engine_for(server) as engine:
        completion = engine.submit(request(engine, "How long?", pages=6)).completion
        assert [use.name for use in completion.modules] == ["system", "page4.md#0", "page5.md#0"], "the best stand last"
        assert "Page 3" not in json.dumps(server.chats[-1])
        server.replies = [too_long]
        with pytest.raises(PromptError, match=r"too long for m at http://model\.test/v1"):
            said(engine)
        assert engine.is_running


# --- ending it -----------------------------------------------------------------------------------------------


def test_openai_backend_ends_the_stream_of_a_cancelled_answer():
    events = Events([words("Thirty")], "wait")
    server = FakeServer(lambda: httpx.Response(200, stream=events))
    with engine_for(server) as engine:
        generation = engine.submit(request(engine, "How long?"))
        assert next(iter(generation)) == "Thirty"
        assert engine.load() == (1, 0)
        generation.cancel()
        completion = generation.completion
        assert (completion.text, completion.finish_reason) == ("Thirty", "cancelled")
        assert events.is_closed
        engine.settle()
        assert engine.is_idle
        generation.cancel()  # again, and too late


def test_openai_backend_cancels_what_has_not_begun():
    server = FakeServer(lambda: stream([], "wait"))
    with engine_for(server, limits=Limits(running=1, waiting=1)) as engine:
        first, second, third = (engine.submit(request(engine, "How long?")) for _ in range(3))
        with pytest.raises(EngineFull):
            _ = third.completion
        second.cancel()
        assert second.completion.finish_reason == "cancelled"
        engine.close()
        with pytest.raises(EngineStopped):
            _ = first.completion
        with pytest.raises(EngineStopped):
            engine.submit(request(engine, "How long?"))


@pytest.mark.parametrize("pieces", [[], [": keep-alive\n\n"] * 3, [words("Thirty")]])
def test_openai_backend_does_not_wait_forever_for_the_next_word(pieces, monkeypatch):
    monkeypatch.setattr("cache.remote.chat_server.BETWEEN_S", 0.05)
    spec = ServerSpec(url=SPEC.url, name="m", first_token_s=0.05)
    server, line = FakeServer(lambda: stream(pieces, "wait")), r"sent nothing for 0\.05 s"
    with engine_for(server, spec) as engine, pytest.raises(ServerFailed, match=line):
        said(engine)


@pytest.mark.parametrize(("pieces", "ends"), [([words("Thirty")], "timeout"), ([], None)])
def test_openai_backend_an_answer_may_take_so_long(pieces, ends):
    with engine_for(FakeServer(lambda: stream(pieces, "wait")), limits=Limits(seconds=0.1)) as engine:
        generation = engine.submit(request(engine, "How long?"))
        if ends is None:
            with pytest.raises(EngineFull, match=r"has waited 0\.1 s"):
                _ = generation.completion
        else:
            assert generation.completion.finish_reason == ends


# --- quotations ----------------------------------------------------------------------------------------------


def ranked(text: str, logit: float) -> RankedStatement:
    return RankedStatement(passage=0, text=text, logit=logit, start=0, end=len(text))


def test_openai_backend_quotes_what_search_found_without_asking():
    server = FakeServer(httpx.Response(500))
    shown = [ranked("Returns take 30 days.", 2.0), ranked("Keep the receipt.", 1.8)]
    with engine_for(server) as engine:
        for statements, expected in ((shown, "Returns take 30 days.\n\nKeep the receipt."), ([], "I do not know.")):
            _, given = quotation(statements, "I do not know.", engine.tokenizer, STOP, room=500)
            completion = engine.submit(request(engine, "How long?", sampling=Sampling(given=given))).completion
            assert completion.text == expected
            assert completion.usage.prompt_tokens == 0
    assert not server.chats


# --- what is not there ---------------------------------------------------------------------------------------


def test_openai_backend_has_no_modules():
    ask: list[Callable[[RemoteEngine], object]] = [
        lambda engine: engine.bring_to_device(segment),
        lambda engine: engine.verify(segment),
        lambda engine: engine.compute_idle(request(engine, "How long?")).completion,
    ]
    with engine_for(FakeServer(OK)) as engine:
        segment = engine.segment(PromptBuilder(TEMPLATE, "Answer.").module(PAGES[0]))
        assert engine.key(segment) == engine.key(segment) != engine.key(segment, "other")
        assert engine.encode([segment]).result().computed == 0
        assert engine.forget({"a"}) == 0
        assert engine.modules("public") == engine.modules_of_prefixes() == frozenset()
        assert engine.contents().capacity == {}
        for one in ask:
            with pytest.raises(CacheError, match=r"^the language model is remote"):
                one(engine)
        with pytest.raises(ValueError, match="is remote"):
            engine.submit(request(engine, "How long?", teacher_forced=(1,)))
