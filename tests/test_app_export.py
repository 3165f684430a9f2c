"""Conversations as files, everything of one visitor, and its removal; what is kept of a redacted question."""

import csv
import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from desk_site import Site
from desks import finish, small_desk, write_pages
from fake_desk import FakeDesk
from fastapi.testclient import TestClient

from app.access.identity import COOKIE, Identity
from app.desk.output import export_conversation, export_everything
from app.domain.answers import Turn
from app.domain.callers import OPERATOR
from app.domain.words import speaking
from app.web.rendering import translations

PLACES = re.compile(r"/(help|desk|kb)/|returns/returns-policy|m[1-4]\b")
"""Paths and ids of modules, as the fake desk has them."""


def exported(desk: FakeDesk, kind: str, **changes: Any) -> str:
    """The latest conversation, its answer judged; changes: of all its turns."""
    [latest, *_] = desk.conversations()
    turns = desk._turns[latest.id]
    turns[:] = [replace(turn, **changes) for turn in turns]
    turns[1] = replace(turns[1], feedback="down", reason="=1+1")
    file = export_conversation(desk, latest.id, OPERATOR, kind)
    assert file is not None
    assert file.name == f"conversation-2026-03-12.{kind}"
    return file.data.decode("utf-8")


def test_what_an_agent_wrote_is_named(tmp_path):
    desk = FakeDesk()
    [summary, *_] = desk.conversations()
    desk.say("It is on its way.", summary.id, OPERATOR, "agent", "Ann")
    texts = {}
    for kind in ("json", "md"):
        file = export_conversation(desk, summary.id, OPERATOR, kind)
        assert file is not None
        texts[kind] = file.data.decode()
    assert json.loads(texts["json"])["messages"][-1]["author"] == "Ann"
    assert "## Ann · " in texts["md"]


def test_json_holds_what_was_said_and_no_more(desk):
    text = exported(desk, "json")
    question, answer = json.loads(text)["messages"]
    assert question == {"role": "user", "time": question["time"], "text": "Can I return a duvet I have unpacked?"}
    assert set(answer) == {"role", "time", "text", "outcome", "sources", "feedback"}
    assert answer["sources"] == ["Our returns policy", "Returning an item in a store", "Larkmoor Circle and points"]
    assert answer["feedback"] == {"value": "down", "reason": "=1+1"}
    assert PLACES.search(text) is None


@pytest.mark.parametrize(
    "text", ["=HYPERLINK(1)", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "  =1", "\n+1", "＝1+1", "＠x", "'=1", 'say "=1"']
)
def test_csv_is_no_formula(desk, text):
    written = exported(desk, "csv", text=text)
    assert written.startswith("\ufeff")
    head, *rows = csv.reader(io.StringIO(written[1:], newline=""))
    assert head == ["time", "role", "text", "outcome", "sources", "feedback", "reason"]
    assert len(rows) == 2
    for row in rows:
        assert row[2].removeprefix("'") == text.removeprefix("'")
        assert all(cell.strip()[:1] not in ("=", "+", "-", "@", "＝", "＋", "－", "＠") for cell in row if cell)
    assert PLACES.search(written) is None


def test_markdown_is_in_the_language_of_the_page(desk):
    text = exported(desk, "md")
    assert text.startswith("# Can I return a duvet I have unpacked?\n\n## Question · 2026-03-12")
    assert "\n> Can I return a duvet" in text
    assert "Sources:\n\n- Our returns policy\n" in text
    assert text.endswith("Not helpful: =1+1\n")
    assert PLACES.search(text) is None
    with speaking(translations("zh")):
        assert "来源:\n\n- Our returns policy" in exported(desk, "md")


def test_there_is_no_file_of_others_or_of_another_kind(desk):
    [latest, *_] = desk.conversations()
    assert export_conversation(desk, latest.id, "v-bob", "json") is None
    assert export_conversation(desk, "none", OPERATOR, "json") is None
    assert export_conversation(desk, latest.id, OPERATOR, "exe") is None


def test_everything_has_the_addresses_that_were_left_and_they_go_with_it(tmp_path):
    closed = "Sat 3:00-3:01 Europe/Dublin"
    with small_desk(tmp_path / "desk", office_hours=closed) as desk:
        first = desk.hand_off("button", owner="v-ann", text="Is it mended?", email="ann@example.com")
        desk.end_handoff(first.conversation_id, "v-ann")
        again = {"owner": "v-ann", "conversation_id": first.conversation_id, "email": "ann@work.example"}
        desk.hand_off("button", **again)
        desk.hand_off("button", owner="v-bob", text="And mine?", email="bob@example.com")
        handoffs = json.loads("".join(export_everything(desk, "v-ann")))["handoffs"]
        assert [(one["email"], one["state"]) for one in handoffs] == [
            ("ann@example.com", "closed"),
            ("ann@work.example", "left"),
        ]
        assert {one["conversation"] for one in handoffs} == {first.conversation_id}
        desk.erase("v-ann")
        assert desk.handoffs("v-ann") == []
        assert len(desk.handoffs("v-bob")) == 1
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    for address, is_kept in ((b"ann@example.com", False), (b"ann@work.example", False), (b"bob@example.com", True)):
        assert any(address in data for data in files) == is_kept


def whose(client: TestClient) -> str:
    return Identity(None, None).visitor(client.cookies[COOKIE]).owner


def asked_by(site: Site, client: TestClient, question: str) -> str:
    site.desk.belongs("", OPERATOR)  # what the fake desk begins with is the operator's
    for _ in (stream := site.desk.ask(question, owner=whose(client))):
        pass
    return stream.answer.conversation_id


def test_a_visitor_saves_its_own_conversations_only(site):
    ann, bob = site.client(), site.client()
    conversation = asked_by(site, ann, "Where is it?")
    for kind, media_type in (("json", "application/json"), ("csv", "text/csv"), ("md", "text/markdown")):
        path = f"/conversations/{conversation}/export.{kind}"
        reply = ann.get(path)
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith(media_type)
        assert reply.headers["content-disposition"].startswith("attachment; filename=")
        assert reply.headers["cache-control"] == "no-store"
        assert bob.get(path).status_code == 404
        assert "Where is it?" not in bob.get(path).text
    assert ann.get(f"/conversations/{conversation}/export.exe").status_code == 404
    german = bob.get(f"/conversations/{conversation}/export.md", headers={"accept-language": "zh"})
    assert german.text == "没有这段会话。\n"


def test_a_visitor_saves_and_removes_everything(site):
    ann, bob = site.client(), site.client()
    asked_by(site, ann, "Where is it?")
    asked_by(site, bob, "Who is there?")
    saved = ann.get("/my-data").json()
    assert [one["title"] for one in saved["conversations"]] == ["Where is it?"]
    foreign = ann.post("/my-data/delete", headers={"origin": "https://evil.example"})
    assert foreign.status_code == 403
    assert ann.get("/my-data").json() == saved
    owner = whose(ann)
    reply = ann.post("/my-data/delete")
    assert reply.json() == {"conversations": 1, "messages": 2, "feedback": 0}
    assert f"{COOKIE}=" in reply.headers["set-cookie"]
    assert COOKIE not in ann.cookies
    assert ann.get("/my-data").status_code == 401
    assert site.desk.conversations(owner) == []
    assert len(site.desk.conversations(whose(bob))) == 1


def test_a_redacted_question_is_kept_nowhere(tmp_path, caplog):
    private = ("ann@example.com", "13800138000", "4111111111111111")
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages"), redact=True) as desk:
        prompts: list[str] = []
        submit = desk.engine.submit
        desk.engine.submit = lambda request: prompts.append(repr(request)) or submit(request)  # type: ignore[method-assign]
        answer = finish(desk, "How long do returns take? I am ann@example.com, 13800138000, 4111111111111111.")
        desk.feedback(answer.message_id, "down", "mail ann@example.com")
        desk.rename_conversation(answer.conversation_id, "13800138000")
        turns: list[Turn] = desk.turns(answer.conversation_id)
        assert turns[0].text == "How long do returns take? I am [e-mail], [phone], [card]."
        assert turns[1].reason == "mail [e-mail]"
        assert desk.conversations()[0].title == "[phone]"
        assert prompts
        kept = desk.engine.model.tokenizer.decode(
            [
                token
                for step in desk.engine.call(lambda store: [n.step for n in store.device.prefixes.nodes(OPERATOR)])
                for token in step.tokens
            ]
        )
    assert "[card]" in kept
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    for secret in private:
        assert secret not in caplog.text
        assert secret not in kept
        assert not any(secret.encode() in data for data in files)
