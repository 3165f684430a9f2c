"""The web application with a FakeDesk, for the HTTP tests: clients, logged in or not, and queue events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fake_desk import FakeDesk
from fastapi.testclient import TestClient

from app.storage.database import open_database
from app.web.passwords import reset_password
from app.web.server import create_app

BASE = "http://127.0.0.1:7860"
HTML = {"accept": "text/html"}


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.password = reset_password(folder)
        self.desk = FakeDesk()
        self.database = open_database(f"sqlite:///{folder}/desk.sqlite3")
        self.app = create_app(self.desk, folder, self.database)
        self.running: TestClient | None = None

    def close(self) -> None:
        self.database.close()

    def client(self, address: str = "10.0.0.1") -> TestClient:
        """A browser of its own (cookies), in the event loop of the running application if there is one."""
        client = TestClient(self.app, base_url=BASE, follow_redirects=False, client=(address, 1))
        client.portal = self.running.portal if self.running else None
        return client

    def admin(self) -> TestClient:
        client = self.client()
        assert client.post("/admin/login", data={"password": self.password}).status_code == 303
        return client


def config_of(client: TestClient, prefix: str) -> dict[str, Any]:
    response = client.get(f"{prefix}/config")
    assert response.status_code == 200
    return dict(response.json())


def call(client: TestClient, prefix: str, event: str, data: list[object], session: str) -> list[dict[str, Any]]:
    """Sends one event through the queue, as the page does, and gives all messages."""
    dependency = next(
        d for d in config_of(client, prefix)["dependencies"] if any(target[1] == event for target in d["targets"])
    )
    body = {
        "fn_index": dependency["id"],
        "session_hash": session,
        "data": data,
        "event_data": None,
        "trigger_id": None,
    }
    joined = client.post(f"{prefix}/gradio_api/queue/join", json=body)
    assert joined.status_code == 200, joined.text
    stream = client.get(f"{prefix}/gradio_api/queue/data", params={"session_hash": session})
    return [json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: ")]
