"""One desk with all its pages on PostgreSQL: what customers, programs, agents and admins do reaches the database and
comes back; and what they see while the server is away.
"""

import json
import threading
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from argon2 import PasswordHasher
from desk_site import BASE, Site, call
from desks import small_desk, write_pages
from fastapi.testclient import TestClient
from httpx import Response
from waiting import wait_until

from app.access.identity import Keys, new_account
from app.desk.repeating import every_minute, following, syncing
from app.desk.service import Service
from app.storage.conversation_care import Transcripts
from app.storage.database import Database
from app.storage.people import Accounts
from app.support.webhook import WebhookSender
from app.web.server import create_app

ODD = "Größe 退款 \0 \ud83d 😀"
STORED = "Größe 退款 \\x00 \\ud83d 😀"  # what is kept of it, and shown
TOO_LARGE = 2**40  # no row has such a number, and PostgreSQL does not even compare with it


class RealSite(Site):
    def __init__(self, desk: Service) -> None:
        self.desk, self.settings, self.database = desk, desk.settings, desk.database  # type: ignore[assignment]
        self.service, self.folder = desk, desk.settings.data_dir
        self.password = new_account(Accounts(desk.database), "admin", "admin")
        self.token = Keys(desk.database).create("all", ("chat", "documents", "admin"), 10_000)
        self.app = create_app(desk, desk.database, desk.settings)
        self.running = None

    def program(self) -> TestClient:
        client = self.client()
        client.headers["authorization"] = f"Bearer {self.token}"
        return client


@pytest.fixture(scope="module")
def site(tmp_path_factory, postgres):
    folder = tmp_path_factory.mktemp("site")
    more = {
        "widget_origins": ("https://shop.example",),
        "handoff_webhook": "http://127.0.0.1:9/hook",
        "handoff_webhook_secret": "0" * 32,
    }
    cheap = partial(PasswordHasher, time_cost=1, memory_cost=8, parallelism=1)  # real ones take seconds here
    with (
        pytest.MonkeyPatch.context() as patch,
        postgres.database() as url,
        small_desk(folder / "desk", database_url=url, **more) as desk,
    ):
        patch.setattr("app.access.identity.PasswordHasher", cheap)
        desk.ingest([write_pages(folder / "pages")])
        desk.prepare()
        site = RealSite(desk)
        with TestClient(site.app, base_url=BASE) as site.running:
            yield site


def shown(client: TestClient, event: str, data: list[object], session: str = "s", **details: str) -> str:
    return json.dumps(call(client, "", event, data, session, **details), ensure_ascii=False)


def asked(site: RealSite, client: TestClient, question: str) -> str:
    assert question in shown(client, "submit", [question, "", ""])
    return Transcripts(site.database).conversations(limit=1)[0].id


def result(response: Response) -> dict[str, Any]:
    last = json.loads(response.text.splitlines()[-1])
    assert "result" in last, last
    return dict(last["result"])


def test_a_customers_conversations_on_postgres(site):
    ann, bob = site.client(), site.client()
    conversation = asked(site, ann, "How long do RETURNS take, für Große?")
    assert "Returns" in shown(ann, "load", [conversation])
    assert "RETURNS" not in shown(bob, "load", [conversation])
    for words, is_found in (("returns TAKE", True), ("GROẞE returns", True), ("100%_", False)):
        assert ("wd-open" in shown(ann, "find", [""], text=words)) is is_found
    assert "退款" in shown(ann, "rename", [""], id=conversation, title="退款")
    [answer] = [turn for turn in Transcripts(site.database).turns(conversation) if turn.answer is not None]
    call(ann, "", "verdict", [], "s", message=answer.message_id, value="down", reason=ODD)
    [_, judged] = Transcripts(site.database).turns(conversation)
    assert (judged.feedback, judged.reason) == ("down", STORED)
    assert "restore" in shown(ann, "remove", [""], id=conversation)
    assert ann.get(f"/conversations/{conversation}/export.md").status_code == 404
    assert "RETURNS" in shown(ann, "restore", [""], id=conversation)
    for kind in ("json", "csv", "md"):
        assert STORED in ann.get(f"/conversations/{conversation}/export.{kind}").text.replace("\\\\", "\\")
    assert STORED in json.dumps(ann.get("/my-data").json(), ensure_ascii=False).replace("\\\\", "\\")
    assert ann.get(f"/sources/{answer.message_id}/0").status_code == 200
    assert bob.get(f"/sources/{answer.message_id}/0").status_code == 404
    assert ann.get(f"/sources/{answer.message_id}/{TOO_LARGE}").status_code == 404
    assert ann.post("/my-data/delete").json() == {"conversations": 1, "messages": 2, "feedback": 1}
    assert conversation not in {one.id for one in Transcripts(site.database).conversations()}


def test_a_person_takes_over_on_postgres(site):
    customer, admin = site.client(), site.admin()
    conversation = asked(site, customer, "How long do returns take?")
    assert "number 1 in the queue" in shown(customer, "person", [conversation], act="ask", email="")
    assert admin.get("/admin/queue/rows").json()["waiting"] == 1
    [row] = site.service.handoffs(Transcripts(site.database).owner_of(conversation) or "")
    queue = f"/admin/queue/{row.id}"
    assert admin.post(f"{queue}/take").status_code == 200
    assert admin.post(f"{queue}/answer", json={"text": "Thirty days, 退款."}).status_code == 200
    assert "Thirty days, 退款." in shown(customer, "load", [conversation])
    assert admin.post(f"{queue}/close").status_code == 200
    assert admin.get(f"/admin/queue/{TOO_LARGE}").status_code == 404
    assert admin.get(f"/admin/conversations/{conversation}").status_code == 200
    assert conversation in admin.get("/admin/conversations", params={"query": "DAYS 退款"}).text


def test_documents_come_and_go_on_postgres(site, tmp_path):
    admin, program = site.admin(), site.program()
    for text in ("The word is marmalade.", "The word is zeppelin."):
        page = f"# Plans 退款\n\n{text}\n".encode()
        assert result(admin.post("/admin/documents/upload", params={"name": "pläne.md"}, content=page))
    [number] = [one.id for one in site.service.documents() if one.path.endswith("pläne.md")]
    page = admin.get(f"/admin/documents/{number}").text
    assert "zeppelin" in page
    assert "marmalade" not in page
    assert admin.get(f"/admin/documents/{number}", params={"page": TOO_LARGE}).status_code == 200
    assert admin.get(f"/admin/documents/{TOO_LARGE}").status_code == 404
    assert program.delete(f"/v1/documents/{TOO_LARGE}").status_code == 404
    assert program.delete(f"/v1/documents/{number}").status_code == 200
    folder = write_pages(tmp_path / "Ablage Ä")
    saved = {"folder": str(folder), "collection": "Ä", "every_minutes": 60}
    assert result(admin.post("/admin/documents/folders", json=saved))["added"] == 4
    (folder / "stores.txt").unlink()
    assert result(admin.post("/admin/documents/folders/run", json={"folder": str(folder)}))["removed"] == 1
    assert "Ablage Ä" in admin.get("/admin/documents", params={"collection": "Ä", "q": "GIFT"}).text
    assert result(admin.post("/admin/documents/folders/remove", json={"folder": str(folder)}))
    assert result(admin.post("/admin/documents/collections/forget", json={"collection": "Ä"}))
    pair = {"question": f"Is it free? {ODD[:8]}", "answer": "Yes.", "wordings": ["Für wie viel?"]}
    assert result(admin.post("/admin/faq", json=pair))["is_verbatim"]
    assert admin.post("/admin/faq", json={**pair, "id": TOO_LARGE}).status_code == 422
    assert result(admin.post("/admin/faq/delete", json={"id": 1})) == {"id": 1}
    assert [entry[1] for entry in site.audited()][-2:] == ["faq-add", "faq-delete"]


def test_a_program_on_postgres(site):
    program = site.program()
    body = {"model": "warmdesk", "user": "u" * 500, "messages": [{"role": "user", "content": f"Returns? {ODD}"}]}
    sent = json.dumps(body).encode()
    reply = program.post("/v1/chat/completions", content=sent, headers={"content-type": "application/json"})
    assert reply.status_code == 200, reply.text
    its = {"user": body["user"]}
    [listed] = program.get("/v1/conversations", params=its).json()["data"]
    said = program.get(f"/v1/conversations/{listed['id']}", params=its).json()["messages"]
    assert said[0]["content"] == f"Returns? {STORED}"
    verdict = {"message_id": said[1]["id"], "value": "up", **its}
    assert program.post("/v1/feedback", json=verdict).status_code == 200
    assert program.post("/v1/feedback", json={**verdict, "message_id": ODD[:9]}).status_code == 404
    handed = program.post("/v1/handoffs", json={"conversation_id": listed["id"], **its}).json()
    assert handed["state"] == "waiting"
    assert program.delete(f"/v1/handoffs/{listed['id']}", params=its).json()["state"] == "closed"
    assert program.delete(f"/v1/conversations/{listed['id']}", params=its).status_code == 200
    assert program.get(f"/v1/conversations/{listed['id']}", params=its).status_code == 404
    assert "warmdesk_documents 4.0" in program.get("/metrics").text


def test_numbers_and_settings_on_postgres(site):
    admin = site.admin()
    assert "Prompt tokens reused" in admin.get("/admin/engine").text
    assert "Outcomes of questions" in admin.get("/admin/?range=week").text
    for page in ("modules", "modules/memory", "quality?days=3650", "faq?id=99999999999", "search?question=returns"):
        assert admin.get(f"/admin/{page}").status_code == 200, page
    form = {"name": "shop 退款", "scope": ["chat"], "per_minute": str(TOO_LARGE)}
    assert admin.post("/admin/api/keys", data=form).status_code == 409
    assert admin.get("/admin/audit", params={"before": TOO_LARGE}).status_code == 422
    assert admin.post("/admin/settings", data={"greeting": "Grüß Gott 退款"}).status_code == 303
    assert "Grüß Gott 退款" in admin.get("/admin/settings").text


@pytest.fixture
def _often(monkeypatch):
    """What is done again and again is done without a pause."""
    for name in ("TIDY_EVERY_S", "LOOK_EVERY_S", "FOLLOW_EVERY_S"):
        monkeypatch.setattr(f"app.desk.repeating.{name}", 0.01)
    monkeypatch.setattr("app.support.webhook.LOOK_S", 0.01)


def replies(site: RealSite, admin: TestClient, customer: TestClient) -> dict[str, Response]:
    """What everybody who needs the database gets, by the path."""
    program = site.program()
    pages = ("documents", "queue", "queue/rows", "queue/1", "audit", "keys", "quality", "conversations", "modules")
    found = {page: admin.get(f"/admin/{page}") for page in pages}
    for page in ("/my-data", "/conversations/none/export.json", "/sources/none/0"):
        found[page] = customer.get(page)
    found["login"] = customer.post("/admin/login", data={"name": "admin", "password": site.password})
    verdict = {"conversation_id": "", "message_id": "none", "value": "up"}
    found["verdict"] = customer.post("/widget/feedback", json=verdict)
    found["person"] = customer.post("/widget/person", json={"session": "s", "conversation_id": "none"})
    body = {"model": "warmdesk", "messages": [{"role": "user", "content": "Returns?"}]}
    found["completions"] = program.post("/v1/chat/completions", json=body)
    for page in ("/v1/conversations", "/v1/documents", "/metrics"):
        found[page] = program.get(page)
    return found


@pytest.mark.usefixtures("_often")
def test_while_the_server_is_away_everybody_gets_one_line_and_the_log_two_on_postgres(
    site, postgres, monkeypatch, caplog, capfd
):
    desk, admin, customer = site.service, site.admin(), site.client()
    conversation = asked(site, customer, "How long do returns take?")
    tried: Counter[str] = Counter()
    notes = Database._notes

    def counted(database: Database, *, is_there: bool) -> bool:
        tried[threading.current_thread().name] += not is_there
        return notes(database, is_there=is_there)

    monkeypatch.setattr(Database, "_notes", counted)
    assert desk.following is not None
    with ExitStack() as threads:
        threads.enter_context(every_minute(desk.housekeeping))
        threads.enter_context(syncing(desk.synced.run_due, desk.is_ready))
        threads.enter_context(following(desk.following, desk.is_ready))
        threads.enter_context(WebhookSender(desk.database, desk.settings))
        caplog.clear()
        postgres.stop()
        try:
            found = replies(site, admin, customer)
            wait_until(lambda: all(tried[name] > 2 for name in ("housekeeping", "syncing", "following", "webhook")))
            assert {name: reply.status_code for name, reply in found.items()} == dict.fromkeys(found, 503)
            assert {reply.headers["retry-after"] for reply in found.values()} == {"5"}
            for name, reply in found.items():
                line = reply.json()["error"]["message"] if name.startswith(("/v1", "compl")) else reply.text
                assert line.strip().count("\n") == 0
                assert "postgres" not in line
            words = "We cannot answer at the moment. Please try again soon."
            for event, data in (("submit", ["Returns?", "", ""]), ("load", [conversation]), ("retry", [conversation])):
                assert words in shown(customer, event, data)
            assert words in shown(customer, "verdict", [], message="none", value="up", reason="")
            assert words in shown(customer, "person", [conversation], act="ask", email="")
            assert words not in shown(customer, "tick", [conversation, ""])
            assert site.client().get("/readyz").json()["missing"] == ["database"]
            assert site.client().get("/healthz").status_code == 200
        finally:
            postgres.start()
        wait_until(lambda: any("reachable again" in line for line in caplog.messages))
        assert site.client().get("/readyz").status_code == 200
        assert 503 not in {reply.status_code for reply in replies(site, admin, customer).values()}
        assert "Returns" in shown(customer, "load", [conversation])
    lines = [line for line in caplog.messages if "was not sent to the webhook" not in line]
    assert len(lines) == 2, caplog.text
    assert lines[1] == f"{desk.database.name} is reachable again"
    assert not [one for one in caplog.records if one.exc_info]
    assert "Traceback" not in capfd.readouterr().err
