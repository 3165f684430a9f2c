"""What was begun comes to its end: killed at each of its steps, and again while that is made good."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from desks import finish, small_desk
from forgetting import SECRET, files_with, kept, modules
from killing import kill_again, left_by_kills
from tiny import build

from app.desk.service import Service
from app.domain.quality import FaqDraft
from app.storage.begun import BEGUN_FILE, BegunWork
from app.storage.database import open_database
from app.storage.lock import lock_data_folder
from app.support.faq import document_of
from retrieval.documents.document import content_hash

PAIR = FaqDraft(question="Can a kettle be mended?", answer="On Fridays, in Cork.")


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is there after a kill. Desks that are opened one after another share a model, and what the
    database's library has compiled.
    """
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.setattr("app.desk.parts.open_database", cache(open_database))
    monkeypatch.setattr("desks.build", cache(build))


def kill_everywhere(
    folder: Path,
    prepare: Callable[[Service], object],
    work: Callable[[Service], object],
    check: Callable[[Service, bool], None],
) -> None:
    """Kill a desk at each line of some work, and again while it is opened, and look at it when it is open. check: is
    given the desk, and whether the work was noted when it was killed.
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
    kill_again(left, home, folder / "two", finish)


def test_a_document_is_forgotten_whenever_the_desk_is_killed(tmp_path: Path) -> None:
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
        desk._ingestion.forget_unused()  # as `prepare` does
        assert modules(desk) <= kept(desk)
        assert files_with(desk.settings.data_dir, SECRET) == set()
        assert [path.name for path in desk.settings.uploads_folder.iterdir()] == ["other.md"]
        assert len(desk.search.snapshot.index.passage_ids) == desk.library.counts().passages == 1

    kill_everywhere(tmp_path, prepare, lambda desk: desk.forget("secret.md"), check)


@pytest.mark.parametrize("is_new", [True, False])
def test_an_upload_is_whole_or_not_there_whenever_the_desk_is_killed(tmp_path: Path, is_new: bool) -> None:
    def upload(desk: Service, price: int) -> None:
        desk.upload("lamps.md", f"# Lamps\n\nA lamp costs {price} euros.\n".encode(), collection="shop")

    def check(desk: Service, is_noted: bool) -> None:
        file = desk.settings.uploads_folder / "shop.d" / "lamps.md"
        stored = desk.library.find(str(file))
        assert file.exists() == (stored is not None)
        if stored is not None:
            assert stored.content_hash.startswith(content_hash(file.read_bytes()))
            assert stored.collection == "shop"

    kill_everywhere(tmp_path, lambda desk: is_new or upload(desk, 1), lambda desk: upload(desk, 2), check)


@pytest.mark.parametrize("change", ["added", "changed", "deleted"])
def test_the_faq_and_its_document_are_in_step_whenever_the_desk_is_killed(tmp_path: Path, change: str) -> None:
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

    kill_everywhere(tmp_path, lambda desk: change == "added" or desk._faq_editor.save(PAIR, "ann"), work, check)


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
        assert (
            "unfinished work (upload) failed again and will be retried: documents are already being ingested"
            in caplog.text
        )
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
