"""A desk that is killed at each step of some work, or in an answer: what was begun is finished, what was said stays."""

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from desks import finish, serve_small, small_desk
from forgetting import SECRET, files_with, kept, modules
from forked import Forked
from killing import kill_again, left_by_kills
from sqlalchemy import select

from app.desk.service import Service
from app.domain.callers import STOPPED
from app.domain.quality import FaqDraft
from app.storage.data_folder import BEGUN_FILE, OWNER_FILE, SOCKET_FILE, BegunWork, lock_data_folder
from app.storage.tables import ConversationRow
from app.support.faq import document_of
from app.web.rendering import render
from cache.engine.running import Running
from retrieval.documents import content_hash

PAIR = FaqDraft(question="Can a kettle be mended?", answer="On Fridays, in Cork.")


def kill_everywhere(
    folder: Path,
    prepare: Callable[[Service], object],
    work: Callable[[Service], object],
    check: Callable[[Service, bool], None],
    which: slice = slice(None),
) -> None:
    """Kill a desk at each line of some work, and again while it is opened, and look at it when it is open. check: is
    given the desk, and whether the work was noted when it was killed. which: of the kills, since tests of a kind share
    lines, and `make chaos` kills at any moment.
    """
    home = folder / "desk"

    def finish(left: Path) -> None:
        with lock_data_folder(home, "test"), small_desk(home) as desk:
            desk.finish_begun()
            check(desk, (left / BEGUN_FILE).exists())
        assert not (home / BEGUN_FILE).exists()
        assert not list(home.rglob(".*")), "files that were begun"

    with small_desk(home) as desk:
        prepare(desk)
        desk.engine.flush()
        left = left_by_kills(home, folder / "one", lambda: work(desk))
    assert sum((one / BEGUN_FILE).exists() for one in left) > 5
    kill_again(left[which], home, folder / "two", finish)


def test_a_document_is_forgotten_whenever_the_desk_is_killed(tmp_path):
    def prepare(desk: Service) -> None:
        desk.upload("other.md", b"# Other\n\nA page that stays.\n")
        desk.upload("secret.md", f"# Plans\n\nThe word of the day is {SECRET}, and no other.\n".encode())
        desk.ingest([])
        finish(desk, "What is the word of the day?")

    def check(desk: Service, is_noted: bool) -> None:
        names = [Path(one.path).name for one in desk.documents()]
        assert names == ["other.md"] or not is_noted
        if "secret.md" in names:
            desk.forget("secret.md")
        desk._warming.forget_unused()  # as `prepare` does
        assert modules(desk) <= kept(desk)
        assert files_with(desk.settings.data_dir, SECRET) == set()
        assert [path.name for path in desk.settings.uploads_folder.iterdir()] == ["other.md"]
        assert len(desk.search.snapshot.index.passage_ids) == desk.library.counts().passages == 1

    kill_everywhere(tmp_path, prepare, lambda desk: desk.forget("secret.md"), check, slice(None, None, 2))


@pytest.mark.parametrize("is_new", [True, False])
def test_an_upload_is_whole_or_not_there_whenever_the_desk_is_killed(tmp_path, is_new):
    def upload(desk: Service, price: int) -> None:
        desk.upload("lamps.md", f"# Lamps\n\nA lamp costs {price} euros.\n".encode(), collection="shop")

    def check(desk: Service, is_noted: bool) -> None:
        file = desk.settings.uploads_folder / "shop.d" / "lamps.md"
        stored = desk.library.find(str(file))
        assert file.exists() == (stored is not None)
        if stored is not None:
            assert stored.content_hash.startswith(content_hash(file.read_bytes()))
            assert stored.collection == "shop"

    kill_everywhere(
        tmp_path, lambda desk: is_new or upload(desk, 1), lambda desk: upload(desk, 2), check, slice(is_new, None, 3)
    )


@pytest.mark.parametrize("change", ["added", "changed", "deleted"])
def test_the_faq_and_its_document_are_in_step_whenever_the_desk_is_killed(tmp_path, change):
    def work(desk: Service) -> None:
        number = next((pair.id for pair in desk._faq.pairs()), None)
        if change == "deleted":
            assert number is not None
            desk._faq_editor.delete(number)
        else:
            desk._faq_editor.save(replace(PAIR, answer="On Mondays."), "ann", number)

    def check(desk: Service, is_noted: bool) -> None:
        pairs, stored = desk._faq.pairs(), desk.library.find(desk.settings.faq_document)
        assert (stored is not None) == desk.settings.faq_file.exists() == bool(pairs)
        if stored is not None:
            assert desk.settings.faq_file.read_bytes() == document_of(pairs)
            assert stored.content_hash.startswith(content_hash(document_of(pairs)))

    some = slice(("added", "changed", "deleted").index(change), None, 3)
    kill_everywhere(tmp_path, lambda desk: change == "added" or desk._faq_editor.save(PAIR, "ann"), work, check, some)


@pytest.mark.parametrize("change", [b"", b"{", None])
def test_a_damaged_file_of_the_faq_is_written_again(tmp_path, change):
    with small_desk(tmp_path) as desk:
        desk._faq_editor.save(PAIR, "ann")
        file, right = desk.settings.faq_file, desk.settings.faq_file.read_bytes()
        file.write_bytes(right.replace(b"C", b"\xc3") if change is None else change)
        desk.finish_begun()
        assert file.read_bytes() == right == document_of(desk._faq.pairs())


def test_what_was_taken_in_since_its_removal_failed_stays(tmp_path, monkeypatch):
    with small_desk(tmp_path) as desk:
        desk.upload("plans.md", b"# Plans\n\nThe first ones.\n")
        with monkeypatch.context() as context:
            context.setattr(desk._in_flight, "wait", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                desk.forget("plans.md")
        desk.upload("plans.md", b"# Plans\n\nThe second ones.\n")
        desk.finish_begun()
        assert [Path(one.path).name for one in desk.documents()] == ["plans.md"]
        assert (desk.settings.uploads_folder / "plans.md").exists()
        assert not (tmp_path / BEGUN_FILE).exists()


def test_what_cannot_be_finished_is_said_and_tried_again(tmp_path, caplog):
    with small_desk(tmp_path) as desk:
        desk.begun.note("upload", {"gone.md": "", "../outside.md": ""})
        with desk._ingestion.alone():
            desk.finish_begun()
        assert (
            "unfinished work (upload) failed again and is retried at the next start: documents are already being"
            in caplog.text
        )
        (tmp_path / "outside.md").write_text("# Outside\n\nNobody uploaded it.\n")
        desk.finish_begun()
        assert desk.documents() == []
        assert (tmp_path / "outside.md").exists()
        assert not (tmp_path / BEGUN_FILE).exists()


@pytest.mark.parametrize("content", ["", "[1]", '{"forget": 3}', "\0"])
def test_damaged_notes_are_none(tmp_path, content, caplog):
    (tmp_path / BEGUN_FILE).write_text(content)
    begun = BegunWork(tmp_path)
    assert begun.left("forget") == {}
    assert "is damaged" in caplog.text
    begun.note("forget", {"a": "1"})
    begun.note("forget", {"b": "2"})
    begun.done("forget", ["a"])
    assert json.loads((tmp_path / BEGUN_FILE).read_text()) == {"forget": {"b": "2"}}


def serve_slowly(folder: Path, pages: Path) -> None:
    advance = Running.advance

    def slowly(*given: Any) -> Any:
        time.sleep(0.05)
        return advance(*given)

    with lock_data_folder(folder, "warmdesk serve"), small_desk(folder, port=0, answer_tokens=500) as service:
        service.ingest([pages])
        finish(service, "Can I return a gift card?")
        Running.advance = slowly  # type: ignore[method-assign]
        serve_small(service)


@contextmanager
def in_the_middle_of_an_answer(folder: Path, pages: Path) -> Iterator[Forked]:
    server = Forked(serve_slowly, folder, pages)
    try:
        address, dashboard, password = (server.stdout.readline() for _ in range(3))
        assert dashboard.startswith("dashboard")
        assert password.startswith("admin password (shown once)")
        with httpx.Client(base_url=address.split()[1], timeout=60) as client:
            client.get("/")  # for a visitor's cookie
            events = client.get("/config").json()["dependencies"]
            submit = next(d for d in events if any(target[1] == "submit" for target in d["targets"]))
            data = ["Where is the repair bench?", *[""] * (len(submit["inputs"]) - 1)]
            body = {"fn_index": submit["id"], "session_hash": "one", "data": data}
            client.post("/gradio_api/queue/join", json={**body, "event_data": None, "trigger_id": None})
            with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": "one"}) as stream:
                lines = (line[6:] for line in stream.iter_lines() if line.startswith("data: "))
                kinds = (json.loads(line)["msg"] for line in lines)
                begun = (kind for kind in kinds if kind == "process_generating")
                assert len(list(islice(begun, 5))) == 5
                yield server
    finally:
        server.kill()
        server.wait()


def test_a_desk_that_is_killed_or_stopped_keeps_the_conversation(tmp_path, pages):
    """A kill leaves the folder as it is: a copy of it is what the next process finds. Ctrl-C takes the same way as
    SIGTERM (`app.web.serve`), for which see `test_app_served`.
    """
    desk, killed = tmp_path / "desk", tmp_path / "killed"
    with in_the_middle_of_an_answer(desk, pages) as server:
        server.send_signal(signal.SIGSTOP)
        shutil.copytree(desk, killed, ignore=shutil.ignore_patterns(SOCKET_FILE))
        server.send_signal(signal.SIGCONT)
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0
        assert "Traceback" not in server.stderr.read()
    left = {file.name for file in desk.rglob("*")}
    assert not left & {OWNER_FILE, SOCKET_FILE}
    assert not [name for name in left if name.startswith((".", "tmp", "partial"))]
    latest = select(ConversationRow.id, ConversationRow.owner).order_by(ConversationRow.updated.desc())
    with small_desk(desk) as service:
        [stopped, _] = service.database.rows(latest)
        question, answer = service.turns(*stopped)
        assert question.unanswered is None
        assert answer.answer is not None
        assert answer.text
        assert answer.answer.notice == STOPPED
    with small_desk(killed) as service:
        lost, whole = service.database.rows(latest)
        assert [turn.unanswered for turn in service.turns(*whole)] == [None, None]
        (question,) = service.turns(*lost)
        assert (question.text, question.unanswered) == ("Where is the repair bench?", "lost")
        texts = {"turns": [question], "contacts": {}}
        shown = render("chat/transcript.html", language="en", technical=False, has_older=False, **texts)
        assert "This answer was not finished: the server was stopped. Ask again." in " ".join(shown.split())
        assert service.history.past(*lost) == [], "the next prompt leaves it out"
        assert finish(service, "Can I return a gift card?", conversation_id=lost[0], owner=lost[1]).answer
        turns = service.turns(*lost)
        assert [turn.role for turn in turns] == ["user", "user", "assistant"]
        assert [turn.unanswered for turn in turns] == ["lost", None, None]
