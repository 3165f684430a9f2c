"""The webhook: what it is told, how that is signed, that it is tried again and not sent elsewhere."""

import json
import re
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from stored_answers import add_turn

from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.storage.conversation_care import ConversationCare
from app.storage.database import Database, open_database
from app.storage.handoffs import CLAIMED, Deliveries
from app.storage.history import History
from app.storage.tables import DeliveryRow
from app.support.handoff import AgentQueue, HandingOff
from app.support.webhook import PAUSES_S, SIGNATURE, WebhookSender, signature

SECRET = "0123456789abcdef0123456789abcdef"
NOW = datetime(2026, 3, 9, 10, 0, tzinfo=UTC)
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""Of tests that ask little of the database."""


class Receiver(HTTPServer):
    """Keeps what it is sent, and answers with `status`; a redirect leads to its own /elsewhere."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.got: list[tuple[str, str, bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/hook"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Receiver)
        body = self.rfile.read(int(self.headers["content-length"]))
        server.got.append((self.path, self.headers[SIGNATURE], body))
        self.send_response(server.status)
        self.send_header("location", "/elsewhere")
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        pass


class Desk:
    def __init__(self, folder: Path, url: str | None, database_url: str | None = None) -> None:
        settings = Settings(
            data_dir=folder, handoff_webhook=url, handoff_webhook_secret=SECRET, public_url="https://help.example.com"
        )
        self.now = NOW
        self.database: Database = open_database(database_url or settings.database_url)
        self.history = History(self.database)
        self.customers = HandingOff(self.database, self.history, settings, now=lambda: self.now)
        self.agents = AgentQueue(self.database, settings, now=lambda: self.now)
        self.sender = WebhookSender(self.database, settings, now=lambda: self.now)

    def hand_off(self) -> int:
        conversation = self.history.start_conversation("Where is my parcel?", "v-ann")
        add_turn(self.history, conversation)
        return self.customers.hand_off("button", owner="v-ann", conversation_id=conversation).id

    def state(self) -> tuple[str, int, str]:
        with self.database.read() as session:
            [row] = session.query(DeliveryRow).all()
            return row.state, row.tries, row.problem


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.shutdown()
    receiver.server_close()


@pytest.fixture
def desk(tmp_path, receiver, database_url):
    desk = Desk(tmp_path, receiver.url, database_url)
    with closing(desk.database):
        yield desk


@pytest.fixture
def verified(monkeypatch):
    """The check that docs/handoff.md shows to receivers, at the time of the tests."""
    page = (Path(__file__).parent.parent / "docs" / "handoff.md").read_text()
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example[1], names)
    monkeypatch.setattr(names["time"], "time", lambda: NOW.timestamp())
    check: Callable[[str, str, bytes], bool] = names["is_from_warmdesk"]
    return check


def test_every_change_is_told_in_order_and_signed(desk, receiver, verified):
    number = desk.hand_off()
    desk.now += timedelta(seconds=5)
    desk.agents.take(number, "Ann")
    desk.now += timedelta(seconds=5)
    desk.agents.close(number)
    assert desk.sender.send_due() == 3
    assert desk.sender.send_due() == 0
    bodies = [json.loads(body) for _, _, body in receiver.got]
    assert [body["type"] for body in bodies] == ["handoff.requested", "handoff.taken", "handoff.closed"]
    assert bodies[0]["handoff"]["reason"] == "button"
    assert bodies[0]["handoff"]["url"] == f"https://help.example.com/admin/queue/{number}"
    assert "parcel" not in str(bodies)  # nothing of what was said
    for _, header, body in receiver.got:
        assert header.startswith(f"t={int(desk.now.timestamp())},v1=")
        assert verified(SECRET, header, body)
        assert not verified(SECRET, header, body + b" ")
        assert not verified("x" * 32, header, body)
        assert not verified(SECRET, header.replace("t=1", "t=2"), body)
    late = signature(SECRET, int(NOW.timestamp()) - 600, body)
    assert not verified(SECRET, late, body)  # recorded and sent again


def test_a_failure_is_tried_again_later_and_not_for_ever(desk, receiver):
    desk.hand_off()
    receiver.status = 503
    for number, pause_s in enumerate(PAUSES_S, 1):
        assert desk.sender.send_due() == 0
        assert desk.state() == ("due", number, "status 503")
        assert desk.sender.send_due() == 0  # not before its time
        assert len(receiver.got) == number
        desk.now += timedelta(seconds=pause_s)
    assert desk.sender.send_due() == 0
    assert desk.state() == ("failed", len(PAUSES_S) + 1, "status 503")
    assert len({json.loads(body)["id"] for _, _, body in receiver.got}) == 1  # receivers know it again


@ON_SQLITE
def test_a_late_success_ends_it(desk, receiver):
    desk.hand_off()
    receiver.status = 500
    desk.sender.send_due()
    receiver.status = 204
    desk.now += timedelta(seconds=PAUSES_S[0])
    assert desk.sender.send_due() == 1
    assert desk.state() == ("delivered", 2, "")


@ON_SQLITE
def test_neither_an_odd_error_nor_a_clock_that_is_set_back_stops_it(desk, receiver, monkeypatch):
    def odd(*given: object, **named: object) -> None:
        raise ValueError("an odd address")

    desk.hand_off()
    with monkeypatch.context() as patch:
        patch.setattr(desk.sender._client, "post", odd)
        desk.sender.send_due()
    assert desk.state() == ("due", 1, "an odd address")
    desk.now -= timedelta(days=300)
    assert desk.sender.send_due() == 1


@ON_SQLITE
def test_redirects_are_not_followed(desk, receiver):
    desk.hand_off()
    receiver.status = 307
    assert desk.sender.send_due() == 0
    assert [path for path, _, _ in receiver.got] == ["/hook"]
    assert desk.state()[0] == "due"


def test_nobody_there_is_a_failure_like_others(tmp_path):
    desk = Desk(tmp_path, "http://127.0.0.1:9/hook")
    with closing(desk.database):
        desk.hand_off()
        assert desk.sender.send_due() == 0
        state, tries, problem = desk.state()
        assert (state, tries) == ("due", 1)
        assert problem


def test_without_an_address_nothing_is_noted(tmp_path):
    desk = Desk(tmp_path, None)
    with closing(desk.database), desk.sender:
        desk.hand_off()
        with desk.database.read() as session:
            assert session.query(DeliveryRow).count() == 0


@ON_SQLITE
def test_a_deleted_conversation_is_not_told_of(desk, receiver):
    number = desk.hand_off()
    desk.agents.case(number)
    ConversationCare(desk.database).erase("v-ann")
    assert desk.sender.send_due() == 0
    assert receiver.got == []


def test_two_desks_send_nothing_twice(desk, receiver):
    number = desk.hand_off()
    desk.agents.take(number, "ann")
    claimed = Deliveries(desk.database).claim(desk.now)  # by a desk that is sending it, or was killed
    assert claimed is not None
    assert (desk.sender.send_due(), desk.sender.send_due()) == (1, 0)
    desk.now += CLAIMED
    assert desk.sender.send_due() == 1
    sent = [json.loads(body)["type"] for _, _, body in receiver.got]
    assert sorted(sent) == ["handoff.requested", "handoff.taken"]


@ON_SQLITE
def test_the_thread_sends_by_itself(desk, receiver, monkeypatch):
    monkeypatch.setattr("app.support.webhook.LOOK_S", 0.01)
    arrived = threading.Event()
    send = desk.sender.send_due

    def sending() -> int:
        if sent := send():
            arrived.set()
        return sent

    monkeypatch.setattr(desk.sender, "send_due", sending)
    with desk.sender:
        desk.hand_off()
        assert arrived.wait(30)
    assert len(receiver.got) == 1


def test_an_address_needs_a_secret(tmp_path):
    desk = Desk(tmp_path, None)
    with closing(desk.database), pytest.raises(DeskError) as error:
        WebhookSender(desk.database, Settings(data_dir=tmp_path, handoff_webhook="https://example.com/hook"))
    assert "handoff_webhook_secret" in str(error.value)
