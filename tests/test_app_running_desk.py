"""Commands beside a desk that is being served, and for synchronised folders: handed over, and clear errors."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from desks import finish, small_desk, write_pages
from fake_desk import FakeDesk, fake_document
from fastapi import FastAPI
from fastapi.responses import Response, StreamingResponse
from refusals import one_line
from starlette.middleware.base import BaseHTTPMiddleware

from app.access.identity import owner_of_user
from app.cli.reports import print_old_copies
from app.cli.served import find_running, order, read_events
from app.desk.output import answer_json
from app.desk.service import Changes, Service
from app.domain.callers import COMMAND_LINE
from app.domain.documents import UnreadFile
from app.domain.errors import DeskError
from app.domain.progress import Progress, no_progress
from app.knowledge.ingest import IngestReport
from app.storage.data_folder import SOCKET_FILE, lock_data_folder
from app.web.commands import command_socket
from app.web.document_routes import FAILED, events


@contextmanager
def listening(app: FastAPI, file: Path) -> Iterator[None]:
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
def run(tmp_path, warmdesk):
    """Run a command on the data folder of this test with --json; gives its document and status."""

    def call(*words: str) -> tuple[dict[str, Any], int]:
        status, out, _ = warmdesk(*words, "--data-dir", tmp_path / "desk", "--json")
        return json.loads(out), status

    return call


def test_ingest_is_handed_over_with_everything_that_was_asked(tmp_path, run, monkeypatch):
    pages, desk = write_pages(tmp_path / "pages"), FakeDesk(seeded=False)
    monkeypatch.chdir(tmp_path)
    with served(tmp_path / "desk", desk) as log:
        report, status = run("ingest", "pages", "--sync", "--collection", "shop", "--no-warm")
        assert (report["documents"], status) == (1, 0)
        run("ingest", str(pages / "returns.md"), str(pages / "stores.txt"))
    assert desk.ingested == [
        ([str(pages)], {"collection": "shop", "sync": True, "warm": False}),
        ([str(pages / "returns.md"), str(pages / "stores.txt")], {"collection": "", "sync": False, "warm": True}),
    ]
    both = f"{pages / 'returns.md'}, {pages / 'stores.txt'}"
    assert log == [(COMMAND_LINE, "document-ingest", str(pages)), (COMMAND_LINE, "document-ingest", both)]


@pytest.mark.parametrize("command", [("forget", "/a/one.md"), ("visitors", "delete", "v-ann")])
def test_what_was_there_before_a_restore_is_named_where_something_is_removed(tmp_path, run, command, capfd):
    """It stays as it was, with all that was removed since."""
    desk, old = FakeDesk(seeded=False), tmp_path / "desk" / "replaced-2026-01-01-000000"
    desk.listed["/a/one.md"] = fake_document("/a/one.md", "One")
    old.mkdir(parents=True)
    with served(tmp_path / "desk", desk):
        assert run(*command)[0]["old_copies"] == [str(old)]
    print_old_copies([str(old)])
    assert f"are in {old}: delete them" in capfd.readouterr().out


def test_flags_that_a_served_desk_cannot_take_over_are_named(tmp_path, run, monkeypatch, pages):
    said: list[str] = []
    monkeypatch.setattr("app.cli.options.progress_line", said.append)
    with served(tmp_path / "desk", FakeDesk(seeded=False)):
        run("ingest", str(pages))
        assert said == []
        run("ingest", str(pages), "--memory", "1 GiB", "--device", "cpu")
    (note,) = said
    assert "--device, --memory ignored" in note


def test_a_small_desk_takes_in_and_forgets_while_it_is_served(tmp_path, run, pages):
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
def test_everything_of_a_visitor_is_saved_and_removed(tmp_path, run, is_served):
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
def test_a_visitor_is_named_in_one_way(run, whose):
    for what in ("export", "delete"):
        wrong, status = run("visitors", what, *whose)
        assert (wrong["error"]["code"], status) == ("usage", 1)


def test_a_served_desk_answers_the_commands(tmp_path, run, warmdesk):
    """It shows what it has in memory, and a batch is kept line by line."""
    questions, output = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    questions.write_text('{"id": "a", "question": "What do gift cards cost?"}\n{"question": "How are returns sent?"}\n')
    with small_desk(tmp_path / "desk") as desk, served(tmp_path / "desk", desk):
        desk.ingest([write_pages(tmp_path / "pages")])
        answer, status = run("ask", "How long do returns take?")
        (turn,) = [turn for turn in desk.turns(answer["conversation_id"]) if turn.answer is not None]
        assert (status, answer) == (0, json.loads(json.dumps(answer_json(turn.answer))))
        _, printed, _ = warmdesk("ask", "How long do returns take?", "--data-dir", tmp_path / "desk")
        assert printed.startswith(answer["answer"])
        said, status = run("ask", "Where?", "--conversation", "none")
        assert (said["error"]["code"], status) == ("conversation-unknown", 1)
        batch, status = run("batch", str(questions), "--output", str(output))
        assert ([entry["id"] for entry in batch["answers"]], batch["skipped"], status) == (["a", "2"], 0, 0)
        assert {one["id"] for one in map(json.loads, output.read_text().splitlines())} == {"a", "2"}
        assert run("batch", str(questions), "--output", str(output))[0]["skipped"] == 2
        numbers, status = run("stats")
        assert (numbers["tier_bytes"]["device"] > 0, numbers["answers"], status) == (True, 2, 0)


def test_work_for_a_command_ends_when_that_is_stopped(tmp_path):
    app, ended = FastAPI(), threading.Event()

    def endless(report: Any) -> None:
        try:
            while True:
                report("answering", 0, 1, piece="more")
                time.sleep(0.001)
        finally:
            ended.set()

    app.post("/ask")(lambda: events(endless, until_left=True))
    with listening(app, tmp_path / "socket"), pytest.raises(KeyboardInterrupt):
        order(tmp_path / "socket", "/ask", {}, lambda **event: (_ for _ in ()).throw(KeyboardInterrupt))
    assert ended.wait(10)


def test_reports_that_nobody_reads_take_no_memory(monkeypatch):
    monkeypatch.setattr("app.web.document_routes.MOST_WAITING", 2)
    done = threading.Event()

    def work(report: Any) -> str:
        for number in range(9):
            report("reading", number, 9)
        report("answering", 0, 1, piece="a")
        done.set()
        return "all"

    async def read(answer: Any) -> list[dict[str, Any]]:
        return [json.loads(line) async for line in answer.body_iterator]

    answer = events(work)
    assert done.wait(30)
    lines = asyncio.run(read(answer))
    assert [one.get("done") for one in lines] == [0, 1, 0, None]
    assert (lines[2]["piece"], lines[3]["result"]) == ("a", "all")


def test_errors_of_the_desk_are_those_of_the_command(tmp_path, run):
    (tmp_path / "crash.md").write_text("# Crash\n")
    (tmp_path / "unreadable.md").write_text("")
    with served(tmp_path / "desk", FakeDesk()):
        failed, status = run("ingest", str(tmp_path / "crash.md"))
        assert failed == {"error": {"code": "internal", "message": FAILED}}
        assert status == 1
        report, status = run("ingest", str(tmp_path / "unreadable.md"))
        assert (report["failed"][0]["reason"], status) == ("no text in it", 1)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_its_user_can_open_it_and_it_goes_with_the_desk(tmp_path, umask):
    before = os.umask(umask)
    try:
        with served(tmp_path, FakeDesk()):
            assert (tmp_path / SOCKET_FILE).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    assert not (tmp_path / SOCKET_FILE).exists()


def test_what_a_killed_process_left_is_no_desk_and_is_in_nobodys_way(tmp_path):
    """Another program that listens there is told nothing: nobody holds the folder."""
    asked: list[str] = []
    app = FastAPI()
    assert find_running(tmp_path / "nowhere") is None
    app.add_middleware(BaseHTTPMiddleware, dispatch=lambda request, _: asked.append(str(request.url)))
    with lock_data_folder(tmp_path, "warmdesk ingest"):  # makes the file of the lock
        assert find_running(tmp_path) is None, "it is held, but not served"
    with listening(app, tmp_path / SOCKET_FILE):
        assert find_running(tmp_path) is None
    assert asked == []
    assert (tmp_path / SOCKET_FILE).is_socket()
    with lock_data_folder(tmp_path, "warmdesk ingest"):
        assert find_running(tmp_path) is None, "it was wrong once: commands said that the server was lost"
    with served(tmp_path, FakeDesk()):
        assert find_running(tmp_path) is not None


def test_a_path_that_is_too_long_for_a_socket_leaves_the_desk_served(tmp_path, caplog):
    folder = tmp_path / ("long" * 30)
    with served(folder, FakeDesk()):
        assert find_running(folder) is None
    assert "commands cannot change documents while this server runs" in caplog.text


def desk_that(answers: Response) -> FastAPI:
    app = FastAPI()

    @app.post("/forget")
    def forget() -> Response:
        return answers

    return app


def error_of(app: FastAPI, folder: Path) -> DeskError:
    with listening(app, folder / "socket"), pytest.raises(DeskError) as caught:
        order(folder / "socket", "/forget", {"document": "a.md"})
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_desk_that_breaks_off_is_a_clear_error(tmp_path):
    """It dies in the middle of a line: the connection ends before the stream does."""

    def half() -> Iterator[str]:
        yield '{"stage": "reading", "done": 0, "total": 1}\n{"sta'
        raise RuntimeError("killed")

    error = error_of(FastAPI(), tmp_path)
    assert (error.code, "404" in str(error)) == ("desk-refused", True)
    error = error_of(desk_that(StreamingResponse(half())), tmp_path)
    assert (error.code, "is lost" in str(error)) == ("desk-lost", True)
    with one_line("desk-lost"):
        order(tmp_path / "gone", "/forget", {"document": "a.md"})


@pytest.mark.parametrize("text", ["", "<html>\n", '{"sta', "{}\n", "[]\n"])
def test_an_answer_that_is_no_stream_of_events_is_a_clear_error(text):
    with pytest.raises(DeskError):
        read_events(text.splitlines(), no_progress)


@pytest.fixture
def sync(tmp_path, warmdesk):
    """Run `warmdesk sync ...` on the data folder of this test; gives what it printed and its status."""

    def call(*words: str, as_json: bool = True) -> tuple[Any, int]:
        status, out, _ = warmdesk("sync", *words, "--data-dir", tmp_path / "desk", *["--json"] * as_json)
        return json.loads(out) if as_json else out, status

    return call


@pytest.fixture
def ingested(monkeypatch):
    """What a desk without models was asked to take in; folders called "broken" have nothing that can be read."""
    seen: list[tuple[str, dict[str, Any]]] = []

    def ingest(self: Service, paths: list[Path], progress: Progress, **options: Any) -> IngestReport:
        seen.append((str(paths[0]), options))
        failed = [UnreadFile(path=str(paths[0]), reason="no text in it")]
        return IngestReport(failed=failed) if "broken" in str(paths[0]) else IngestReport(documents=4, replaced=1)

    monkeypatch.setattr(Service, "ingest", ingest)
    return seen


def test_a_folder_is_added_listed_read_and_removed(tmp_path, sync, ingested, monkeypatch, pages):
    monkeypatch.chdir(tmp_path)
    added, status = sync("add", "pages", "--every", "30", "--collection", "shop")
    (one,) = added["folders"]
    assert (status, one["folder"], one["collection"], one["every_minutes"]) == (0, str(pages), "shop", 30)
    assert (one["ok"], one["last_result"]["added"], one["last_result"]["changed"]) == (True, 3, 1)
    assert ingested == [(str(pages), {"collection": "shop", "sync": True, "warm": False})]
    assert sync("list") == (added, 0)
    printed, _ = sync("list", as_json=False)
    assert "every 30 minutes" in printed
    assert "3 added, 1 changed, 0 removed, 0 unchanged" in printed
    assert sync("run", str(pages))[1] == sync("run")[1] == 0
    assert len(ingested) == 3
    assert sync("remove", "pages") == ({"removed": str(pages)}, 0)
    assert sync("list") == ({"folders": []}, 0)


def test_a_reading_that_fails_is_said_and_is_the_status(tmp_path, sync, ingested):
    broken = write_pages(tmp_path / "broken")
    added, status = sync("add", str(broken))
    assert (status, added["folders"][0]["ok"]) == (1, False)
    printed, status = sync("run", as_json=False)
    assert (status, "FAILED" in printed, "no text in it" in printed) == (1, True, True)


def test_beside_a_served_desk_the_desk_reads(tmp_path, sync, pages):
    with small_desk(tmp_path / "desk") as desk, served(tmp_path / "desk", desk):
        added, status = sync("add", str(pages))
        assert (status, added["folders"][0]["last_result"]["added"]) == (0, 4)
        assert len(desk.documents()) == 4
        (pages / "stores.txt").unlink()
        again, _ = sync("run", str(pages))
        assert again["folders"][0]["last_result"]["removed"] == 1
        assert sync("list")[0] == again
        assert sync("remove", str(pages))[1] == 0
        assert desk.synced.all() == []
        assert sync("run", str(pages))[0]["error"]["code"] == "sync-unknown"
