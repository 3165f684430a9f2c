"""The web application with a FakeDesk, for the HTTP tests: clients, logged in or not, and queue events."""

import json
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from fake_desk import FakeDesk
from fastapi.testclient import TestClient
from made_database import put_database
from quick_account import quick_account
from sqlalchemy import delete

from app.access.identity import COOKIE, new_token
from app.domain.settings import Settings
from app.storage.database import open_database
from app.storage.people import Accounts, Audit
from app.storage.tables import AccountRow, AuditRow
from app.web.server import create_app

BASE = "http://127.0.0.1:7860"
HTML = {"accept": "text/html"}


class Site:
    def __init__(self, folder: Path, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.desk = FakeDesk()
        self.settings = Settings(data_dir=folder, **settings)
        put_database(self.settings.database_url)
        self.database = open_database(self.settings.database_url)
        self.password = quick_account(Accounts(self.database), "admin", "admin")
        self.app = create_app(self.desk, self.database, self.settings)
        self.running: TestClient | None = None

    def close(self) -> None:
        self.database.close()

    def forget(self) -> None:
        """As if nothing had been done yet."""
        self.desk.cared.clear()
        with self.database.write() as session:
            session.execute(delete(AuditRow))
            session.execute(delete(AccountRow).where(AccountRow.name != "admin"))

    def client(self, address: str = "10.0.0.1") -> TestClient:
        """A browser of its own (cookies), in the event loop of the running application if there is one."""
        client = TestClient(self.app, base_url=BASE, follow_redirects=False, client=(address, 1))
        client.cookies.set(COOKIE, new_token(), domain="127.0.0.1")
        client.portal = self.running.portal if self.running else None
        return client

    def admin(self) -> TestClient:
        client = self.client()
        assert client.post("/admin/login", data={"password": self.password}).status_code == 303
        return client

    def audited(self) -> list[tuple[str, str, str]]:
        """What the audit log has, oldest first, without the sign-ins: who, action, subject."""
        entries = [(one.who, one.action, one.subject) for one in reversed(Audit(self.database).latest())]
        return [entry for entry in entries if entry[1] != "sign-in"]


EVENTS: WeakKeyDictionary[Any, dict[tuple[str, str], int]] = WeakKeyDictionary()
"""The number of each event of a page, by application: Gradio takes long to make a page's configuration."""


def number_of(client: TestClient, prefix: str, event: str) -> int:
    known = EVENTS.setdefault(client.app, {})
    if (prefix, event) not in known:
        for one in reversed(config_of(client, prefix)["dependencies"]):
            known.update({(prefix, target[1]): one["id"] for target in one["targets"]})
    return known[prefix, event]


def config_of(client: TestClient, prefix: str) -> dict[str, Any]:
    response = client.get(f"{prefix}/config")
    assert response.status_code == 200
    return dict(response.json())


def call(
    client: TestClient, prefix: str, event: str, data: list[object], session: str, **details: str
) -> list[dict[str, Any]]:
    """Sends one event through the queue, as the page does, and gives all messages. details: of the event, which the
    page's script gives.
    """
    body = {
        "fn_index": number_of(client, prefix, event),
        "session_hash": session,
        "data": data,
        "event_data": details or None,
        "trigger_id": None,
    }
    headers = {"content-type": "application/json"}
    joined = client.post(f"{prefix}/gradio_api/queue/join", content=json.dumps(body), headers=headers)
    assert joined.status_code == 200, joined.text
    stream = client.get(f"{prefix}/gradio_api/queue/data", params={"session_hash": session})
    return [json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: ")]
