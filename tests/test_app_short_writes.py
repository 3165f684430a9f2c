"""Whatever changes the documents leaves room for customers: no transaction changes many rows, and one that is killed in
between is done again. What a customer has read is stored although somebody else is writing.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from desks import small_desk, write_pages
from programs import forgetting_beside
from sqlalchemy import Connection, event
from stored_answers import an_answer, details
from test_app_ingestion_live import many as pages
from test_app_library import document, passage, store

from app.answering.answering import record_patiently
from app.desk.service import Service
from app.domain.documents import NewPassage
from app.domain.errors import DeskError
from app.storage import document_change
from app.storage import library as library_module
from app.storage.database import Database, open_database
from app.storage.document_change import DocumentChange
from app.storage.history import REMOVED_QUOTE, History

ROWS = 10
MOST = ROWS + 3  # of a document's own row, the count of changes and neighbours there is one each at most


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def database(tmp_path, monkeypatch):
    for module in (library_module, document_change):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", ROWS, raising=False)
    with closing(open_database(f"sqlite:///{tmp_path / 'desk.sqlite3'}")) as opened:
        yield opened


@contextmanager
def recorded(database: Database, *, killed_at: int | None = None) -> Iterator[list[int]]:
    """How many rows each transaction changed. killed_at: the number of the one that is not committed."""
    rows, before = list[int](), list[int]()

    def total(connection: Connection) -> int:
        return int(connection.connection.dbapi_connection.total_changes)  # type: ignore[union-attr]

    def began(connection: Connection) -> None:
        before.append(total(connection))

    def committed(connection: Connection) -> None:
        if changed := total(connection) - before[-1]:
            if len(rows) == killed_at:
                raise Killed
            rows.append(changed)

    for name, listener in (("begin", began), ("commit", committed)):
        event.listen(database.engine, name, listener)
    try:
        yield rows
    finally:
        for name, listener in (("begin", began), ("commit", committed)):
            event.remove(database.engine, name, listener)


def many(count: int, prefix: str = "p") -> list[NewPassage]:
    return [passage(f"{prefix}{number}") for number in range(count)]


def test_a_huge_document_is_stored_changed_and_removed_in_pieces(database, library):
    turned = [*many(25)[::-1], *many(25, "q")]
    moved = replace(document(), title="Other", collection="b")
    with recorded(database) as rows:
        store(library, document(), many(50))
        replaced = store(library, moved, turned)
        assert (len(replaced.kept), len(replaced.new), len(replaced.removed)) == (25, 25, 25)
        assert [one.content_hash for one in library.passages_of(document().path)] == [p.content_hash for p in turned]
        [removed] = library.remove([document().path])
        assert removed.removed == tuple(sorted(replaced.ids))
    assert library.documents() == []
    assert max(rows) <= MOST
    assert len(rows) == 5 + 10 + 5


@pytest.mark.parametrize("step", ["store", "change", "remove"])
def test_a_change_that_is_killed_between_pieces_is_done_by_the_next(database, library, step):
    changed = replace(document(content_hash="b2:2"), title="Other")
    steps: dict[str, Callable[[], object]] = {
        "store": lambda: store(library, document(), many(35)),
        "change": lambda: store(library, changed, many(25)[::-1]),
        "remove": lambda: library.remove([document().path]),
    }
    run = steps[step]
    for killed_at in range(100):
        library.remove([document().path])
        if step != "store":
            steps["store"]()
        try:
            with recorded(database, killed_at=killed_at):
                run()
            break
        except Killed:
            found = library.find(document().path)
            if killed_at:
                assert found is not None
                assert found.content_hash == document_change.UNFINISHED
        run()
        stored = [one.content_hash for one in library.passages_of(document().path)]
        if step == "remove":
            assert (library.documents(), stored, library.all_ids()) == ([], [], [])
        else:
            expected = many(35) if step == "store" else many(25)[::-1]
            assert stored == [one.content_hash for one in expected]
            found = library.find(document().path)
            assert found is not None
            assert (found.content_hash, found.title) == (("b2:1", "Returns") if step == "store" else ("b2:2", "Other"))
    assert killed_at > 2


def test_what_is_kept_of_all_passages_is_written_in_pieces(database, library):
    ids = store(library, document(), many(35)).ids
    vectors = {f"hash {number}": np.zeros((1, 3), np.float32) for number in range(35)}
    for first in range(0, 35, 5):
        library.stage("hash", dict(list(vectors.items())[first : first + 5]))
    with recorded(database) as rows:
        library.set_embeddings(dict.fromkeys(ids, np.ones((1, 3), np.float32)))
        library.set_module_keys(dict.fromkeys(ids, "key"))
        assert library.set_neighbours({id_: [ids[0]] for id_ in ids[1:]}) == ()
        library.clear_staged()
    assert len(rows) == 16
    assert max(rows) <= 3 * ROWS, "a neighbour, the passage's key"
    assert not library.staged("hash", vectors, 3)


def test_a_collection_is_forgotten_and_a_folder_emptied_document_by_document(tmp_path):
    shop, club = (pages(tmp_path / name, 12) for name in ("shop", "club"))
    with small_desk(tmp_path / "desk", neighbours=0) as desk:
        desk.ingest([shop], warm=False, collection="shop")
        desk.ingest([club], warm=False, collection="club")
        for page in sorted(club.iterdir())[1:]:
            page.unlink()
        with recorded(desk.database) as rows:
            assert desk.forget_collection("shop").documents == 12
            assert desk.ingest([club], warm=False, collection="club", sync=True).removed == 11
        assert len(desk.documents()) == 1
    assert max(rows) < 12


def test_customers_are_answered_while_many_passages_are_forgotten():
    """While thousands are: `make forgetting`."""
    result = forgetting_beside.measure(passages=100, customers=4)
    assert result["findings"] == []
    assert result["forgotten"] == 100
    assert result["answered"] >= 4


def test_answers_lose_a_document_some_at_a_time(database, monkeypatch):
    monkeypatch.setattr("app.storage.history._FORGOTTEN_AT_ONCE", ROWS, raising=False)
    history = History(database)
    conversation = history.start_conversation("Many answers")
    for _ in range(25):
        question = history.record_question(conversation, "?")
        answer = replace(an_answer(conversation), quoted=True)
        history.record_answer(answer, details(question, answer))
    with recorded(database) as rows:
        history.forget_document("/kb/returns.md")
    assert history.quotes_of("/kb/returns.md") == 0
    assert [turn.text for turn in history.turns(conversation)][1::2] == [REMOVED_QUOTE] * 25
    assert max(rows) <= 2 * ROWS


class Held:
    """A history whose database another process holds for some tries."""

    def __init__(self, desk: Service, tries: int) -> None:
        self._desk, self._tries, self.failed = desk, tries, list[str]()
        self._record = desk.history.record_answer
        self._other = sqlite3.connect(str(desk.database.engine.url.database), isolation_level=None)

    def hold(self) -> None:
        self._other.execute("BEGIN IMMEDIATE")

    def record_answer(self, *given: Any) -> None:
        try:
            self._record(*given)
        except DeskError as error:
            self.failed.append(error.code)
            if len(self.failed) == self._tries:
                self._other.close()
            raise


def test_an_answer_that_was_read_is_stored_although_another_process_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("app.storage.sqlite.BUSY_TIMEOUT_MS", 10)
    monkeypatch.setattr("app.answering.answering.FIRST_PAUSE_S", 0.01)
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([write_pages(tmp_path / "pages")], warm=False)
        held = Held(desk, 3)
        monkeypatch.setattr(desk.history, "record_answer", held.record_answer)
        stream = desk.ask("Where is the repair bench?")
        reading = iter(stream)
        text = next(reading)
        held.hold()
        text += "".join(reading)
        assert held.failed == ["database-busy"] * 3
        assert [turn.text for turn in desk.turns(stream.conversation_id)][1] == stream.answer.answer == text


@pytest.mark.parametrize(("code", "is_ending", "patience_s"), [("busy", 1, 60), ("busy", 0, 0), ("no-message", 0, 60)])
def test_an_answer_that_cannot_be_stored_is_given_up(code, is_ending, patience_s):
    """When the desk is closed, when it took too long, and where another try is no use."""
    tries, ending = list[object](), threading.Event()

    def record(*given: object) -> None:
        tries.append(given)
        raise DeskError("it cannot be stored", code=f"database-{code}" if code == "busy" else code)

    if is_ending:
        ending.set()
    history: Any = SimpleNamespace(record_answer=record)
    answer = an_answer("c")
    with pytest.raises(DeskError, match="it cannot be stored"):
        record_patiently(history, answer, details("q", answer), ending, patience_s)
    assert len(tries) == 1


def test_an_answer_is_stored_once_although_it_is_recorded_twice(database):
    history = History(database)
    conversation = history.start_conversation("Twice")
    answer = an_answer(conversation)
    asked = details(history.record_question(conversation, "?"), answer)
    for _ in range(2):
        history.record_answer(answer, asked)
    assert len(history.turns(conversation)) == 2


def test_what_was_stored_before_a_change_failed_is_found(tmp_path, monkeypatch):
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([write_pages(tmp_path / "pages")], warm=False)
        first, *others = [one.path for one in desk.documents()]

        def remove(paths: list[str]) -> None:
            DocumentChange(desk.database, first).run(None)
            raise DeskError("the disk is full", code="disk-full")

        monkeypatch.setattr(desk.library, "remove", remove)
        with pytest.raises(DeskError, match="the disk is full"):
            desk._ingestion.remove([first, *others])
        assert desk.search.snapshot.index.passage_ids == desk.library.ids_of(others)
