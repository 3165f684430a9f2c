"""Small runs of the chaos and hostile evaluations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

from desks import small_desk, write_pages

from evals.chaos import examine
from evals.hostile import TEXTS, Elements, mutated


def test_a_few_rounds_of_chaos() -> None:
    """In a process of its own, because it forks."""
    command = [sys.executable, "-m", "evals.chaos", "--rounds", "3"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=Path(__file__).parents[1])
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert (result["rounds"], result["findings"]) == (3, [])


def test_chaos_sees_what_is_lost_and_what_is_half_there(tmp_path: Path) -> None:
    write_pages(tmp_path / "pages")
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([tmp_path / "pages"])
    (tmp_path / "asked").write_text("no-such-conversation\n")
    (tmp_path / "desk" / "left.tmp").touch()
    assert examine(tmp_path, tmp_path / "asked") == ["conversation lost: no-such-conversation", "left over: left.tmp"]


def test_hostile_sees_an_element_that_is_not_the_desks_own() -> None:
    seeds = [text.encode(errors="replace") for text in TEXTS]
    assert [mutated(seeds[0], Random(1), seeds)] == [mutated(seeds[0], Random(1), seeds)]
    elements = Elements()
    elements.feed('<p dir="auto">fine</p><p onclick="x">not</p><img src=x><!-- not -->')
    assert len(elements.foreign) == 3
