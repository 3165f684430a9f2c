"""Folders that are read again and again: what a reading does, when it is due, and what must never happen to documents
because a disk is not there.
"""

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from desks import small_desk, write_pages
from refusals import one_line

from app.desk.repeating import syncing
from app.desk.service import Service
from app.domain.callers import SCHEDULE
from app.domain.documents import SyncedFolder, SyncResult, UnreadFile
from app.domain.errors import DeskError
from app.domain.progress import Progress
from app.knowledge.ingest import IngestReport
from app.knowledge.uploads import FAILED, SyncStopped
from app.knowledge.websites import KEPT_FILES, result_of
from app.storage.faq import SyncedFolderTable
from app.storage.people import Audit


@pytest.fixture
def desk(tmp_path, database_url):
    with small_desk(tmp_path / "desk", database_url=database_url, neighbours=0) as desk:
        yield desk


ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""Of tests that ask little of the database."""


def save(desk: Service, folder: Path | str, collection: str = "", every: int = 60) -> SyncedFolder:
    return desk.synced.save(str(folder), collection, every, who="ann")


def run(desk: Service, folder: Path) -> SyncResult:
    return desk.synced.run(str(folder), who="ann")


def counts(result: SyncResult | None) -> tuple[int, int, int, int]:
    assert result is not None
    return result.added, result.changed, result.removed, result.unchanged


def audited(desk: Service) -> list[tuple[str, str, str]]:
    return [(one.who, one.action, one.subject) for one in reversed(Audit(desk.database).latest())]


def stored(desk: Service, folder: Path) -> SyncedFolder:
    return next(one for one in desk.synced.all() if one.folder == str(folder))


# --- readings ----------------------------------------------------------------------------------------------


def test_a_folder_is_kept_in_step_and_what_changed_is_counted(desk, pages):
    saved = save(desk, pages, " shop ")
    assert (saved.collection, saved.last_run, saved.last_result) == ("shop", None, None)
    first = run(desk, pages)
    assert {one.collection for one in desk.documents()} == {"shop"}
    same = run(desk, pages)
    (pages / "returns.md").write_text("# Returns\n\nReturns take forty days.\n")
    (pages / "new.md").write_text("# New\n\nSomething new.\n")
    (pages / "stores.txt").unlink()
    changed = run(desk, pages)
    assert [counts(one) for one in (first, same, changed)] == [(4, 0, 0, 0), (0, 0, 0, 4), (1, 1, 1, 2)]
    assert stored(desk, pages).last_result == changed
    assert audited(desk) == [
        ("ann", "sync-save", f"{pages} (60 min, shop)"),
        ("ann", "sync", f"{pages} +4 ~0 -0"),
        ("ann", "sync", f"{pages} +1 ~1 -1"),
    ]


def test_the_next_reading_is_due_when_its_time_has_come(desk, pages):
    before = datetime.now(UTC)
    save(desk, pages, every=30)
    assert [one.folder for one in SyncedFolderTable(desk.database).due(datetime.now(UTC))] == [str(pages)]
    run(desk, pages)
    one = stored(desk, pages)
    assert one.last_run is not None
    assert before <= one.last_run <= datetime.now(UTC)
    assert one.next_run - one.last_run == timedelta(minutes=30)
    table = SyncedFolderTable(desk.database)
    assert table.due(one.next_run - timedelta(seconds=1)) == []
    assert table.due(one.next_run) == [one]
    assert table.due(one.next_run - timedelta(minutes=31)) == [one], "the clock was set back"


def test_saving_again_changes_how_it_is_read_and_keeps_the_last_result(desk, pages):
    save(desk, pages)
    result = run(desk, pages)
    again = save(desk, pages, "club", every=120)
    assert (again.collection, again.every_minutes, again.last_result) == ("club", 120, result)
    assert len(desk.synced.all()) == 1
    assert counts(run(desk, pages)) == (0, 4, 0, 0), "they move to the other collection"


def test_a_folder_that_is_synchronised_no_more_leaves_its_documents(desk, pages):
    save(desk, pages)
    run(desk, pages)
    desk.synced.remove(str(pages), who="ann")
    assert (desk.synced.all(), len(desk.documents())) == ([], 4)
    for act in (lambda: desk.synced.remove(str(pages), who="ann"), lambda: run(desk, pages)):
        with one_line("sync-unknown", "not synchronised"):
            act()
    assert audited(desk)[-1] == ("ann", "sync-remove", str(pages))


def test_files_that_cannot_be_read_are_named_and_the_others_are_in(desk, pages):
    many = result_of(IngestReport(documents=1, failed=[UnreadFile(path=str(i), reason="no") for i in range(50)]))
    assert (len(many.files), many.num_files, many.is_ok) == (KEPT_FILES, 50, True)
    (pages / "scan.bin").write_bytes(b"\0\1\2" * 99)
    save(desk, pages)
    result = run(desk, pages)
    assert (result.is_ok, counts(result), result.num_files) == (True, (4, 0, 0, 0), 1)
    assert result.files[0].path == str(pages / "scan.bin")
    assert stored(desk, pages).last_result == result


# --- failures ----------------------------------------------------------------------------------------------


@ON_SQLITE
@pytest.mark.parametrize(("is_there", "code"), [(False, "sync-gone"), (True, "sync-nothing")])
def test_a_disk_that_is_not_mounted_removes_nothing_and_is_a_failure(desk, pages, tmp_path, is_there, code):
    save(desk, pages)
    run(desk, pages)
    pages.rename(tmp_path / "away")
    if is_there:
        pages.mkdir()
    result = run(desk, pages)
    assert (result.is_ok, result.code, len(desk.documents())) == (False, code, 4)
    assert "mounted?" in result.problem
    one = stored(desk, pages)
    assert (one.last_result, one.next_run > datetime.now(UTC)) == (result, True)
    if is_there:
        pages.rmdir()
    (tmp_path / "away").rename(pages)
    assert counts(run(desk, pages)) == (0, 0, 0, 4)
    assert len(audited(desk)) == 2, "neither changed anything"


@ON_SQLITE
def test_a_failure_of_ours_is_recorded_without_its_words(desk, pages, monkeypatch, caplog):
    def broken(*_: object) -> None:
        raise RuntimeError("an internal path /secret/place")

    save(desk, pages)
    monkeypatch.setattr(desk._ingestion, "_store_files", broken)
    assert run(desk, pages) == SyncResult(code="internal", problem=FAILED)
    assert "could not be synchronised" in caplog.text
    monkeypatch.undo()
    assert run(desk, pages).is_ok


@ON_SQLITE
@pytest.mark.parametrize(
    ("folder", "code"),
    [
        ("pages", "sync-relative"),
        ("~/pages", "sync-relative"),
        ("{}/none", "sync-gone"),
        ("{}/pages/returns.md", "sync-gone"),
        ("{}/desk/uploads", "sync-own-folder"),
        ("{}/link-to-desk", "sync-own-folder"),
        ("/", "sync-own-folder"),
        ("/etc", "sync-system"),
        ("{}/.hidden/pages", "sync-system"),
        ("{}/link-to-hidden", "sync-system"),
        ("{}/help/shop", "sync-overlap"),
        ("{}/above", "sync-overlap"),
    ],
)
def test_folders_that_cannot_be_synchronised(desk, pages, tmp_path, folder, code):
    for name in ("help/shop", "above/below", "desk/uploads", ".hidden/pages"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "link-to-desk").symlink_to(tmp_path / "desk")
    (tmp_path / "link-to-hidden").symlink_to(tmp_path / ".hidden")
    for there in ("help", "above/below"):
        save(desk, tmp_path / there)
    with one_line(code):
        save(desk, folder.format(tmp_path))
    assert len(desk.synced.all()) == 2


@ON_SQLITE
def test_intervals_and_names_of_collections_have_limits(desk, pages):
    for every in (4, 31 * 24 * 60 + 1):
        with one_line("sync-interval"):
            save(desk, pages, every=every)
    with one_line("sync-collection", "at most 80 characters"):
        save(desk, pages, "x" * 81)
    save(desk, pages, "x" * 80, every=5)


@ON_SQLITE
def test_a_folder_that_may_not_be_read(desk, pages, monkeypatch):
    """Simulated: permission bits do not stop root."""

    def denied(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("app.knowledge.uploads.os.listdir", denied)
    with one_line("sync-unreadable", "Permission denied"):
        save(desk, pages)


# --- the schedule ------------------------------------------------------------------------------------------


def test_what_is_due_is_read_one_after_another(desk, pages, tmp_path):
    other = write_pages(tmp_path / "other")
    save(desk, other)
    save(desk, pages)
    seen: list[str] = []

    def look(stage: str, done: int, total: int) -> None:
        with pytest.raises(DeskError, match="already being ingested"):
            run(desk, pages)
        seen.append(stage)

    desk.synced.run_due(look)
    assert seen
    assert [counts(one.last_result) for one in desk.synced.all()] == [(4, 0, 0, 0)] * 2
    assert [one[:2] for one in audited(desk)[2:]] == [(SCHEDULE, "sync")] * 2
    desk.synced.run_due(lambda *_: pytest.fail("nothing is due"))


@ON_SQLITE
def test_beside_another_ingest_or_stopped_it_is_due_and_no_failure(desk, pages):
    def stop(stage: str, done: int, total: int) -> None:
        raise SyncStopped

    save(desk, pages)
    due = stored(desk, pages)
    with pytest.raises(SyncStopped):
        desk.synced.run_due(stop)
    assert stored(desk, pages) == due

    def meanwhile(stage: str, done: int, total: int) -> None:
        desk.synced.run_due()
        assert stored(desk, pages) == due

    desk.ingest([pages], meanwhile, warm=False)  # while passages are encoded, nobody waits
    desk.synced.run_due()
    assert counts(stored(desk, pages).last_result) == (0, 0, 0, 4)


@ON_SQLITE
def test_a_folder_that_is_removed_while_it_is_read_is_gone(desk, pages):
    save(desk, pages)

    def remove(stage: str, done: int, total: int) -> None:
        if desk.synced.all():
            desk.synced.remove(str(pages), who="ann")

    assert desk.synced.run(str(pages), remove, who="ann").added == 4
    assert desk.synced.all() == []


@pytest.fixture
def _often(monkeypatch):
    monkeypatch.setattr("app.desk.repeating.LOOK_EVERY_S", 0.01)


@pytest.mark.usefixtures("_often")
def test_a_served_desk_reads_what_is_due_and_goes_on_after_a_failure(caplog):
    times, ready, done = 0, [False, True, True], threading.Event()

    def run_due(progress: Progress) -> None:
        nonlocal times
        times += 1
        if times == 1:
            raise DeskError("the disk is full")
        done.set()

    with syncing(run_due, lambda: ready.pop(0) if ready else True):
        assert done.wait(10)
    assert "syncing failed" in caplog.text
    assert not [thread for thread in threading.enumerate() if thread.name == "syncing"]


@pytest.mark.usefixtures("_often")
def test_a_desk_that_is_closed_ends_a_reading(caplog):
    begun = threading.Event()

    def endless(progress: Progress) -> None:
        begun.set()
        while True:
            progress("reading", 1, 2)

    with syncing(endless, lambda: True):
        assert begun.wait(10)
    assert not [thread for thread in threading.enumerate() if thread.name == "syncing"]
    assert caplog.text == ""


# --- collections and synchronised folders ------------------------------------------------------------------


@ON_SQLITE
def test_a_collection_that_a_folder_feeds_is_not_forgotten(desk, pages):
    save(desk, pages, "shop")
    run(desk, pages)
    with pytest.raises(DeskError, match="remove that folder first") as caught:
        desk.forget_collection("shop")
    assert (caught.value.code, len(desk.documents())) == ("collection-synced", 4)
    desk.synced.remove(str(pages), who="ann")
    assert desk.forget_collection("shop").documents == 4
