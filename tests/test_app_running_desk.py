"""Commands beside a desk that is being served: handed over to it, and clear errors where that does not work."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from desks import finish, small_desk, write_pages
from fake_desk import FakeDesk, Ingested, fake_document
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from fastapi.testclient import TestClient
from starlette.middleware.base import BaseHTTPMiddleware

from app.access.identity import owner_of_user
from app.cli.reports import print_old_copies
from app.cli.running_desk import RunningDesk, find_running, read_events
from app.desk.service import Changes, Service
from app.domain.callers import COMMAND_LINE
from app.domain.errors import DeskError
from app.domain.progress import no_progress
from app.storage.lock import SOCKET_FILE, lock_data_folder
from app.web.document_routes import FAILED
from app.web.serve import command_app, command_socket


@contextmanager
def listening(app: FastAPI, file: Path) -> Iterator[None]:
    """Serve an application on a Unix socket."""
    server = uvicorn.Server(uvicorn.Config(app, uds=str(file), log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(20)


@contextmanager
def served(folder: Path, desk: Service) -> Iterator[list[tuple[str, str, str]]]:
    """A desk that is served from a data folder, as `warmdesk serve` does it; gives its audit log."""
    log: list[tuple[str, str, str]] = []
    changes = Changes(desk, lambda *entry: log.append(entry), COMMAND_LINE)
    with lock_data_folder(folder, "warmdesk serve"), command_socket(changes, folder):
        yield log


@pytest.fixture
def run(tmp_path: Path, warmdesk: Callable[..., tuple[int, str, str]]) -> Callable[..., Any]:
    """Run a command on the data folder of this test with --json; gives its document and status."""

    def call(*words: str) -> tuple[dict[str, Any], int]:
        status, out, _ = warmdesk(*words, "--data-dir", tmp_path / "desk", "--json")
        return json.loads(out), status

    return call


# --- handed over -------------------------------------------------------------------------------------------


def test_ingest_is_handed_over_with_everything_that_was_asked(
    tmp_path: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, desk = write_pages(tmp_path / "pages"), FakeDesk(seeded=False)
    monkeypatch.chdir(tmp_path)
    with served(tmp_path / "desk", desk) as log:
        report, status = run("ingest", "pages", "--sync", "--collection", "shop", "--no-warm")
        assert (report["documents"], status) == (1, 0)
        run("ingest", str(pages / "returns.md"), str(pages / "stores.txt"))
    assert desk.ingested == [
        Ingested((str(pages),), "shop", sync=True, warm=False),
        Ingested((str(pages / "returns.md"), str(pages / "stores.txt")), "", sync=False, warm=True),
    ]
    both = f"{pages / 'returns.md'}, {pages / 'stores.txt'}"
    assert log == [(COMMAND_LINE, "document-ingest", str(pages)), (COMMAND_LINE, "document-ingest", both)]


def test_forget_is_handed_over(tmp_path: Path, run: Callable[..., Any]) -> None:
    desk = FakeDesk(seeded=False)
    desk.listed["/a/one.md"] = fake_document("/a/one.md", "One")
    with served(tmp_path / "desk", desk) as log:
        done, status = run("forget", "/a/one.md")
        assert (done["forgotten"], done["removed"]["passages"], status) == ("/a/one.md", 3, 0)
        again, status = run("forget", "/a/one.md")
    assert (again["error"]["code"], status) == ("document-unknown", 1)
    assert desk.listed == {}
    assert log == [(COMMAND_LINE, "document-forget", "/a/one.md")]


@pytest.mark.parametrize("command", [("forget", "/a/one.md"), ("visitors", "delete", "v-ann")])
def test_what_was_there_before_a_restore_is_named_where_something_is_removed(
    tmp_path: Path, run: Callable[..., Any], command: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    """It stays as it was, with all that was removed since."""
    desk, old = FakeDesk(seeded=False), tmp_path / "desk" / "replaced-2026-01-01-000000"
    desk.listed["/a/one.md"] = fake_document("/a/one.md", "One")
    old.mkdir(parents=True)
    with served(tmp_path / "desk", desk):
        assert run(*command)[0]["old_copies"] == [str(old)]
    print_old_copies([str(old)])
    assert f"are in {old}: delete them" in capfd.readouterr().out


def test_flags_that_a_served_desk_cannot_take_over_are_named(
    tmp_path: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("app.cli.options.progress_line", said.append)
    pages = write_pages(tmp_path / "pages")
    with served(tmp_path / "desk", FakeDesk(seeded=False)):
        run("ingest", str(pages))
        assert said == []
        run("ingest", str(pages), "--memory", "1 GiB", "--device", "cpu")
    (note,) = said
    assert "--device, --memory ignored" in note


def test_a_small_desk_takes_in_and_forgets_while_it_is_served(tmp_path: Path, run: Callable[..., Any]) -> None:
    pages = write_pages(tmp_path / "pages")
    with small_desk(tmp_path / "desk") as desk, served(tmp_path / "desk", desk):
        report, _ = run("ingest", str(pages))
        assert (report["documents"], report["modules"]["encoded"], report["failed"]) == (4, 4, [])
        assert "gift-cards" in finish(desk, "Can gift cards be returned?").citations[0].document
        forgotten, _ = run("forget", "gift-cards.md")
        assert (forgotten["removed"]["passages"], set(forgotten["left"].values())) == (1, {0})
        assert len(desk.documents()) == 3
        (pages / "stores.txt").unlink()
        synced, _ = run("ingest", str(pages), "--sync")
        assert (synced["removed"], synced["unchanged"]) == (1, 2)


@pytest.mark.parametrize("is_served", [True, False])
def test_everything_of_a_visitor_is_saved_and_removed(tmp_path: Path, run: Callable[..., Any], is_served: bool) -> None:
    owner = owner_of_user("customer-7")
    with small_desk(tmp_path / "desk") as desk, served(tmp_path / "desk", desk) if is_served else nullcontext():
        desk.ingest([write_pages(tmp_path / "pages")])
        finish(desk, "How long do returns take?", owner=owner)
        finish(desk, "What do gift cards cost?", owner="v-bob")
        saved, status = run("visitors", "export", "--user", "customer-7")
        assert ([one["title"] for one in saved["conversations"]], status) == (["How long do returns take?"], 0)
        removed, status = run("visitors", "delete", owner)
        assert (removed["owner"], removed["conversations"], removed["messages"], status) == (owner, 1, 2, 0)
        assert "counts on the dashboard stay" in removed["kept"]
        assert run("visitors", "export", owner) == ({"handoffs": [], "conversations": []}, 0)
        assert len(run("visitors", "export", "v-bob")[0]["conversations"]) == 1
        if is_served:
            left = desk.engine.call(lambda store: list(store.device.prefixes.nodes(owner)))
            assert left == [], "the desk itself has dropped them"


@pytest.mark.parametrize("whose", [(), ("v-ann", "--user", "customer-7")])
def test_a_visitor_is_named_in_one_way(run: Callable[..., Any], whose: tuple[str, ...]) -> None:
    for what in ("export", "delete"):
        wrong, status = run("visitors", what, *whose)
        assert (wrong["error"]["code"], status) == ("usage", 1)


def test_errors_of_the_desk_are_those_of_the_command(tmp_path: Path, run: Callable[..., Any]) -> None:
    (tmp_path / "crash.md").write_text("# Crash\n")
    (tmp_path / "unreadable.md").write_text("")
    with served(tmp_path / "desk", FakeDesk()):
        failed, status = run("ingest", str(tmp_path / "crash.md"))
        assert failed == {"error": {"code": "internal", "message": FAILED}}
        assert status == 1
        report, status = run("ingest", str(tmp_path / "unreadable.md"))
        assert (report["failed"][0]["reason"], status) == ("no text in it", 1)


def test_progress_is_passed_on(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    order = {"paths": ["/a.md"], "collection": "", "sync": False, "warm": True}
    with served(tmp_path / "desk", FakeDesk()):
        running = find_running(tmp_path / "desk")
        assert running is not None
        running.ingest(order, lambda *stage: seen.append(stage))
    assert seen == [("reading", 0, 1), ("reading", 1, 1), ("embedding", 1, 1), ("encoding", 1, 1)]


@pytest.mark.parametrize(
    ("path", "order"),
    [("/ingest", {"collection": "no paths"}), ("/ingest", []), ("/forget", {})],
)
def test_an_order_that_is_none_is_refused(path: str, order: object) -> None:
    changes = Changes(FakeDesk(), lambda *entry: None, COMMAND_LINE)
    assert TestClient(command_app(changes)).post(path, json=order).status_code == 422


# --- the socket --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_its_user_can_open_it_and_it_goes_with_the_desk(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with served(tmp_path, FakeDesk()):
            assert (tmp_path / SOCKET_FILE).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    assert not (tmp_path / SOCKET_FILE).exists()


def test_a_folder_that_nobody_serves(tmp_path: Path) -> None:
    assert find_running(tmp_path / "nowhere") is None
    with lock_data_folder(tmp_path, "warmdesk ingest"):
        assert find_running(tmp_path) is None, "it is held, but not served"


def test_what_a_killed_process_left_is_no_desk_and_is_in_nobodys_way(tmp_path: Path) -> None:
    """Another program that listens there is told nothing: nobody holds the folder."""
    asked: list[str] = []
    app = FastAPI()
    app.add_middleware(BaseHTTPMiddleware, dispatch=lambda request, _: asked.append(str(request.url)))
    with lock_data_folder(tmp_path, "warmdesk serve"):
        pass  # makes the file of the lock
    with listening(app, tmp_path / SOCKET_FILE):
        assert find_running(tmp_path) is None
    assert asked == []
    assert (tmp_path / SOCKET_FILE).is_socket()
    with served(tmp_path, FakeDesk()):
        assert find_running(tmp_path) is not None


def test_a_path_that_is_too_long_for_a_socket_leaves_the_desk_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / ("long" * 30)
    with served(folder, FakeDesk()):
        assert find_running(folder) is None
    assert "commands cannot change documents while this server runs" in caplog.text


# --- a desk that does not answer ---------------------------------------------------------------------------


def desk_that(answers: Response) -> FastAPI:
    app = FastAPI()

    @app.post("/forget")
    def forget() -> Response:
        return answers

    return app


def error_of(app: FastAPI, folder: Path) -> DeskError:
    with listening(app, folder / "socket"), pytest.raises(DeskError) as caught:
        RunningDesk(folder / "socket").forget("a.md", no_progress)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_desk_without_the_route_is_a_clear_error(tmp_path: Path) -> None:
    error = error_of(FastAPI(), tmp_path)
    assert (error.code, "404" in str(error)) == ("desk-refused", True)


def test_a_stream_without_an_end_is_a_clear_error(tmp_path: Path) -> None:
    events = '{"stage": "reading", "done": 0, "total": 1}\n'
    error = error_of(desk_that(PlainTextResponse(events)), tmp_path)
    assert (error.code, "is lost" in str(error)) == ("desk-lost", True)


def test_a_desk_that_breaks_off_is_a_clear_error(tmp_path: Path) -> None:
    """It dies in the middle of a line: the connection ends before the stream does."""

    def half() -> Iterator[str]:
        yield '{"stage": "reading", "done": 0, "total": 1}\n{"sta'
        raise RuntimeError("killed")

    error = error_of(desk_that(StreamingResponse(half())), tmp_path)
    assert (error.code, "is lost" in str(error)) == ("desk-lost", True)


def test_a_desk_that_is_gone_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DeskError) as caught:
        RunningDesk(tmp_path / SOCKET_FILE).forget("a.md", no_progress)
    assert caught.value.code == "desk-lost"


@pytest.mark.parametrize("text", ["<html>\n", '{"sta', "{}\n", "[]\n"])
def test_an_answer_that_is_no_stream_of_events_is_a_clear_error(text: str) -> None:
    with pytest.raises(DeskError):
        read_events(text.splitlines(), no_progress)
