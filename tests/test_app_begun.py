"""What was begun comes to its end: killed at each of its steps, and again while that is made good."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from desks import finish, small_desk
from forgetting import SECRET, files_with, kept, modules

from app.desk.service import Service
from app.domain.quality import FaqDraft
from app.storage.begun import BEGUN_FILE, BegunWork
from app.storage.database import Database
from app.storage.lock import lock_data_folder
from app.support.faq import document_of
from retrieval.documents.document import content_hash

PAIR = FaqDraft(question="Can a kettle be mended?", answer="On Fridays, in Cork.")


class Killed(BaseException):
    """The process is dead."""


@contextmanager
def killed_at(step: int, desk: Service) -> Iterator[list[str]]:
    """At the change of a file, of the database or of the engine that has this number the process is dead, and at each
    one after it. Gives the changes.
    """
    steps, thread = list[str](), threading.current_thread()

    def counting(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **options: Any) -> Any:
            if threading.current_thread() is thread:
                steps.append(name)
                if len(steps) >= step:
                    raise Killed
            return change(*given, **options)

        return called

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            *((Path, name) for name in ("unlink", "replace", "rename", "rmdir")),
            (Database, "write"),
            (BegunWork, "note"),
            (BegunWork, "done"),
            (desk.engine, "forget"),
        ):
            patch.setattr(owner, name, counting(name, getattr(owner, name)))
        yield steps


def every_kill(desk: Service, prepare: Callable[[], None], work: Callable[[], object]) -> Iterator[int]:
    """After each kill in the work, and a second one in what makes it good, everything is whole again; gives the steps.
    Ends when the work has no more.
    """
    for step in range(1, 200):
        prepare()
        with killed_at(step, desk) as steps, suppress(Killed):
            work()
        is_killed = len(steps) >= step
        for at in (step % 7 + 1, 1000):
            with lock_data_folder(desk.settings.data_dir, "test"), killed_at(at, desk), suppress(Killed):
                desk.finish_begun()
        desk._ingestion.forget_unused()  # as `prepare` does
        assert not (desk.settings.data_dir / BEGUN_FILE).exists(), (step, steps)
        assert not list(desk.settings.data_dir.rglob(".*")), (step, steps)
        assert modules(desk) <= kept(desk), (step, steps)
        yield step
        if not is_killed:
            assert step > 5, "it does nothing"
            return
    raise AssertionError("it has no end")


def test_a_document_is_forgotten_whenever_the_desk_is_killed(tmp_path: Path) -> None:
    with small_desk(tmp_path, answer_tokens=1) as desk:
        desk.upload("other.md", b"# Other\n\nA page that stays.\n")

        def prepare() -> None:
            desk.upload("secret.md", f"# Plans\n\nThe word of the day is {SECRET}, and no other.\n".encode())
            desk.ingest([])
            finish(desk, "What is the word of the day?")

        def work() -> None:
            desk.forget("secret.md")

        for step in every_kill(desk, prepare, work):
            if step <= 2:  # it was killed before it was noted
                desk.forget("secret.md")
            assert files_with(tmp_path, SECRET) == set(), step
            assert [Path(one.path).name for one in desk.documents()] == ["other.md"], step
        assert [path.name for path in desk.settings.uploads_folder.iterdir()] == ["other.md"]
    with small_desk(tmp_path) as desk:
        assert len(desk.search.retriever.index.passage_ids) == desk.library.counts().passages == 1


@pytest.mark.parametrize("is_new", [True, False])
def test_an_upload_is_whole_or_not_there_whenever_the_desk_is_killed(tmp_path: Path, is_new: bool) -> None:
    texts = [f"# Lamps\n\nA lamp costs {number} euros.\n".encode() for number in range(100)]
    with small_desk(tmp_path, neighbours=0) as desk:
        file, number = desk.settings.uploads_folder / "shop.d" / "lamps.md", iter(range(100))

        def prepare() -> None:
            if is_new and file.exists():
                desk.forget("lamps.md")
            elif not is_new:
                desk.upload("lamps.md", texts[next(number)], collection="shop")

        def work() -> None:
            desk.upload("lamps.md", texts[next(number)], collection="shop")

        for step in every_kill(desk, prepare, work):
            stored = desk.library.find(str(file))
            assert file.exists() == (stored is not None), step
            if stored is not None:
                assert stored.content_hash.startswith(content_hash(file.read_bytes())), step
                assert stored.collection == "shop"


@pytest.mark.parametrize("change", ["added", "changed", "deleted"])
def test_the_faq_and_its_document_are_in_step_whenever_the_desk_is_killed(tmp_path: Path, change: str) -> None:
    with small_desk(tmp_path, neighbours=0, answer_tokens=1) as desk:
        editor, file, number = desk._faq_editor, desk.settings.faq_file, iter(range(100))

        def prepare() -> None:
            pairs = desk._faq.pairs()
            if change == "added":
                for pair in pairs:
                    editor.delete(pair.id)
            elif not pairs:
                editor.save(PAIR, "ann")

        def work() -> None:
            id_ = next((pair.id for pair in desk._faq.pairs()), None)
            if change == "deleted":
                assert id_ is not None
                editor.delete(id_)
            else:
                editor.save(FaqDraft(question=PAIR.question, answer=f"On day {next(number)}."), "ann", id_)

        for step in every_kill(desk, prepare, work):
            pairs, stored = desk._faq.pairs(), desk.library.find(desk.settings.faq_document)
            assert (stored is not None) == file.exists() == bool(pairs), step
            if stored is not None:
                assert file.read_bytes() == document_of(pairs), step
                assert stored.content_hash.startswith(content_hash(document_of(pairs))), step


def test_what_was_taken_in_since_its_removal_failed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_cannot_be_finished_is_said_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_desk(tmp_path) as desk:
        desk.begun.note("upload", {"gone.md": "", "../outside.md": ""})
        with desk._ingestion.alone():
            desk.finish_begun()
        assert "(upload) is not finished, and is tried again: documents are being taken in already" in caplog.text
        (tmp_path / "outside.md").write_text("# Outside\n\nNobody uploaded it.\n")
        desk.finish_begun()
        assert desk.documents() == []
        assert (tmp_path / "outside.md").exists()
        assert not (tmp_path / BEGUN_FILE).exists()


@pytest.mark.parametrize("content", ["", "[1]", '{"forget": 3}', "\0"])
def test_damaged_notes_are_none(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / BEGUN_FILE).write_text(content)
    begun = BegunWork(tmp_path)
    assert begun.left("forget") == {}
    assert "is damaged" in caplog.text
    begun.note("forget", {"a": "1"})
    begun.note("forget", {"b": "2"})
    begun.done("forget", ["a"])
    assert json.loads((tmp_path / BEGUN_FILE).read_text()) == {"forget": {"b": "2"}}
