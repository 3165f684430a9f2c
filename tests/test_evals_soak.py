"""A small soak, and what its checks see."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from programs.soak import PARTS, ChangingPages, ProcessReading, growth, measure, quoted_before
from stored_answers import an_answer

STEADY = [ProcessReading(memory_mib=700.0, files=20, threads=15)] * PARTS


def test_a_small_soak_finds_nothing():
    result = measure(requests=16, clients=2, minutes=5.0, seed=0)
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
    found = measure(requests=8, clients=1, minutes=5.0, seed=0)["findings"]
    assert any(one.startswith("quotes page") for one in found)
