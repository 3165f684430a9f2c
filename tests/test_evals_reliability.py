"""Small runs of the chaos and hostile evaluations."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import Random

from desks import small_desk, write_pages
from programs.desk_examination import ROWS, Place, examine, examine_older, make_older, open_older
from programs.hostile import TEXTS, Elements, measure, mutated

FROZEN_AND_CHAOS = """
import json, sys
from pathlib import Path
from programs.chaos import ReadOnlyFolder, in_process, measure, obey_permissions

folder = Path(sys.argv[1])

def denied():
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

print(json.dumps({"denied": in_process(denied), **measure(rounds=2, seed=0)}))
"""


def test_a_few_rounds_of_chaos_in_which_a_read_only_folder_takes_nothing_from_root_either(tmp_path):
    """In a process of its own, because it forks."""
    (tmp_path / "a.md").write_text("as it was")
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])}
    ran = subprocess.run(
        [sys.executable, "-c", FROZEN_AND_CHAOS, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=root,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
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
    result = measure(cases=30, seed=0)
    assert result["findings"] == []
    assert set(result["done"].values()) == {3}, "three in each place"


def test_hostile_sees_an_element_that_is_not_the_desks_own():
    seeds = [text.encode(errors="replace") for text in TEXTS]
    assert [mutated(seeds[0], Random(1), seeds)] == [mutated(seeds[0], Random(1), seeds)]
    elements = Elements()
    elements.feed('<p dir="auto">fine</p><p onclick="x">not</p><img src=x><!-- not -->')
    assert len(elements.foreign) == 3
