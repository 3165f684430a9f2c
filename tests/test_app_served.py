"""A served desk over real connections: its sources, and how it goes on without its engine and ends.

What each part does is in its own tests; `make flood` measures a visitor at full speed.
"""

import os
import re
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from desks import serve_small, small_desk, write_pages
from engine_processes import fork_engines
from forked import Forked, serve_forks
from waiting import wait_until

from app.access.identity import COOKIE, new_token
from app.storage.data_folder import lock_data_folder

CANARY = "canary-7c211433f0207159"
JOIN, DATA = "/gradio_api/queue/join", "/gradio_api/queue/data"


def serve_desk(folder: Path, pages: Path, temporary: Path, model: Path) -> None:
    serve_forks()
    fork_engines(pytest.MonkeyPatch())
    os.environ["TMPDIR"], tempfile.tempdir = str(temporary), None
    settings: dict[str, Any] = {"port": 0, "model": str(model), "threads": 1, "answer_mode": "quote"}
    with lock_data_folder(folder, "warmdesk serve"), small_desk(folder, **settings) as service:
        service.ingest([pages])
        serve_small(service)


@dataclass(frozen=True)
class Served:
    address: str
    folder: Path
    temporary: Path
    pages: Path
    process: Forked

    def visitor(self) -> httpx.Client:
        cookies = httpx.Cookies()
        cookies.set(COOKIE, new_token(), domain="127.0.0.1")
        return httpx.Client(base_url=self.address, cookies=cookies, timeout=60, headers={"origin": self.address})


@pytest.fixture(scope="module")
def desk(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    pages, temporary = write_pages(folder / "pages"), folder / "temporary"
    temporary.mkdir()
    (folder / "desk").mkdir()
    (folder / "desk" / "models").symlink_to(tiny_folder.parent)  # compiled once
    process = Forked(serve_desk, folder / "desk", pages, temporary, tiny_folder)
    try:
        address = process.stdout.readline().split()[1].rstrip("/")
        yield Served(address, folder / "desk", temporary, pages, process)
    finally:
        process.kill()
        process.wait()


def an_event(client: httpx.Client, name: str, *data: object, page: str) -> dict[str, Any]:
    events = client.get("/config").json()["dependencies"]
    number = next(one["id"] for one in events if any(target[1] == name for target in one["targets"]))
    return {"fn_index": number, "session_hash": page, "data": [*data], "event_data": None, "trigger_id": None}


def test_a_link_in_the_place_of_a_document_is_not_followed(desk, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text(CANARY)
    with desk.visitor() as client:
        client.post(JOIN, json=an_event(client, "submit", "How long do returns take?", "", "", page="ask"))
        said = client.get(DATA, params={"session_hash": "ask"}).text
        cited = sorted(set(re.findall(r"/sources/\w+/\d+", said)))
        assert client.get(cited[0]).status_code == 200
        for page in [*desk.pages.iterdir()]:
            page.unlink()
            page.symlink_to(secret)
        for source in cited:
            answer = client.get(source)
            assert (answer.status_code, CANARY in answer.text) == (404, False)


def test_it_goes_on_without_its_engine_and_leaves_no_process(desk):
    """The last test: it stops the desk."""
    server = psutil.Process(desk.process.pid)
    [first] = server.children()[0].children()  # of its fork server
    with desk.visitor() as client:
        first.kill()
        wait_until(lambda: client.get("/readyz").status_code == 503)
        wait_until(lambda: client.get("/readyz").status_code == 200)
    [second] = server.children()[0].children()
    desk.process.send_signal(signal.SIGTERM)
    said = desk.process.stderr.read()  # to its end: the child has closed it, too
    assert desk.process.wait(60) == 0
    assert "the engine's process has ended (killed by SIGKILL)" in said
    assert "Traceback" not in said
    assert not second.is_running()
