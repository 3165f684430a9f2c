"""Whatever changes the documents leaves room for customers: no transaction changes many rows, and one that is killed in
between is done again. What a customer has read is stored although somebody else is writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Connection, event
from test_app_library import document, passage, store

from app.domain.documents import NewPassage
from app.storage import document_change
from app.storage import library as library_module
from app.storage.database import Database, open_database
from app.storage.library import Library

ROWS = 10
MOST = ROWS + 3
"""Of a document's own row, the count of changes and neighbours there is one each at most."""


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    for module in (library_module, document_change):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", ROWS, raising=False)
    with closing(open_database(f"sqlite:///{tmp_path / 'desk.sqlite3'}")) as opened:
        yield opened


@pytest.fixture
def library(database: Database) -> Library:
    return Library(database)


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


def test_a_huge_document_is_stored_changed_and_removed_in_pieces(database: Database, library: Library) -> None:
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
def test_a_change_that_is_killed_between_pieces_is_done_by_the_next(
    database: Database, library: Library, step: str
) -> None:
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
            assert library.documents() == stored == library.all_ids() == []
        else:
            expected = many(35) if step == "store" else many(25)[::-1]
            assert stored == [one.content_hash for one in expected]
            found = library.find(document().path)
            assert found is not None
            assert (found.content_hash, found.title) == (("b2:1", "Returns") if step == "store" else ("b2:2", "Other"))
    assert killed_at > 2


def test_what_is_kept_of_all_passages_is_written_in_pieces(database: Database, library: Library) -> None:
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
