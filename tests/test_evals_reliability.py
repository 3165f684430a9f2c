"""Small runs of the chaos, hostile and soak evaluations, and what their checks see."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from desks import small_desk, write_pages
from forked import Forked
from programs.chaos import ReadOnlyFolder, in_process, obey_permissions
from programs.chaos import measure as chaos
from programs.desk_examination import ROWS, Place, examine, examine_older, make_older, open_older
from programs.hostile import TEXTS, Elements, mutated
from programs.hostile import measure as hostile
from programs.soak import PARTS, ChangingPages, ProcessReading, growth, quoted_before
from programs.soak import measure as soak
from stored_answers import an_answer


def freeze_and_make_chaos(folder: Path) -> None:
    def denied() -> list[str]:
        frozen = ReadOnlyFolder(folder)
        frozen.freeze()
        frozen.freeze()
        obey_permissions()
        found = []
        for file in (folder / "a.md", folder / "new.md"):
            try:
                file.write_text("changed")
            except PermissionError:
                found.append(file.name)
        frozen.thaw()
        (folder / "a.md").write_text("changed")
        return found

    print(json.dumps({"denied": in_process(denied), **chaos(rounds=2, seed=0)}))


def test_a_few_rounds_of_chaos_in_which_a_read_only_folder_takes_nothing_from_root_either(tmp_path):
    """In a process of its own, because it forks."""
    (tmp_path / "a.md").write_text("as it was")
    status, said, errors = Forked(freeze_and_make_chaos, tmp_path).result()
    assert status == 0, errors
    result = json.loads(said)
    assert (result["rounds"], result["findings"]) == (2, [])
    assert result["denied"] == ["a.md", "new.md"]
    assert (tmp_path / "a.md").read_text() == "changed", "as before, once it is thawed"


def test_chaos_sees_what_is_lost_and_what_is_half_there(tmp_path):
    place = Place(tmp_path)
    write_pages(place.pages)
    with small_desk(place.desk) as desk:
        desk.ingest([place.pages])
    place.asked.write_text("no-such-conversation\n")
    (place.desk / "left.tmp").touch()
    assert examine(place) == ["conversation lost: no-such-conversation", "left over: left.tmp"]


def test_chaos_sees_what_a_migration_loses(tmp_path):
    place = Place(tmp_path)
    rows = make_older(place)
    open_older(place)
    assert examine_older(place, rows) == []
    with closing(sqlite3.connect(place.older / "warmdesk.sqlite3")) as connection, connection:
        connection.execute("DELETE FROM facts")
    [copy] = place.older.glob("*.before-*")
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute("DELETE FROM documents")
    assert examine_older(place, rows) == [f"facts had {ROWS} rows and has 0", "the copy lacks rows"]
    copy.unlink()
    assert examine_older(place, rows)[1:] == ["0 copies from before the migration"]


def test_a_few_hostile_cases():
    result = hostile(cases=20, seed=0)
    assert result["findings"] == []
    assert set(result["done"].values()) == {2}, "two in each place"


def test_hostile_sees_an_element_that_is_not_the_desks_own():
    seeds = [text.encode(errors="replace") for text in TEXTS]
    assert [mutated(seeds[0], Random(1), seeds)] == [mutated(seeds[0], Random(1), seeds)]
    elements = Elements()
    elements.feed('<p dir="auto">fine</p><p onclick="x">not</p><img src=x><!-- not -->')
    assert len(elements.foreign) == 3


STEADY = [ProcessReading(memory_mib=700.0, files=20, threads=15)] * PARTS


def test_a_small_soak_finds_nothing():
    result = soak(requests=16, clients=2, minutes=5.0, seed=0)
    assert (result["requests"], sum(result["outcomes"].values()), sum(result["changes"].values())) == (16, 16, 1)
    assert len(result["readings"]) == PARTS
    # Other tests, too, leave memory in this process that grows or shrinks.
    assert [one for one in result["findings"] if not one.startswith("memory_mib grew")] == []


@pytest.mark.parametrize(("name", "by"), [("memory_mib", 10.0), ("files", 1), ("threads", 1)])
def test_soak_sees_a_leak(name, by):
    growing = [replace(one, **{name: getattr(one, name) + number * by}) for number, one in enumerate(STEADY)]
    [found] = growth(growing)
    assert found.startswith(f"{name} grew from ")


def test_soak_sees_an_answer_that_quotes_what_was_replaced():
    said = replace(an_answer("c" * 32), answer="Item 1 of page 3 edition 4 costs 5.")
    assert quoted_before(said, {3: 4}) == []
    assert quoted_before(said, {3: 5}) == ["quotes page 3 edition 4"]
    cited = replace(said, answer="", citations=(replace(said.citations[0], quote="Item 1 of page 2 edition 1"),))
    assert quoted_before(cited, {2: 2}) == ["quotes page 2 edition 1"]


def test_soak_sees_that_forgetting_does_nothing(monkeypatch):
    """The whole way: every page counts as replaced from the first question on, and is found all the same."""

    def replaced(pages: ChangingPages, folder: Path, rng: Random) -> None:
        written(pages, folder, rng)
        pages.oldest = {page: edition + 1 for page, edition in pages.editions.items()}

    written = ChangingPages.__init__
    monkeypatch.setattr(ChangingPages, "__init__", replaced)
    found = soak(requests=8, clients=1, minutes=5.0, seed=0)["findings"]
    assert any(one.startswith("quotes page") for one in found)
