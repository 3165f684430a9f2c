"""A document with which embedder, ranker or tokenizer cannot do anything is named, and the others are taken in."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from desks import finish, small_desk, write_pages

from app.desk.service import Service
from app.domain.errors import DeskError

CURSE = "Abracadabra"


@pytest.fixture
def pages(tmp_path):
    folder = write_pages(tmp_path / "pages")
    (folder / "cursed.md").write_text(f"# Cursed\n\n{CURSE} is written here.\n")
    return folder


def curse(owner: object, method: str, monkeypatch: pytest.MonkeyPatch, *, is_nan: bool = False) -> None:
    """From now on a method fails, or gives numbers that are none, if the word is in what it gets."""
    real = getattr(owner, method)

    def called(given: Any) -> Any:
        is_cursed = CURSE in str(given)
        if is_cursed and not is_nan:
            raise RuntimeError("tensor of the wrong size\nand a second line")
        found = real(given)
        return np.full_like(found, np.nan) if is_cursed else found

    monkeypatch.setattr(owner, method, called)


def names(desk: Service) -> list[str]:
    return sorted(Path(document.path).name for document in desk.documents())


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("embedder", "it cannot be embedded: tensor of the wrong size"),
        ("numbers", "it cannot be embedded: the embedder hash-256 returned a vector with undefined numbers"),
        ("tokenizer", "it cannot be cut into passages: tensor of the wrong size"),
    ],
)
def test_the_others_are_taken_in(tmp_path, pages, monkeypatch, part, reason):
    with small_desk(tmp_path / "desk") as desk:
        if part == "tokenizer":
            curse(desk._ingestion, "_count_tokens", monkeypatch)
        else:
            curse(desk.search.embedder, "embed_documents", monkeypatch, is_nan=part == "numbers")
        report = desk.ingest([pages])
        assert [(Path(one.path).name, one.reason) for one in report.failed] == [("cursed.md", reason)]
        assert names(desk) == ["gift-cards.md", "returns.md", "shipping.html", "stores.txt"]
        assert (report.documents, report.replaced, report.passages) == (4, 0, desk.library.counts().passages)
        assert finish(desk, "Where is the repair bench?").answer
        (pages / "stores.txt").write_text(f"Stores\n\n{CURSE}, the store in Galway has moved.\n")
        report = desk.ingest([pages], sync=True)
        assert (report.documents, report.replaced, report.removed, len(report.failed)) == (3, 0, 0, 2)
        assert len(names(desk)) == 4, "what an earlier run stored of it stays"


def test_what_the_ranker_cannot_read_is_a_warning_and_is_found_all_the_same(tmp_path, pages, monkeypatch):
    with small_desk(tmp_path / "desk") as desk:
        real = desk.statements.encoder.read

        def read(passages: Sequence[Any]) -> Any:
            if CURSE in str(passages):
                raise RuntimeError("tensor of the wrong size")
            return real(passages)

        monkeypatch.setattr(desk.statements.encoder, "read", read)
        report = desk.ingest([pages])
        assert [Path(one.path).name for one in report.warnings] == ["cursed.md"]
        assert "the ranker cannot read it" in report.warnings[0].reason
        assert (report.documents, report.failed, report.modules.failed) == (5, [], [])
        assert finish(desk, f"Where is {CURSE} written?").answer
    with small_desk(tmp_path / "desk") as desk:
        assert desk.ingest([pages]).warnings == [], "read again, and now it can be"
        assert not desk.library.without_statements(desk.statements.name)


def test_a_database_that_fails_is_no_bad_document(tmp_path, pages, monkeypatch):
    def full(*_: object) -> None:
        raise DeskError("the disk is full", code="disk-full")

    with small_desk(tmp_path / "desk") as desk:
        monkeypatch.setattr(desk.library, "stage", full)
        with pytest.raises(DeskError, match="the disk is full"):
            desk.ingest([pages])


def test_a_desk_with_undefined_numbers_among_its_vectors_opens_and_says_so(tmp_path, pages, caplog):
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        [bad] = desk.library.passages_of(str(pages / "cursed.md"))
        ids, vectors = desk.library.vectors(desk.search.embedder.dimension, desk.library.all_ids())
        desk.library.set_embeddings({bad.id: np.full_like(vectors[ids == bad.id], np.nan)})
        desk.settings.index_path.unlink()
    with small_desk(tmp_path / "desk") as desk:
        assert desk.search.snapshot.index.passage_ids == set(ids.tolist())
        assert finish(desk, f"Where is {CURSE} written?").answer
    [said] = [one.message for one in caplog.records if "undefined numbers" in one.message]
    assert said.startswith(f"{bad.document}: the vector of {bad.label!r} has undefined numbers")
