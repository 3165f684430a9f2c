"""A desk with tiny models, served on a free port with all its routes, and clients that talk to it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn
from desks import small_desk, write_pages
from openai import DefaultHttpxClient, OpenAI
from waiting import wait_until

from app.access.identity import Keys
from app.desk.service import Service
from app.web.serve import bind
from app.web.server import create_app

ALL = ("chat", "documents", "admin")


@dataclass(frozen=True, slots=True)
class ApiSite:
    """url: without a path. token: of a key with all scopes."""

    url: str
    desk: Service
    keys: Keys
    token: str

    def openai(self, token: str | None = None) -> OpenAI:
        """The official client; it does not try again."""
        token = self.token if token is None else token
        http = DefaultHttpxClient(trust_env=False)
        return OpenAI(api_key=token, base_url=f"{self.url}/v1", max_retries=0, http_client=http)

    def http(self, token: str | None = None, **headers: str) -> httpx.Client:
        """A plain client; token "" sends none."""
        token = self.token if token is None else token
        sent = {**({"authorization": f"Bearer {token}"} if token else {}), **headers}
        return httpx.Client(base_url=self.url, headers=sent, trust_env=False, timeout=60)


@contextmanager
def served_api(folder: Path) -> Iterator[ApiSite]:
    """Four pages, ready to answer."""
    with small_desk(folder / "desk", questions_per_minute=60, answers_at_once=2) as desk:
        desk.ingest([write_pages(folder / "pages")])
        desk.prepare()
        keys = Keys(desk.database)
        token = keys.create("all", ALL, per_minute=10_000)
        app = create_app(desk, desk.database, desk.settings)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        with bind("127.0.0.1", 0) as listener:
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
            thread.start()
            wait_until(lambda: server.started)
            try:
                yield ApiSite(f"http://127.0.0.1:{listener.getsockname()[1]}", desk, keys, token)
            finally:
                server.should_exit = True
                thread.join(20)
