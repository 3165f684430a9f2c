"""The API with the official `openai` client: chat, stream, embeddings, models, errors; and the routes of our own, with
hand-offs: asking, writing, reading the agent's answer, going back.
"""

import base64
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import httpx
import openai
import pytest
from api_site import ApiSite, served_api

from app.api.wire import UNEXPECTED, times
from app.domain.answers import AnswerTimings
from app.domain.callers import Caller
from app.domain.errors import DeskError
from app.support.handoff import AgentQueue
from app.web.serve import bind

QUESTION = "How long do returns take?"
ASKED: Any = [{"role": "user", "content": QUESTION}]
LONG: Any = [{"role": "user", "content": "What is the capital of Peru? " * 10}]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with served_api(tmp_path_factory.mktemp("api")) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(site):
    return site.openai()


def key(site: ApiSite, name: str, scopes: Sequence[str] = ("chat",), per_minute: int = 1000) -> str:
    return site.keys.create(name, scopes, per_minute)


def test_the_desk_answers_with_sources_modules_and_where_tokens_came_from(client):
    reply = client.chat.completions.create(model="warmdesk", messages=ASKED)
    assert reply.object == "chat.completion"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "length"
    usage = reply.usage
    assert 0 < usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    desk = reply.warmdesk
    assert desk["outcome"] == "answered"
    assert "returns.md" in [source["document"] for source in desk["sources"]]
    assert [module["source"] for module in desk["modules"]] == ["device"] * 3
    assert {"retrieve", "load", "prefill", "ttft", "total"} == set(desk["timings_ms"])
    assert desk["conversation_id"]
    assert desk["message_id"]


def test_only_admins_see_exactly_how_long_search_and_memory_took():
    timings = AnswerTimings(retrieve=12.3, load=6.2, prefill=98.4, ttft=118.2, total=1904.0)
    assert times(timings, Caller(scopes=frozenset({"chat"}))) == {**asdict(timings), "retrieve": 10.0, "load": 10.0}
    assert times(timings, Caller(scopes=frozenset({"chat", "admin"}))) == asdict(timings)


def test_a_conversation_goes_on_and_finds_what_it_computed(client):
    begun = client.chat.completions.create(model="warmdesk", messages=ASKED, user="goes on")
    follow: Any = [{"role": "user", "content": "And gift cards?"}]
    going_on: Any = {"conversation_id": begun.warmdesk["conversation_id"]}
    second = client.chat.completions.create(model="warmdesk", messages=follow, user="goes on", extra_body=going_on)
    assert second.warmdesk["conversation_id"] == begun.warmdesk["conversation_id"]
    assert second.usage.prompt_tokens_details.session > 0  # type: ignore[union-attr]


def test_earlier_messages_are_the_conversation_so_far(client):
    follow = {"role": "user", "content": "And gift cards?"}
    alone = client.chat.completions.create(model="warmdesk", messages=[follow])  # type: ignore[list-item]
    said: Any = [*ASKED, {"role": "assistant", "content": "They take thirty days from delivery."}, follow]
    reply = client.chat.completions.create(model="warmdesk", messages=said)
    assert reply.usage.prompt_tokens > alone.usage.prompt_tokens
    assert reply.warmdesk["conversation_id"] != alone.warmdesk["conversation_id"]


def test_system_messages_are_left_out_and_a_notice_says_so(client):
    said: Any = [{"role": "system", "content": "Talk like a pirate."}, *ASKED]
    reply = client.chat.completions.create(model="warmdesk", messages=said)
    assert "system messages were ignored" in reply.warmdesk["notice"]
    without = client.chat.completions.create(model="warmdesk", messages=ASKED)
    assert reply.usage.prompt_tokens == without.usage.prompt_tokens


def test_an_answer_of_the_desk_is_whole_whatever_would_cut_one_of_the_model(client):
    ask = partial(client.chat.completions.create, model="warmdesk", messages=ASKED)
    cut: Any = {"max_completion_tokens": 1, "temperature": 2}
    whole, reply = ask(), ask(stop=["e"], max_tokens=1, extra_body=cut)
    assert reply.choices[0].message.content == whole.choices[0].message.content
    assert reply.choices[0].finish_reason == whole.choices[0].finish_reason


def test_content_may_come_in_parts(client):
    parts: Any = [{"type": "text", "text": "How long do "}, {"type": "text", "text": "returns take?"}]
    reply = client.chat.completions.create(model="warmdesk", messages=[{"role": "user", "content": parts}])
    address = f"/conversations/{reply.warmdesk['conversation_id']}"
    stored = client.get(address, cast_to=httpx.Response).json()
    assert stored["messages"][0]["content"] == QUESTION
    file = client.get(f"{address}/export?format=csv", cast_to=httpx.Response)
    assert file.text.startswith('\ufeff"time","role"')
    assert QUESTION in file.text
    assert file.headers["content-disposition"].endswith('.csv"')


def test_a_stream_is_the_same_answer_in_pieces(client):
    whole = client.chat.completions.create(model="warmdesk", messages=ASKED)
    chunks = list(
        client.chat.completions.create(
            model="warmdesk", messages=ASKED, stream=True, stream_options={"include_usage": True}
        )
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert pieces[0]
    assert "".join(pieces) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-2].warmdesk["sources"] == whole.warmdesk["sources"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0
    assert len({chunk.id for chunk in chunks}) == 1


class Endless:
    def __init__(self) -> None:
        self.stopped = threading.Event()

    def __iter__(self) -> Iterator[str]:
        while not self.stopped.wait(0.01):
            yield "on and "

    @property
    def answer(self) -> None:
        raise DeskError("stopped", code="no-answer")

    def cancel(self) -> None:
        self.stopped.set()


def test_a_reader_who_leaves_stops_the_answer(site, monkeypatch):
    answers = [Endless(), Endless()]
    coming = iter(answers)
    monkeypatch.setattr(site.desk, "ask", lambda *_, **__: next(coming))
    body = {"model": "warmdesk", "messages": ASKED}
    with site.http() as client:
        with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
            lines = response.iter_lines()  # kept: with it goes the stream
            next(lines)
            assert not answers[0].stopped.is_set()
        assert answers[0].stopped.wait(20)
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/chat/completions", json=body, timeout=1)
        assert answers[1].stopped.wait(20)


def test_a_key_sees_its_own_conversations_only(site):
    mine, other = site.http(key(site, "mine")), site.http(key(site, "other"))
    asked = {"model": "warmdesk", "messages": ASKED}
    desk = mine.post("/v1/chat/completions", json=asked).json()["warmdesk"]
    path, message = f"/v1/conversations/{desk['conversation_id']}", {"message_id": desk["message_id"], "value": "up"}
    assert [row["id"] for row in mine.get("/v1/conversations").json()["data"]] == [desk["conversation_id"]]
    assert other.get("/v1/conversations").json()["data"] == []
    for method, where, body in (
        ("GET", path, None),
        ("GET", f"{path}/export", None),
        ("DELETE", path, None),
        ("POST", "/v1/feedback", message),
        ("POST", "/v1/chat/completions", {**asked, "conversation_id": desk["conversation_id"]}),
    ):
        refused, unknown = (
            other.request(method, where.replace(desk["conversation_id"], id_), json=body)
            for id_ in (desk["conversation_id"], "0" * 32)
        )
        assert (refused.status_code, refused.json()["error"]["type"]) == (404, "invalid_request_error"), where
        if method != "POST":
            assert refused.json() == unknown.json()
    assert mine.post("/v1/feedback", json=message).status_code == 200
    assert mine.get(path).json()["messages"][1]["feedback"] == "up"
    assert mine.delete(path).json()["deleted"]
    assert mine.get(path).status_code == 404


def test_users_of_a_key_are_kept_apart(site):
    client = site.http(key(site, "two users"))
    asked = {"model": "warmdesk", "messages": ASKED, "user": "ann@shop.example"}
    desk = client.post("/v1/chat/completions", json=asked).json()["warmdesk"]
    path = f"/v1/conversations/{desk['conversation_id']}"
    assert client.get(path, params={"user": "bob"}).status_code == 404
    assert client.get(path).status_code == 404
    assert client.get(path, params={"user": "ann@shop.example"}).status_code == 200
    message = {"message_id": desk["message_id"], "value": "down", "reason": "too short"}
    assert client.post("/v1/feedback", json={**message, "user": "bob"}).status_code == 404
    assert client.post("/v1/feedback", json={**message, "user": "ann@shop.example"}).status_code == 200


def test_what_a_key_computed_is_found_by_that_key_alone(site):
    used: list[int] = []
    tokens = [key(site, "first"), key(site, "second")]
    for token in (tokens[0], tokens[0], tokens[1]):
        reply = site.openai(token).chat.completions.create(model="llama", messages=LONG, max_tokens=2)
        used.append(reply.usage.prompt_tokens_details.cached_tokens or 0)
    assert used[0] == used[2] == 0
    assert used[1] > 250


def test_the_language_model_alone(client):
    reply = client.chat.completions.create(model="llama", messages=LONG, max_tokens=5)
    assert (reply.choices[0].finish_reason, reply.usage.completion_tokens) == ("length", 5)
    said: Any = [*LONG, {"role": "assistant", "content": "Lima."}, {"role": "user", "content": "And of Chile?"}]
    chunks = list(client.chat.completions.create(model="llama", messages=said, max_tokens=5, stream=True))
    assert chunks[-1].choices[0].finish_reason == "length"
    assert set(chunks[-1].warmdesk) == {"timings_ms"}
    again = client.chat.completions.create(model="llama", messages=said, max_completion_tokens=5)
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == again.choices[0].message.content


def test_log_probabilities_of_the_language_model(client):
    options: Any = {"model": "llama", "messages": LONG, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    choice = client.chat.completions.create(**options).choices[0]
    found = choice.logprobs.content
    assert len(found) == 4
    assert bytes(byte for one in found for byte in one.bytes).decode(errors="replace") == choice.message.content
    for one in found:
        assert one.logprob == one.top_logprobs[0].logprob > one.top_logprobs[1].logprob, "it is greedy"
        assert one.token == one.top_logprobs[0].token
    streamed = list(client.chat.completions.create(stream=True, **options))[-1].choices[0].logprobs.content
    assert streamed == found
    without = {**options, "logprobs": False, "top_logprobs": 0}
    assert client.chat.completions.create(**without).choices[0].logprobs is None


def test_models_are_listed_and_found(client):
    assert [model.id for model in client.models.list()] == ["warmdesk", "llama", "hash-256"]
    assert client.models.retrieve("llama").owned_by == "warmdesk"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_embeddings_are_those_of_search_in_both_formats(site, client):
    texts = ["a lamp", "a shade of blue"]
    reply = client.embeddings.create(model="hash-256", input=texts)  # the client asks for base64
    expected = site.desk.embed(texts).vectors
    for row, vector in zip(reply.data, expected, strict=True):
        assert row.embedding == pytest.approx(vector.tolist())
    assert (reply.usage.prompt_tokens, reply.usage.total_tokens) == (6, 6)
    one = client.embeddings.create(model="hash-256", input="a lamp", encoding_format="float", dimensions=256)
    assert one.data[0].embedding == pytest.approx(expected[0].tolist())
    sent = {"model": "hash-256", "input": "a lamp", "encoding_format": "base64"}
    raw = site.http().post("/v1/embeddings", json=sent).json()["data"][0]["embedding"]
    assert list(struct.unpack("<256f", base64.b64decode(raw))) == pytest.approx(expected[0].tolist())


def test_a_document_is_added_found_replaced_and_removed(site):
    client = site.http()
    text = b"# Lamps\n\nA lamp has a warranty of two years.\n"
    added = client.post("/v1/documents", files={"file": ("lamps.md", text)}, data={"collection": "products"})
    assert added.status_code == 201
    document = added.json()
    assert (document["name"], document["title"], document["collection"]) == ("lamps.md", "Lamps", "products")
    listed = client.get("/v1/documents", params={"collection": "products"}).json()["data"]
    assert listed == [document] == [client.get(f"/v1/documents/{document['id']}").json()]
    asked = {"model": "warmdesk", "messages": [{"role": "user", "content": "What warranty has a lamp?"}]}
    sources = client.post("/v1/chat/completions", json=asked).json()["warmdesk"]["sources"]
    assert "lamps.md" in [source["document"] for source in sources]
    assert client.delete(f"/v1/documents/{document['id']}").json()["deleted"]
    assert client.get(f"/v1/documents/{document['id']}").status_code == 404
    assert client.delete(f"/v1/documents/{document['id']}").status_code == 404


def test_nothing_says_where_files_lie(site):
    client, folder = site.http(), str(site.desk.settings.data_dir.parent)
    asked = client.post("/v1/chat/completions", json={"model": "warmdesk", "messages": ASKED})
    conversation = f"/v1/conversations/{asked.json()['warmdesk']['conversation_id']}"
    for path in ("/v1/documents", "/v1/models", conversation, f"{conversation}/export", "/metrics"):
        assert folder not in client.get(path).text
    assert folder not in asked.text


def test_a_wrong_key_no_key_and_a_key_without_the_scope(site):
    for token in ("wd_wrong", "sk-other", "x"):
        with pytest.raises(openai.AuthenticationError):
            site.openai(token).chat.completions.create(model="warmdesk", messages=ASKED)
    nobody = site.http("").get("/v1/models")
    assert (nobody.status_code, nobody.json()["error"]["code"]) == (401, "invalid_api_key")
    documents = key(site, "documents only", ["documents"])
    with pytest.raises(openai.PermissionDeniedError):
        site.openai(documents).chat.completions.create(model="warmdesk", messages=ASKED)
    assert site.http(documents).get("/v1/documents").status_code == 200
    assert site.http(key(site, "chat only")).get("/v1/documents").status_code == 403


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="hash-256", messages=ASKED)
    assert (error.value.code, error.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="llama", input="a")


@pytest.mark.parametrize(("model", "chars", "stream"), [("warmdesk", 4001, True), ("llama", 5000, False)])
def test_what_is_too_long_is_refused(client, model, chars, stream):
    long: Any = [{"role": "user", "content": "x" * chars}]
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=model, messages=long, stream=stream)
    assert error.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": ""}]}, None),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [*ASKED, {"role": "assistant", "content": "x"}]}, "messages"),
        ({"n": 2}, "n"),
        ({"tools": [{}]}, None),
        ({"stop": ["a", ""]}, "stop"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"min_p": 2}, "min_p"),
        ({"logprobs": True}, None),
        ({"model": "llama", "top_logprobs": 3}, None),
        ({"response_format": {"type": "json_object"}}, None),
        ({"conversation_id": "0" * 65}, "conversation_id"),
    ],
)
def test_what_cannot_be_asked_is_named(site, changes, param):
    refused = site.http().post("/v1/chat/completions", json={"model": "warmdesk", "messages": ASKED, **changes})
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (400, "invalid_request_error")
    assert (error["param"] or "").startswith(param or "")
    assert "image_url" not in str(changes) or error["message"].endswith(
        "only text parts are supported, not 'image_url'"
    )


def test_what_cannot_be_embedded_is_refused(site):
    for wrong in ({"input": ""}, {"input": ["a", ""]}, {"input": ["a"] * 257}, {"input": [1, 2]}, {"dimensions": 64}):
        refused = site.http().post("/v1/embeddings", json={"model": "hash-256", "input": "a", **wrong})
        assert refused.status_code == 400, wrong
    for body in (b"{", b"\xff", b"[]", b"null"):
        sent = site.http(**{"content-type": "application/json"}).post("/v1/chat/completions", content=body)
        assert sent.status_code == 400, body


def test_the_limit_of_a_key_says_when_to_try_again(site):
    client = site.openai(key(site, "twice a minute", per_minute=2))
    for _ in range(2):
        client.embeddings.create(model="hash-256", input="a")
    with pytest.raises(openai.RateLimitError) as error:
        client.chat.completions.create(model="warmdesk", messages=ASKED)
    assert 1 <= int(error.value.response.headers["retry-after"]) <= 60
    assert client.models.list().data  # costs nothing


def test_a_fault_of_ours_is_one_line(site, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("/secret/place")

    class Breaking(Endless):
        def __iter__(self) -> Iterator[str]:
            yield "It "
            fail()

    for ask, stream in ((fail, False), (fail, True), (lambda *_, **__: Breaking(), True)):
        monkeypatch.setattr(site.desk, "ask", ask)
        with pytest.raises(openai.APIError) as error:
            list(site.openai().chat.completions.create(model="warmdesk", messages=ASKED, stream=stream))
        assert UNEXPECTED in str(error.value)
        assert "secret" not in str(error.value)


@pytest.mark.parametrize(("code", "status"), [("engine", 503), ("engine-full", 429)])
def test_a_busy_desk_says_when_to_try_again(code, status, site, monkeypatch):
    def busy(*_: object, **__: object) -> None:
        raise DeskError("raise --memory", code=code)

    monkeypatch.setattr(site.desk, "ask", busy)
    with pytest.raises(openai.APIStatusError) as error:
        site.openai().chat.completions.create(model="warmdesk", messages=ASKED)
    assert (error.value.status_code, error.value.response.headers["retry-after"]) == (status, "5")
    assert "memory" not in str(error.value)


def test_metrics_are_for_this_machine_or_a_key_of_scope_admin(site):
    assert "vllm:num_requests_running" in site.http("").get("/metrics").text
    for header in ("x-forwarded-for", "forwarded", "x-real-ip", "via"):
        assert site.http("", **{header: "203.0.113.9"}).get("/metrics").status_code == 401
        assert site.http(key(site, header), **{header: "203.0.113.9"}).get("/metrics").status_code in (401, 403)
        assert site.http(**{header: "203.0.113.9"}).get("/metrics").status_code == 200


def test_connections_do_not_wait_for_acknowledgements():
    """asyncio switches Nagle's algorithm off for sockets that name TCP as their protocol, and for no others."""
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()[:2]):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP


def code(response: object) -> tuple[int, str]:
    status: int = response.status_code  # type: ignore[attr-defined]
    return status, response.json()["error"]["code"]  # type: ignore[attr-defined]


def test_a_program_hands_over_and_back(site):
    with site.http() as client:
        body = {"message": "My parcel is broken.", "user": "ann"}
        handed = client.post("/v1/handoffs", json=body).json()
        assert [handed[name] for name in ("object", "state", "reason", "place")] == ["handoff", "waiting", "api", 1]
        address = f"/v1/handoffs/{handed['conversation_id']}"
        written = client.post(f"{address}/messages", json={"message": "Order 1234.", "user": "ann"})
        assert written.json()["state"] == "waiting"
        said = [{"role": "user", "content": "And now?"}]
        asked = {"model": "warmdesk", "messages": said, "conversation_id": handed["conversation_id"], "user": "ann"}
        assert code(client.post("/v1/chat/completions", json=asked)) == (409, "with-person")
        queue = AgentQueue(site.desk.database, site.desk.settings)
        [row] = queue.rows()
        queue.take(row.handoff.id, "Ann")
        queue.answer(row.handoff.id, "Ann", "We send another one.")
        taken = client.get(address, params={"user": "ann"}).json()
        assert (taken["state"], taken["agent"]) == ("taken", "Ann")
        conversation = client.get(f"/v1/conversations/{handed['conversation_id']}", params={"user": "ann"}).json()
        assert [(one["role"], one["content"]) for one in conversation["messages"]] == [
            ("user", "My parcel is broken."),
            ("user", "Order 1234."),
            ("agent", "We send another one."),
        ]
        assert client.get(address).status_code == 404  # of another user
        assert client.delete(address, params={"user": "ann"}).json()["state"] == "closed"
        late = client.post(f"{address}/messages", json={"message": "Thanks", "user": "ann"})
        assert code(late) == (409, "not-with-person")
        assert client.post("/v1/chat/completions", json=asked).status_code == 200
        for body, status in (({}, 400), ({"conversation_id": "no"}, 404), ({"message": "Hi", "email": "none"}, 400)):
            assert client.post("/v1/handoffs", json=body).status_code == status, body
