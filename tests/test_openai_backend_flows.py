"""What customers, agents and operators do with a desk whose model runs elsewhere. No network; the same with a real
server is in `test_openai_backend_llama_cpp`.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import httpx
import pytest
from desk_site import BASE
from desks import finish, small_desk, write_pages
from fake_server import FakeServer, stream, whole, words
from fastapi.testclient import TestClient
from page_check import check
from typer.testing import CliRunner
from waiting import wait_until

from app.access.identity import COOKIE, Keys, new_account, new_token
from app.access.limits import QuestionLimits
from app.api.metrics import Meter
from app.cli.main import app as command_line
from app.cli.operate import compare
from app.cli.reports import print_answer, print_batch
from app.desk.batch import BatchQuestion
from app.desk.output import batch_json
from app.desk.service import Service
from app.domain.answers import PlainOptions, Said, reuse_line
from app.domain.callers import CUT
from app.domain.errors import DeskError
from app.domain.quality import FaqDraft
from app.storage.people import Accounts
from app.web.chat_flow import ChatFlow, ChatView, Reader
from app.web.dashboard import Axis, charts
from app.web.rendering import render
from app.web.server import create_app
from cache.errors import CacheError
from cache.remote.remote_engine import RemoteEngine

MODEL = "openai:http://model.test#m"
QUESTION = "How long do returns take?"
USAGE = {"prompt_tokens": 50, "prompt_tokens_details": {"cached_tokens": 40}}
OK = stream(whole("Returns take thirty days from delivery.", **USAGE))
UNCOUNTED = stream(whole("Returns take thirty days from delivery."))
SILENT = stream(whole(""))
BATCHED = BatchQuestion(id="1", question=QUESTION, past=())
SYSTEM = "Answer from the pages."
READER = Reader(owner="v-ann", session="tab")


@pytest.fixture(scope="module")
def server():
    return FakeServer(OK)


@pytest.fixture(scope="module")
def shared(tmp_path_factory, server):
    """One desk for all tests, which keep to conversations of their own."""
    folder = tmp_path_factory.mktemp("desk")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("app.desk.parts.RemoteEngine", partial(RemoteEngine, transport=server))
        patched.setattr("cache.remote.chat_server.FIRST_WAIT_S", 0)
        patched.setattr("cache.remote.remote_engine.FRESH_S", 0)
        patched.setenv("WARMDESK_OPENAI_API_KEY", "sk-secret")
        patched.setenv("WARMDESK_OPENAI_URL", "http://model.test")
        settings = {
            "answer_mode": "checked",
            "show_technical": True,
            "handoff": "asked",
            "widget_origins": ("https://shop.example",),
        }
        (folder / "desk").mkdir()
        (folder / "desk" / "warmdesk.toml").write_text(f'model = "{MODEL}"\nsystem_text = "{SYSTEM}"\n')
        with small_desk(folder / "desk", pages=write_pages(folder / "pages"), model=MODEL, **settings) as desk:
            desk.prepare()
            desk.engine.settle()
            yield desk


@pytest.fixture
def desk(shared, server):
    server.replies, server.chats = [OK], []
    yield shared
    server.replies = [OK]


@pytest.fixture
def flow(desk):
    return ChatFlow(desk, QuestionLimits(desk.settings), desk.settings)


@pytest.fixture(scope="module")
def site(shared):
    with TestClient(create_app(shared, shared.database, shared.settings), base_url=BASE) as client:
        client.cookies.set(COOKIE, new_token(), domain="127.0.0.1")
        client.post("/admin/login", data={"password": new_account(Accounts(shared.database), "admin", "admin")})
        yield client


def drawn(views: Iterator[ChatView]) -> ChatView:
    return list(views)[-1]


# --- customers -----------------------------------------------------------------------------------------------


def test_openai_flows_ask_go_on_again_and_change_the_question(flow, server):
    first = drawn(flow.ask(QUESTION, "", READER))
    id_ = first.conversation_id
    assert id_
    text = check(first.transcript or "")
    assert "thirty days from delivery" in text
    assert "40 of 50 prompt tokens reused by the model's server" in text
    drawn(flow.ask("And gift cards?", id_, READER))
    drawn(flow.retry(id_, READER))
    assert flow.edit(id_, READER).box == "And gift cards?"
    last = drawn(flow.ask("And shipping?", id_, READER, replaces_last=True))
    assert "And shipping?" in check(last.transcript or "")
    sent = [chat["messages"] for chat in server.chats]
    assert sent[2] == sent[1], "asked again: the same prompt, byte for byte"
    *before, last_sent = sent[0]
    for messages in sent[1:]:
        *same, again = messages[: len(sent[0])]
        assert same == before
        # Only the last turn has the statements that may be cited, between its pages and its question.
        pages, _, _ = last_sent["content"].partition("[1] ")
        assert again["content"].startswith(pages.rpartition("Help page: ")[0]), "the beginning is found again"
    assert "gift cards?" not in sent[3][-1]["content"], "what was replaced is in no prompt"


@pytest.mark.parametrize("mode", ["checked", "free"])
def test_openai_flows_stop_before_the_first_word_and_nothing_is_said(desk, server, monkeypatch, mode):
    """Was wrong once: it was checked, and seemed to say that the documents answer nothing."""
    monkeypatch.setattr(desk._answering, "_answer_mode", mode)
    server.replies = [lambda: stream([], "wait")]
    asked = desk.ask(QUESTION, owner=READER.owner)
    wait_until(lambda: bool(server.chats))
    asked.cancel()
    with pytest.raises(DeskError, match="stopped before it began") as error:
        list(asked)
    assert error.value.code == "no-answer"
    assert [turn.role for turn in desk.turns(asked.conversation_id, READER.owner)] == ["user"]


def test_openai_flows_say_that_an_answer_was_cut(desk, server):
    server.replies = [stream([words("Returns take thirty days from delivery.", "length")])]
    answer = finish(desk, QUESTION)
    assert answer.notice is not None
    assert CUT in answer.notice


# --- what goes wrong -----------------------------------------------------------------------------------------

FAILING = [
    (httpx.ConnectError("refused"), "cannot be reached (refused): start it", 503, "5"),
    (httpx.Response(400, json={"error": "maximum context length is 9"}), "the prompt is too long for m", 400, None),
    (httpx.Response(429, headers={"retry-after": "98.5"}), "is busy (429): try again soon", 429, "99"),
    (httpx.Response(503, headers={"retry-after": "1e999"}), "cannot answer now (503): ask again", 503, "3600"),
    (stream([words("Returns take thirty days. ")], "break"), "stopped in the middle of an answer: ask", 503, "5"),
    (SILENT, "returned an empty answer: ask again", 503, "5"),
]


@pytest.mark.parametrize(("reply", "line", "status", "wait"), FAILING, ids=[line[:20] for _, line, *_ in FAILING])
def test_openai_flows_fail_with_one_line_and_go_on(reply, line, status, wait, desk, flow, site, server, caplog):
    server.replies = [reply]
    failed = drawn(flow.ask(QUESTION, "", READER))
    assert failed.box == QUESTION, "it can be sent again"
    assert failed.live is not None
    assert "model.test" not in failed.live, "customers learn nothing of servers"
    assert line in caplog.text
    bearer = {"authorization": f"Bearer {key(desk)}"}
    asked = {"model": "warmdesk", "messages": [{"role": "user", "content": QUESTION}]}
    refused = site.post("/v1/chat/completions", json=asked, headers=bearer)
    assert (refused.status_code, refused.headers.get("retry-after")) == (status, wait)
    assert "model.test" not in refused.text
    [failure] = desk.batch([BATCHED], lambda done, total: None).outcomes
    assert line in str(failure)
    assert "sk-secret" not in caplog.text + refused.text + str(failure)
    server.replies = [OK]
    assert drawn(flow.ask(QUESTION, "", READER)).live == ""


def key(desk: Service) -> str:
    keys = Keys(desk.database)
    for one in keys.all():
        if one.revoked is None:
            keys.revoke(one.name)
    return keys.create("program", ("chat", "admin"), 1000)


def test_openai_flows_a_silent_model_is_no_missing_page(desk, server):
    """Was wrong once: that it said nothing was stored as an answer that the documents do not hold."""
    server.replies = [SILENT]
    asked = desk.ask(QUESTION)
    with pytest.raises(DeskError, match="returned an empty answer"):
        list(asked)
    assert [turn.role for turn in desk.turns(asked.conversation_id)] == ["user"]
    alone = desk.complete([Said(role="user", text="Hi")], PlainOptions(), owner="a")
    assert list(alone) == []
    assert alone.answer.text == "", "a program may want an empty answer"


# --- programs ------------------------------------------------------------------------------------------------


def test_openai_flows_programs_get_the_desk_and_the_model(desk, site, server):
    bearer = {"authorization": f"Bearer {key(desk)}"}
    models = site.get("/v1/models", headers=bearer).json()["data"]
    assert [model["id"] for model in models][:2] == ["warmdesk", "m"]
    asked = {"messages": [{"role": "user", "content": QUESTION}]}
    whole_reply = site.post("/v1/chat/completions", json={**asked, "model": "warmdesk"}, headers=bearer).json()
    details = {"cached_tokens": 40, "session": 0, "prefix": 40, "module": 0}
    assert whole_reply["usage"]["prompt_tokens_details"] == details
    assert {module["source"] for module in whole_reply["warmdesk"]["modules"]} == {"elsewhere"}
    for model in ("warmdesk", "m"):
        reply = site.post("/v1/chat/completions", json={**asked, "model": model, "stream": True}, headers=bearer)
        events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        said = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
        assert said == "Returns take thirty days from delivery."
        assert reply.text.endswith("data: [DONE]\n\n")
    assert server.chats[-1]["messages"] == asked["messages"], "to the model alone, without passages"
    list(
        desk.complete([Said(role="system", text="Be brief."), Said(role="user", text="Hi")], PlainOptions(), owner="a")
    )
    assert [message["role"] for message in server.chats[-1]["messages"]] == ["system", "user"]
    vectors = site.post("/v1/embeddings", json={"model": models[2]["id"], "input": "returns"}, headers=bearer).json()
    assert len(vectors["data"]) == 1
    metrics = site.get("/metrics", headers=bearer).text
    assert 'warmdesk_prompt_tokens_total{model_name="m",source="module"} 0.0' in metrics


# --- agents --------------------------------------------------------------------------------------------------


def test_openai_flows_faq_is_saved_while_the_server_is_away(desk, site, server, monkeypatch):
    """Was wrong once: the pair was there, and the page said that something had gone wrong."""
    monkeypatch.setattr(desk.curated, "answer", lambda *args, **named: None)
    draft = {"question": "Can a toaster be fixed?", "answer": "Yes, in Galway.", "wordings": []}
    server.replies = [httpx.ConnectError("refused")]
    saved = json.loads(site.post("/admin/faq", json=draft).text.splitlines()[-1])["result"]
    assert "cannot be reached (refused)" in saved["problem"]
    server.replies = [stream(whole("Yes, in Galway."))]
    again = site.post("/admin/faq", json={**draft, "id": saved["id"]})
    assert json.loads(again.text.splitlines()[-1])["result"]["answer"] == "Yes, in Galway."
    desk.quality.delete_faq(saved["id"])
    assert desk.quality.save_faq(FaqDraft(question="Fixed?", answer="Yes."), "ann").answer is not None


# --- operators -----------------------------------------------------------------------------------------------


def test_openai_flows_dashboard_says_what_the_server_reused_and_no_more(desk, server):
    finish(desk, QUESTION)
    overview = desk.overview()
    axis = Axis.ending(datetime.now(UTC) + timedelta(minutes=1), "hour")
    usage = desk.usage_within(axis.since, axis.until, axis.range.step)
    tiles = render("admin/tiles.html", language="en", overview=overview, usage=usage)
    assert "tokens, counted by the model's server" in tiles
    assert "Passages" not in tiles
    assert "Same conversation" not in tiles
    silent = render("admin/tiles.html", language="en", overview=overview, usage=replace(usage, tokens={}))
    assert "the model's server does not report the number" in silent
    answers = render("admin/answers.html", language="en", overview=overview, now=datetime.now(UTC))
    assert "there is no policy to calibrate" in answers
    shown = charts(axis, desk.usage_over_time(axis.since, axis.until, axis.range.step), True)
    assert "Sources of passages" not in [chart.title for chart in shown]
    assert all(path for *_, path in shown[-1].layers), "the time to the first token is drawn"
    assert {name for name, _, path in shown[0].layers if path} == {"prefix", "computed"}


def test_openai_flows_what_the_server_does_not_count_is_not_counted_as_nothing(desk, server, capsys):
    """Was wrong once: all of 0 tokens had been read now."""
    server.replies = [UNCOUNTED]
    meter = Meter(desk)
    answer = finish(desk, QUESTION)
    assert 'vllm:time_to_first_token_seconds_count{model_name="m"} 1.0' in meter.text().decode()
    line = "The model's server does not report how many tokens it computed"
    assert reuse_line(answer).startswith(line)
    print_answer(answer)
    assert line in capsys.readouterr().out
    assert "Computed now" not in render("chat/reuse.html", language="en", answer=answer)
    result = desk.batch([BATCHED], lambda done, total: None)
    assert batch_json(result)["tokens"]["computed"] is None
    print_batch(batch_json(result))
    assert "the model's server does not report how many prompt tokens were computed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["calibrate"], "there is no policy to find; set answer_mode to checked, quote or free yourself"),
        (["adapt"], "set another --model"),
        (["eval", "quality", "--data", "DATA"], "set another --model"),
        (["bench", "latency"], "set another --model"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_openai_flows_commands_say_what_needs_a_model_here(command, line, tmp_path, monkeypatch):
    data = tmp_path / "data.jsonl"
    data.write_text('{"title": "A", "context": "B", "qas": []}\n')
    monkeypatch.setenv("WARMDESK_DATA_DIR", str(tmp_path / "desk"))
    given = [str(data) if word == "DATA" else word for word in command]
    ran = CliRunner().invoke(command_line, [*given, "--model", MODEL])
    assert isinstance(ran.exception, DeskError | CacheError)
    assert line in str(ran.exception)
    assert "\n" not in str(ran.exception)


def test_openai_flows_demo_compares_nothing(desk, capsys, tmp_path):
    compare(desk, tmp_path)
    assert "with and without reuse cannot be compared" in capsys.readouterr().out


# --- opening -------------------------------------------------------------------------------------------------


def test_openai_flows_a_slow_server_keeps_no_desk_from_opening(tmp_path, monkeypatch):
    """Was wrong once: the desk waited for the first word, and did not open if the server was busy."""
    slow = FakeServer(lambda: stream([], "wait"))
    monkeypatch.setattr("app.desk.parts.RemoteEngine", partial(RemoteEngine, transport=slow))
    with small_desk(tmp_path / "desk", model=MODEL) as desk:
        desk.prepare()
        assert desk.missing() == ()
