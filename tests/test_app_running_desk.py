"""Commands beside a desk that is being served: handed over to it, and clear errors where that does not work."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from desks import finish, small_desk, write_pages
from fake_desk import FakeDesk, Ingested, fake_document
from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from app.cli.main import main
from app.cli.running_desk import RunningDesk, find_running, read_events
from app.desk.interface import Desk
from app.domain.errors import DeskError
from app.domain.progress import no_progress
from app.storage.lock import OWNER_FILE, add_to_note, lock_data_folder, read_note
from app.web.document_routes import FAILED, add_document_routes
from app.web.serve import reachable

SECRET = "a secret of this process"


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """The address of an application that is served."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://{reachable(listener)}"
        finally:
            server.should_exit = True
            thread.join(20)


def application(desk: Desk | None = None, secret: str = SECRET) -> FastAPI:
    app = FastAPI()

    @app.get("/healthz")
    def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    if desk is not None:
        add_document_routes(app, desk, secret)
    return app


@contextmanager
def served(folder: Path, desk: Desk, *, secret: str = SECRET) -> Iterator[str]:
    """A desk that is served from a data folder, as `warmdesk serve` does it."""
    with lock_data_folder(folder, "warmdesk serve"), listening(application(desk)) as url:
        add_to_note(folder, url=url, secret=secret)
        yield url


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command on the data folder of this test with --json; gives its document and status."""

    def call(*arguments: str) -> tuple[dict[str, Any], int]:
        capfd.readouterr()
        command = ["warmdesk", *arguments, "--data-dir", str(tmp_path / "desk"), "--json"]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            main()
        return json.loads(capfd.readouterr().out), int(ended.value.code or 0)

    return call


# --- handed over -------------------------------------------------------------------------------------------


def test_ingest_is_handed_over_with_everything_that_was_asked(
    tmp_path: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, desk = write_pages(tmp_path / "pages"), FakeDesk(seeded=False)
    monkeypatch.chdir(tmp_path)
    with served(tmp_path / "desk", desk):
        report, status = run("ingest", "pages", "--sync", "--collection", "shop", "--no-warm")
        assert (report["documents"], status) == (1, 0)
        run("ingest", str(pages / "returns.md"), str(pages / "stores.txt"))
    assert desk.ingested == [
        Ingested((str(pages),), "shop", sync=True, warm=False),
        Ingested((str(pages / "returns.md"), str(pages / "stores.txt")), "", sync=False, warm=True),
    ]


def test_forget_is_handed_over(tmp_path: Path, run: Callable[..., Any]) -> None:
    desk = FakeDesk(seeded=False)
    desk.listed["/a/one.md"] = fake_document("/a/one.md", "One")
    with served(tmp_path / "desk", desk):
        done, status = run("forget", "/a/one.md")
        assert (done["forgotten"], done["removed"]["passages"], status) == ("/a/one.md", 3, 0)
        again, status = run("forget", "/a/one.md")
    assert (again["error"]["code"], status) == ("document-unknown", 1)
    assert desk.listed == {}


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


# --- the note ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_note_is_readable_by_its_user_only(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with lock_data_folder(tmp_path / "desk", "warmdesk serve"):
            add_to_note(tmp_path / "desk", url="http://127.0.0.1:1", secret=SECRET)
            file = tmp_path / "desk" / OWNER_FILE
            assert file.stat().st_mode & 0o777 == 0o600
            note = json.loads(file.read_text())
            assert (note["pid"], note["purpose"], note["secret"]) == (os.getpid(), "warmdesk serve", SECRET)
            assert [path.name for path in file.parent.iterdir() if path.name.endswith(".new")] == []
    finally:
        os.umask(before)
    assert not file.exists(), "it goes with the lock"


def test_a_folder_that_nobody_serves(tmp_path: Path) -> None:
    assert find_running(tmp_path / "nowhere") is None
    with lock_data_folder(tmp_path, "warmdesk ingest"):
        assert find_running(tmp_path) is None, "it is held, but not served"


@pytest.mark.parametrize("note", ["", "{", "[]", "null", '{"url": "http://127.0.0.1:1"}', '{"secret": "x"}'])
def test_a_note_that_is_none_is_no_desk(tmp_path: Path, note: str) -> None:
    (tmp_path / OWNER_FILE).write_text(note)
    assert find_running(tmp_path) is None


HOLD = """
import sys
from pathlib import Path
from app.storage.lock import add_to_note, lock_data_folder
with lock_data_folder(Path(sys.argv[1]), "warmdesk serve"):
    add_to_note(Path(sys.argv[1]), url=sys.argv[2], secret="of the dead")
    print("held", flush=True)
    sys.stdin.read()
"""


def leave_a_note(folder: Path, url: str) -> None:
    """What a served desk that is killed leaves behind."""
    command = [sys.executable, "-c", HOLD, str(folder), url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.kill()
    note = read_note(folder)
    assert note is not None
    assert note["secret"] == "of the dead"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_the_note_of_a_killed_process_is_ignored(tmp_path: Path) -> None:
    leave_a_note(tmp_path, f"http://127.0.0.1:{free_port()}")
    assert find_running(tmp_path) is None


def test_the_note_of_a_killed_process_is_ignored_where_another_desk_listens(tmp_path: Path) -> None:
    with listening(application(FakeDesk(), "of the other")) as url:
        leave_a_note(tmp_path, url)
        assert find_running(tmp_path) is None


# --- a desk that does not answer ---------------------------------------------------------------------------


def desk_that(answers: Response) -> FastAPI:
    app = application()

    @app.post("/desk/forget")
    def forget() -> Response:
        return answers

    return app


def error_of(app: FastAPI) -> DeskError:
    with listening(app) as url, pytest.raises(DeskError) as caught:
        RunningDesk(url, SECRET).forget("a.md", no_progress)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_wrong_secret_is_a_clear_error() -> None:
    error = error_of(application(FakeDesk(), "another one"))
    assert error.code == "desk-refused"
    assert "401" in str(error)


def test_an_older_desk_without_the_routes_is_a_clear_error() -> None:
    error = error_of(application())
    assert (error.code, "404" in str(error)) == ("desk-refused", True)


def test_a_stream_without_an_end_is_a_clear_error() -> None:
    events = '{"stage": "reading", "done": 0, "total": 1}\n'
    error = error_of(desk_that(PlainTextResponse(events)))
    assert (error.code, "broke off" in str(error)) == ("desk-lost", True)


def test_a_desk_that_breaks_off_is_a_clear_error() -> None:
    """It dies in the middle of a line: the connection ends before the stream does."""

    def half() -> Iterator[str]:
        yield '{"stage": "reading", "done": 0, "total": 1}\n{"sta'
        raise RuntimeError("killed")

    error = error_of(desk_that(StreamingResponse(half())))
    assert (error.code, "broke off" in str(error)) == ("desk-lost", True)


def test_a_desk_that_is_gone_is_a_clear_error() -> None:
    with pytest.raises(DeskError) as caught:
        RunningDesk(f"http://127.0.0.1:{free_port()}", SECRET).forget("a.md", no_progress)
    assert caught.value.code == "desk-lost"


@pytest.mark.parametrize("text", ["<html>\n", '{"sta', "{}\n", "[]\n"])
def test_an_answer_that_is_no_stream_of_events_is_a_clear_error(text: str) -> None:
    """Another program on the port, or a proxy."""
    with pytest.raises(DeskError):
        read_events(text.splitlines(), no_progress)
