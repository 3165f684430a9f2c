"""Logs: one JSON object a line, an id for each request in all it logs, and nothing that customers write."""

import asyncio
import json
import logging
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from desk_site import BASE, Site, call
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.types import Receive, Scope, Send

from app.api.chat import RunningAnswer
from app.cli.options import fail
from app.domain.logs import OfRequest, Recurring, of_request, request_id, say
from app.web.document_routes import events
from app.web.middleware import Opening
from app.web.serve import DeskServer, RequestLog
from cache.engine.log_lines import JsonLines, TextLines, write_log

SECRET = "my card is 4111"


class Lines(logging.Handler):
    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(formatter)
        self.addFilter(OfRequest())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    @property
    def found(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def logged():
    handler, root = Lines(JsonLines()), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    logging.getLogger("app").setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    logging.getLogger("app").setLevel(logging.NOTSET)
    root.setLevel(level)


def test_a_record_is_one_json_object(logged):
    log = logging.getLogger("app.test")
    with of_request("r-1"):
        log.warning("two lines:\n%s of %d", "naïve", 3, extra={"status": 200, "path": Path("/a")})
    log.info("outside")
    first, second = logged.found
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first.pop("time"))
    assert first == {
        **{"level": "warning", "logger": "app.test", "message": "two lines:\nnaïve of 3"},
        **{"request_id": "r-1", "status": 200, "path": "/a"},
    }
    assert "request_id" not in second
    assert [line.count("\n") for line in logged.lines] == [0, 0]


@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()])
def test_exceptions_that_quote_are_named_without_their_message(formatter):
    handler = Lines(formatter)
    log = logging.Logger("app.test")
    log.addHandler(handler)
    try:
        try:
            int(SECRET)
        except ValueError as error:
            log.warning("not a number: %s", error)
            raise RuntimeError("out of memory") from error
    except RuntimeError:
        log.exception("it failed")
    try:
        {}[SECRET]
    except KeyError:
        log.exception("it failed")
    text = "\n".join(handler.lines)
    assert SECRET not in text
    assert "not a number: ValueError" in text
    assert text.index("test_app_logs.py") < text.index("RuntimeError: out of memory")
    assert "KeyError" in text


def test_the_text_names_the_request():
    handler = Lines(TextLines())
    log = logging.Logger("app.test")
    log.addHandler(handler)
    log.warning("hello")
    with of_request("r-2"):
        log.warning("hello")
    assert handler.lines == ["WARNING app.test: hello", "WARNING app.test: hello [request r-2]"]


def test_what_is_said_is_a_plain_line_or_a_record(logged, capsys):
    say("it opens")
    assert logged.found[0] | {"time": ""} == {"time": "", "level": "info", "logger": "app", "message": "it opens"}
    assert capsys.readouterr().err == ""
    logged.setFormatter(TextLines())
    say("it opens")
    say("it is open to all", logging.WARNING)
    say("it failed", logging.ERROR)
    assert capsys.readouterr().err == "it opens\nwarning: it is open to all\nerror: it failed\n"


@pytest.fixture
def client():
    app = FastAPI()

    @app.get("/here/{rest:path}")
    async def here(rest: str) -> str:
        return request_id()

    @app.get("/pool")
    def pool() -> str:
        logging.getLogger("app.test").warning("in a thread")
        return request_id()

    @app.get("/answer")
    async def answer() -> list[str]:
        return [piece async for piece in RunningAnswer(lambda: _Said())]

    @app.get("/events")
    async def event() -> Any:
        return events(lambda progress: {"id": request_id()})

    @app.get("/broken")
    def broken() -> None:
        raise ValueError(SECRET)

    @app.get("/healthz")
    def healthz() -> str:
        return "ok"

    return TestClient(RequestLog(app), base_url=BASE, raise_server_exceptions=False)


class _Said:
    answer = None

    def __iter__(self) -> Iterator[str]:
        yield request_id()

    def cancel(self) -> None:
        pass


def test_a_sane_id_is_kept_and_any_other_replaced(client):
    for given in ("abc", "0af7651916cd43dd8448eb211c80319c", "a.b:c-d_e", "x" * 100):
        answer = client.get("/here/", headers={"x-request-id": given})
        assert (answer.headers["x-request-id"], answer.json()) == (given, given)
    made = set()
    for given in ("", "-a", "a b", "x" * 101, "a\tb", 'a"b', "<a>", "é".encode("latin-1")):
        answer = client.get("/here/", headers={b"x-request-id": given if isinstance(given, bytes) else given.encode()})
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
        made.add(answer.json())
    assert len(made) == 8


@pytest.mark.parametrize("path", ["/here/", "/pool", "/answer", "/events"])
def test_threads_of_a_request_know_it(client, path):
    assert "r-7" in client.get(path, headers={"x-request-id": "r-7"}).text
    assert request_id() == ""


def test_the_line_of_a_request(client, logged):
    client.get(f"/absent/a%0Ab?q={SECRET}", headers={"x-request-id": "r-8"})
    client.get("/pool", headers={"x-request-id": "r-9"})
    client.get("/healthz")
    line, thread, after, health = (one for one in logged.found if one["logger"].startswith("app"))
    assert line.pop("milliseconds") >= 0
    assert line["message"].startswith("GET /absent/a%0Ab 404 ")
    assert {key: line[key] for key in ("level", "logger", "request_id", "method", "path", "status")} == {
        **{"level": "info", "logger": "app.web.request_log", "request_id": "r-8"},
        **{"method": "GET", "path": "/absent/a%0Ab", "status": 404},
    }
    assert (thread["message"], thread["request_id"], after["request_id"]) == ("in a thread", "r-9", "r-9")
    assert health["level"] == "debug"
    assert SECRET not in "".join(logged.lines)


def test_a_request_that_fails_has_its_line(client, logged):
    assert client.get("/broken").status_code == 500
    assert [one["status"] for one in logged.found if one["logger"] == "app.web.request_log"] == [500]
    assert SECRET not in "".join(logged.lines)


def test_a_served_desk_gives_ids_while_it_opens():
    app = DeskServer(Opening(lambda: ["models"]), lambda: None).config.app
    answer = TestClient(app, base_url=BASE).get("/readyz", headers={"x-request-id": "r-3"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (503, "r-3")


def test_a_request_that_a_stopped_desk_gives_up_is_told_to_come_again():
    async def stopped(scope: Scope, receive: Receive, send: Send) -> None:
        raise asyncio.CancelledError  # what uvicorn's end of a task looks like from here

    client = TestClient(RequestLog(stopped), base_url=BASE)
    answer = client.post("/v1/documents", headers={"x-request-id": "r-5"})
    assert (answer.status_code, answer.headers["retry-after"], answer.headers["x-request-id"]) == (503, "5", "r-5")
    assert answer.json()["error"]["code"] == "unavailable"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = Site(tmp_path_factory.mktemp("site"))
    made.app = RequestLog(made.app)  # type: ignore[assignment]
    with TestClient(made.app, base_url=BASE) as running:
        made.running = running
        yield made
    made.close()


def test_errors_of_the_api_name_the_request(site):
    answer = site.client().get("/v1/models", headers={"x-request-id": "r-4"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (403, "r-4")
    assert answer.json()["error"]["request_id"] == "r-4"


@pytest.mark.parametrize("question", ["crash", f"{SECRET}?"])
def test_what_a_customer_asks_on_the_page_is_in_no_line(site, logged, question):
    client = site.client()
    client.headers["x-request-id"] = "r-5"
    asking = site.desk.ask

    def failing(text: str, **options: Any) -> Any:
        logging.getLogger("app.test").warning("asked")
        if text == "crash":
            raise KeyError(SECRET)
        return asking(text, **options)

    site.desk.ask = failing  # type: ignore[method-assign]
    call(client, "", "submit", [question, "", ""], "session")
    site.desk.ask = asking  # type: ignore[method-assign]
    ours = [one for one in logged.found if one["logger"] in ("app.test", "app.web.chat_flow")]
    assert len(ours) == (2 if question == "crash" else 1)
    assert {one["request_id"] for one in ours} == {"r-5"}
    assert SECRET not in "".join(logged.lines)
    assert question == "crash" or question not in "".join(logged.lines)


def test_a_command_that_fails_says_so_in_json(logged, capsys):
    with pytest.raises(SystemExit):
        fail("port-in-use", "it is in use:\nuse another")
    [line] = logged.found
    assert (line["level"], line["message"], capsys.readouterr().err) == ("error", "it is in use: use another", "")


def test_the_log_of_a_process_follows_its_settings(monkeypatch, capsys):
    root, packages = logging.getLogger(), [logging.getLogger(name) for name in ("app", "cache", "retrieval", "evals")]
    for logger in (root, *packages):
        monkeypatch.setattr(logger, "level", logger.level)
    monkeypatch.setattr(root, "handlers", [])
    for owner, hook in ((threading, "excepthook"), (sys, "excepthook")):
        monkeypatch.setattr(owner, hook, getattr(owner, hook))
    try:
        write_log()
        packages[0].info("not yet")
        write_log("json", "info", OfRequest())
        packages[0].info("now")
        logging.getLogger("library").info("never")
        thread = threading.Thread(target=lambda: int(SECRET))
        thread.start()
        thread.join(20)
    finally:
        logging.captureWarnings(False)
        logging.getLogger().manager._clear_cache()  # type: ignore[attr-defined]  # of levels that are put back
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert told[0]["message"] == "now"
    assert "failed" in told[1]["message"]
    assert "ValueError" in told[1]["exception"]
    assert SECRET not in str(told)
    assert len(told) == 2


def test_repeated_work_that_fails_is_told_when_that_begins(caplog):
    """Was wrong once: an engine that was down wrote a traceback every second."""
    work = Recurring(logging.getLogger("app"), "the work failed")
    for error in (ValueError("a"), ValueError("a"), ValueError("b"), None, ValueError("b")):
        with work.trying():
            if error is not None:
                raise error
    assert caplog.messages == ["the work failed"] * 3
