"""A served desk over real connections: what one visitor may do to it, and how it goes on without its engine and ends.

What each part does is in its own tests; `make flood` measures a visitor at full speed.
"""

import json
import os
import re
import signal
import socket
import tempfile
from collections.abc import Iterator
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
from app.access.limits import FREE_FAILURES
from app.storage.data_folder import lock_data_folder
from app.web.pacing import FAILED, IN_A_ROW

SECRET, CANARY = "s" * 40, "canary-7c211433f0207159"
JOIN, DATA = "/gradio_api/queue/join", "/gradio_api/queue/data"


def serve_desk(folder: Path, pages: Path, temporary: Path, model: Path) -> None:
    serve_forks()
    fork_engines(pytest.MonkeyPatch())
    os.environ["TMPDIR"], tempfile.tempdir = str(temporary), None
    settings: dict[str, Any] = {"port": 0, "visitor_secret": SECRET, "trusted_proxies": ("127.0.0.1",)}
    settings |= {"widget_origins": ("https://shop.example",), "model": str(model), "threads": 1, "answer_mode": "quote"}
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


def files_with(words: str, *folders: Path) -> list[Path]:
    files = (file for folder in folders for file in folder.rglob("*"))
    return [file for file in files if file.is_file() and words.encode() in file.read_bytes()]


def test_no_event_opens_a_device_a_file_or_an_address(desk, tmp_path):
    """Were wrong once: the first ended the desk, the second copied the file, the third fetched the address."""
    secret = tmp_path / "secret.txt"
    secret.write_text(CANARY)
    with desk.visitor() as client, socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        for path in ("/dev/zero", str(secret), f"http://127.0.0.1:{listener.getsockname()[1]}/"):
            named = {"path": path, "meta": {"_type": "gradio.FileData"}}
            assert client.post(JOIN, json=an_event(client, "load", named, page="a")).status_code == 422
        with pytest.raises(TimeoutError):
            listener.accept()
        assert client.get("/healthz").json() == {"status": "ok"}
    assert files_with(CANARY, desk.folder, desk.temporary) == []
    assert [*desk.temporary.iterdir()] == []


LONG = "\ufdfa" * 340_000
"""A megabyte. Other routes are tried in `test_app_lengths`."""


@pytest.mark.parametrize(
    ("path", "sent"), [(JOIN, {"fn_index": 0, "session_hash": "a", "data": [LONG]}), ("/typing", {"text": LONG})]
)
def test_a_text_of_a_megabyte_is_refused_unread(desk, path, sent):
    """Was wrong once: four of them took 14 s of the time of all pages."""
    body = json.dumps(sent, ensure_ascii=False).encode()
    with desk.visitor() as client:
        refused = client.post(path, content=body, headers={"content-type": "application/json"})
    assert refused.status_code in (413, 422), refused.text[:200]
    assert len(refused.content) < 1000, "it is not sent back"


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


def test_all_addresses_of_a_network_are_one(desk):
    """Was wrong once: a host with IPv6 had no limit at all."""

    def try_password(address: str) -> int:
        with desk.visitor() as client:
            headers = {"x-forwarded-for": address}
            return client.post("/admin/login", data={"password": "wrong"}, headers=headers).status_code

    tries = [try_password(f"2001:db8::{number:x}") for number in range(FREE_FAILURES + 1)]
    assert tries == [401] * FREE_FAILURES + [429]
    assert try_password("2001:db8:0:1::1") == 401


def test_of_gradio_a_visitor_reaches_what_the_list_says(desk):
    listed = (Path(__file__).parent / "gradio_routes.txt").read_text().splitlines()
    closed = [line.split(" ")[1:] for line in listed if line.startswith("closed")]
    assert len(closed) > 50
    for few in batched(closed, IN_A_ROW // FAILED):  # more of them that fail, and a visitor has to wait
        with desk.visitor() as client:
            for method, path in few:
                status = client.request(method, path, headers={"accept": "*/*"}).status_code
                assert status == 404, (method, path)
            client.cookies.clear()
            assert client.post(JOIN, json={}).status_code == 401


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


def batched(many: list[list[str]], size: int) -> Iterator[list[list[str]]]:
    return (many[first : first + size] for first in range(0, len(many), size))
