"""A browser that leaves in the middle of an answer: nobody else waits for what has to be finished then."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from desk_site import BASE, Site, config_of
from fake_desk import FakeDesk, FakeStream
from fastapi.testclient import TestClient


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


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    with TestClient(site.app, base_url=BASE) as site.running:
        yield site
        SlowToEnd.may_end.set()
    site.close()


def gradio(site: Site) -> TestClient:
    """A client of Gradio's own application of the chat, which no browser reaches."""
    mounted: Any = site.app.routes[-1]
    client = TestClient(mounted.app._app, base_url=BASE)
    client.portal = site.running.portal if site.running else None
    return client


def test_nobody_waits_for_the_answer_of_a_browser_that_left(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Was wrong once: the answer was ended on the event loop, which waited for the engine and the database."""
    monkeypatch.setattr(FakeDesk, "ask", lambda desk, question, **_: SlowToEnd(desk, "c", "o", question))
    client = site.client()
    submit = next(d for d in config_of(client, "")["dependencies"] if any(t[1] == "submit" for t in d["targets"]))
    event = {"fn_index": submit["id"], "session_hash": "one"}
    body = {**event, "data": ["How long?", *[""] * (len(submit["inputs"]) - 1)], "event_data": None, "trigger_id": None}
    with ThreadPoolExecutor() as pool:
        event["event_id"] = client.post("/gradio_api/queue/join", json=body).json()["event_id"]
        pool.submit(lambda: client.get("/gradio_api/queue/data", params={"session_hash": "one"}))
        assert SlowToEnd.began.wait(30)
        left = pool.submit(lambda: gradio(site).post("/gradio_api/cancel", json=event))
        assert left.result(timeout=30).json() == {"success": True}
        alive = pool.submit(lambda: site.client().get("/healthz"))
        assert alive.result(timeout=30).status_code == 200
        assert not SlowToEnd.has_ended.is_set()
        SlowToEnd.may_end.set()
        assert SlowToEnd.has_ended.wait(30), "it is ended all the same"
