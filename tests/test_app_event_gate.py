"""What passes to Gradio's queue, and what is kept of it: with the Gradio that is installed."""

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from desk_site import BASE, Site, call, config_of, number_of
from fake_desk import FakeDesk, FakeStream
from fastapi.testclient import TestClient
from starlette.routing import Mount
from starlette.types import Message
from waiting import wait_until

from app.access.identity import COOKIE
from app.domain.settings import Settings
from app.web import event_gate
from app.web.event_gate import MOST_PAGES, MOST_UNHEARD, NOTHING_TO_READ, EventGate

JOIN, DATA = "/gradio_api/queue/join", "/gradio_api/queue/data"


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    left = Settings(data_dir=folder).pages_folder / "left.txt"
    left.parent.mkdir()
    left.write_text("of an event before the last start")
    site = Site(folder)
    with TestClient(site.app, base_url=BASE) as site.running:
        yield site


@pytest.fixture
def site(opened, monkeypatch):
    monkeypatch.setattr(event_gate, "REFUSED_S", 0)
    gate = chat_gate(opened)
    fresh = EventGate(gate._app, gate._kept._blocks)
    monkeypatch.setattr(opened.app.routes[-1], "app", fresh)
    yield opened
    for name in [*fresh._pages]:
        fresh._kept.drop(name)


def chat_gate(site: Site) -> EventGate:
    mounted = site.app.routes[-1]
    assert isinstance(mounted, Mount)
    assert isinstance(mounted.app, EventGate)
    return mounted.app


def an_event(
    client: TestClient, name: str = "load", data: tuple[object, ...] = ("",), page: str = "page"
) -> dict[str, Any]:
    return {"fn_index": number_of(client, "", name), "data": [*data], "session_hash": page}


def kept(site: Site) -> list[int]:
    gate = chat_gate(site)
    queue, shown = gate._kept._blocks._queue, gate._kept._app.state_holder
    return [
        len(gate._pages),
        len(queue.pending_messages_per_session),
        len(queue.pending_event_ids_session),
        len(shown.session_data),
        len(shown.time_last_used),
    ]


FILE = {"path": "PATH", "meta": {"_type": "gradio.FileData"}}


@pytest.mark.parametrize(
    "given",
    [
        {"data": [FILE]},
        {"data": [{"path": "http://127.0.0.1:9/", "meta": {"_type": "gradio.FileData"}}]},
        {"data": [""], "event_data": [FILE]},
    ],
)
def test_no_file_is_opened_that_an_event_names(site, tmp_path, given):
    """Was wrong once: Gradio copied any file, and read a device for ever, in the thread of all answers."""
    secret, pipe = tmp_path / "secret.txt", tmp_path / "pipe"
    secret.write_text("canary")
    os.mkfifo(pipe)  # who opens it waits for ever
    client = site.client()
    for path in (secret, pipe):
        body = an_event(client) | given
        sent = client.post(JOIN, content=json.dumps(body).replace("PATH", str(path)))
        assert (sent.status_code, sent.json()) == (422, {"detail": "This is not an event of this page."})
    assert not [*site.settings.pages_folder.rglob("*.txt")]


def test_without_the_gate_gradio_itself_opens_none(site, tmp_path, monkeypatch):
    """Two locks. Gradio's own check is off in an application that was mounted and not launched."""
    (tmp_path / "secret.txt").write_text("canary")
    gate = chat_gate(site)
    monkeypatch.setattr(EventGate, "__call__", lambda self, *given: gate._app(*given))
    client = site.client()
    body = an_event(client, data=({"path": str(tmp_path / "secret.txt"), "meta": FILE["meta"]},))
    assert client.post(JOIN, json=body).status_code == 200
    assert '"success":false' in client.get(DATA, params={"session_hash": "page"}).text
    assert not [*site.settings.pages_folder.rglob("*.txt")]
    gate._kept.drop("page")


def test_gradio_keeps_files_in_the_data_folder_and_finds_none_there(site):
    """Was wrong once: copies stood in /tmp, for other users to read, and stayed there."""
    assert Path(chat_gate(site)._kept._blocks.GRADIO_CACHE) == site.settings.pages_folder
    assert not [*site.settings.pages_folder.rglob("*.txt")]


@pytest.mark.parametrize(
    ("status", "given"),
    [
        (422, {"data": [1]}),
        (422, {"data": [""] * 17}),
        (422, {"session_hash": "a" * 65}),
        (422, {"session_hash": "../a"}),
        (422, {"fn_index": "1"}),
        (422, {"event_data": {"id": ["a"]}}),
        (413, {"event_data": {"id": "a" * 50_000}}),
        (422, {"event_data": dict.fromkeys("abcdefghi", "")}),
        (404, {"fn_index": 900}),
        (404, {"data": []}),
        (404, {"data": ["", ""]}),
    ],
)
def test_only_events_of_the_page_pass(site, status, given):
    client = site.client()
    assert client.post(JOIN, json=an_event(client) | given).status_code == status
    assert kept(site) == [0] * 5


def test_what_is_no_event_at_all_is_refused(site):
    for body in (b"", b"[]", b"\xff", b"[" * 10_000):
        assert site.client().post(JOIN, content=body).status_code == 422, body


def test_of_a_page_that_was_read_nothing_is_kept(site):
    """Was wrong once: what 1,000 pages showed was kept, up to a megabyte of each."""
    for page in ("one", "two", "one"):
        messages = call(site.client(), "", "submit", ["Can I return a duvet?", "", ""], page)
        assert any(message["msg"] == "process_completed" and message["success"] for message in messages)
    assert kept(site) == [0] * 5


@pytest.mark.parametrize("event", ["open", "remove", "restore", "rename", "find", "verdict", "person", "example"])
def test_an_event_of_which_nothing_is_said_is_no_error_of_ours(site, event, capfd):
    """Was wrong once: each wrote a trace into the log."""
    inputs = next(d for d in config_of(site.client(), "")["dependencies"] if any(t[1] == event for t in d["targets"]))
    messages = call(site.client(), "", event, [None] * len(inputs["inputs"]), "one")
    assert any(message["msg"] == "process_completed" for message in messages)
    assert "Traceback" not in capfd.readouterr().err


def test_what_nobody_reads_is_no_more_than_a_few_events(site):
    """Was wrong once: each unread answer stayed in memory until the desk stopped."""
    client, other = site.client(), site.client()
    sent = [client.post(JOIN, json=an_event(client, page=f"p{number % 3}")) for number in range(MOST_UNHEARD + 3)]
    assert [one.status_code for one in sent] == [200] * MOST_UNHEARD + [429] * 3
    assert sent[-1].headers["retry-after"] == "10"
    assert "wait a moment" in sent[-1].json()["detail"]
    assert other.post(JOIN, json=an_event(other, page="other")).status_code == 200
    assert client.get(DATA, params={"session_hash": "p0"}).text.count('"process_completed"') == 3
    assert client.post(JOIN, json=an_event(client, page="p0")).status_code == 200, "who reads may go on"


def test_what_nobody_reads_is_forgotten(site, monkeypatch):
    monkeypatch.setattr(event_gate, "UNHEARD_S", 0.05)
    client = site.client()
    for page in ("one", "two"):
        assert client.post(JOIN, json=an_event(client, page=page)).status_code == 200
    wait_until(lambda: kept(site) == [0] * 5)
    assert client.get(DATA, params={"session_hash": "one"}).content == NOTHING_TO_READ


def test_the_end_of_reading_is_as_gradio_says_it():
    from gradio.server_messages import CloseStreamMessage

    assert json.loads(NOTHING_TO_READ.removeprefix(b"data: ")) == CloseStreamMessage().model_dump(exclude={"event_id"})


def test_a_visitor_has_so_many_pages(site, monkeypatch):
    monkeypatch.setattr(event_gate, "MOST_UNHEARD", 99)
    client = site.client()
    sent = [client.post(JOIN, json=an_event(client, page=f"p{number}")) for number in range(MOST_PAGES + 1)]
    assert [one.status_code for one in sent] == [200] * MOST_PAGES + [429]
    assert client.post(JOIN, json=an_event(client, page="p0")).status_code == 200


def test_visitors_at_an_address_share_what_nobody_reads(site, monkeypatch):
    monkeypatch.setattr(event_gate, "MOST_UNHEARD", 2)
    statuses = []
    for number in range(12):
        client = site.client("2001:db8::7")
        statuses.append(client.post(JOIN, json=an_event(client, page=f"p{number}")).status_code)
    assert statuses == [200] * 10 + [429] * 2
    elsewhere = site.client("2001:db8:1::7")
    assert elsewhere.post(JOIN, json=an_event(elsewhere, page="elsewhere")).status_code == 200


def test_events_have_a_rate(site, monkeypatch):
    client = site.client()
    monkeypatch.setattr(chat_gate(site), "_visitors", event_gate.Rate(0.001, 2))
    for expected in (200, 200, 429):
        assert client.post(JOIN, json=an_event(client, page="one")).status_code == expected
        client.get(DATA, params={"session_hash": "one"})


def test_a_page_is_of_whoever_sent_its_first_event(site):
    """Was wrong once: whoever knew a page's name read along."""
    ann, bob = site.client(), site.client()
    assert ann.post(JOIN, json=an_event(ann, page="hers")).status_code == 200
    assert bob.post(JOIN, json=an_event(bob, page="hers")).status_code == 404
    assert bob.get(DATA, params={"session_hash": "hers"}).content == NOTHING_TO_READ
    assert "process_completed" in ann.get(DATA, params={"session_hash": "hers"}).text
    for given in ({"session_hash": "hers"}, {}, {"session_hash": "\0"}):
        assert ann.get(DATA, params=given).content == NOTHING_TO_READ


def test_a_page_is_read_from_only_while_there_is_something(site):
    """Was wrong once: a second connection to a page stayed open for ever."""
    client = site.client()
    site.desk.piece_s = 0.05
    sent = client.post(JOIN, json=an_event(client, "submit", ("Can I return a duvet?", "", "")))
    assert sent.status_code == 200
    with ThreadPoolExecutor(3) as pool:
        read = [pool.submit(client.get, DATA, params={"session_hash": "page"}) for _ in range(3)]
        texts = [one.result(timeout=30).text for one in read]
    assert all("close_stream" in text for text in texts)
    assert sum("Can I return a duvet?" in text for text in texts) >= 1
    site.desk.piece_s = 0.0
    assert kept(site) == [0] * 5


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_page_is_forgotten_when_both_of_its_readers_left(site, monkeypatch, is_begun):
    """Was wrong once: Gradio drops a page's messages when a reader leaves, and failed when the next one did."""
    client, gate = site.client(), chat_gate(site)
    monkeypatch.setattr(site.desk, "piece_s", 0.05)
    monkeypatch.setattr(event_gate, "UNHEARD_S", 0.05)
    if not is_begun:
        monkeypatch.setattr(gate._kept._blocks._queue, "active_jobs", [])
    sent = client.post(JOIN, json=an_event(client, "submit", ("Can I return a duvet?", "", "")))
    assert sent.status_code == 200
    begun = list[Message]()

    async def read(leaves: asyncio.Event) -> None:
        async def receive() -> Message:
            await leaves.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            begun.append(message)

        cookie = f"{COOKIE}={client.cookies[COOKIE]}".encode()
        headers = [(b"host", BASE.partition("://")[2].encode()), (b"cookie", cookie)]
        scope = {"type": "http", "method": "GET", "scheme": "http", "path": DATA, "query_string": b"session_hash=page"}
        await site.app({**scope, "root_path": "", "headers": headers, "client": ("10.0.0.1", 1)}, receive, send)

    async def run() -> None:
        page, leaves = gate._pages["page"], [asyncio.Event() for _ in range(2)]
        readers = [asyncio.create_task(read(one)) for one in leaves]
        while sum(message["type"] == "http.response.start" for message in begun) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # by then both wait for what Gradio says
        for one, reader in zip(leaves, readers, strict=True):
            assert gate._pages["page"] is page, "somebody reads it"
            one.set()
            await reader
        while kept(site) != [0] * 5:
            await asyncio.sleep(0.02)

    client.portal.call(asyncio.wait_for, run(), 30)


class SlowToEnd(FakeStream):
    """Speaks without an end, and when its reader has left takes as long as `may_end` is not set."""

    began, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[str]:
        try:
            while True:
                yield "word "
                self.began.set()
        finally:
            self.may_end.wait(60)
            self.has_ended.set()


def test_nobody_waits_for_the_answer_of_a_browser_that_left(site, monkeypatch):
    """Was wrong once: the answer was ended on the event loop, which waited for the engine and the database."""
    monkeypatch.setattr(FakeDesk, "ask", lambda desk, question, **_: SlowToEnd(desk, "c", "o", question))
    client, of_gradio = site.client(), TestClient(chat_gate(site)._app, base_url=BASE)  # which no browser reaches
    of_gradio.portal = client.portal
    event = an_event(client, "submit", ("How long?", "", ""))
    with ThreadPoolExecutor() as pool:
        event["event_id"] = client.post(JOIN, json=event).json()["event_id"]
        pool.submit(lambda: client.get(DATA, params={"session_hash": "page"}))
        assert SlowToEnd.began.wait(30)
        left = pool.submit(lambda: of_gradio.post("/gradio_api/cancel", json=event))
        assert left.result(timeout=30).json() == {"success": True}
        alive = pool.submit(lambda: site.client().get("/healthz"))
        assert alive.result(timeout=30).status_code == 200
        assert not SlowToEnd.has_ended.is_set()
        SlowToEnd.may_end.set()
        assert SlowToEnd.has_ended.wait(30), "it is ended all the same"
