"""The vectors of stored passages' statements: read once, kept, read again when they would be others."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from desks import small_desk, write_pages
from hashed_search import HashRanker

from app.desk.service import Service
from app.domain.documents import StoredPassage
from app.knowledge import finder as store_module
from app.knowledge.finder import PassageStatements, StatementStore
from retrieval.ranking.encoder import PassageToRead, StatementVectors
from retrieval.statements.cut import VERSION
from retrieval.statements.grouping import Statement


class CountingRanker(HashRanker):
    """Remembers the texts it has read. name: of its vectors."""

    def __init__(self, name: str = "counting") -> None:
        super().__init__()
        self.name, self.texts = name, list[str]()  # type: ignore[misc]  # a class variable of the other

    def read(self, passages: Sequence[PassageToRead]) -> list[StatementVectors]:
        self.texts += [passage.text for passage in passages]
        return super().read(passages)


@contextmanager
def desk_with_pages(folder: Path) -> Iterator[tuple[Service, list[StoredPassage]]]:
    with small_desk(folder / "desk") as desk:
        desk.ingest([write_pages(folder / "pages")], warm=False)
        yield desk, desk.library.passages(sorted(desk.library.all_ids()))


def kept(desk: Service, ranker: HashRanker) -> dict[int, bytes]:
    return desk.library.statement_vectors(StatementStore(desk.library, ranker).name, desk.library.all_ids())


def same(one: Sequence[PassageStatements], other: Sequence[PassageStatements]) -> bool:
    return [(a.statements, a.vectors.packed()) for a in one] == [(b.statements, b.vectors.packed()) for b in other]


def test_passages_are_read_when_they_are_ingested(tmp_path):
    with desk_with_pages(tmp_path) as (desk, passages):
        assert set(kept(desk, HashRanker())) == {passage.id for passage in passages}
        ranker = CountingRanker("hash")
        found = StatementStore(desk.library, ranker).of(passages)
    assert ranker.texts == []
    for passage, one in zip(passages, found, strict=True):
        assert one.statements
        assert len(one.vectors) == len(one.statements)
        spans = [(statement.start, statement.end) for statement in one.statements]
        read = HashRanker().read([PassageToRead(headings=(), text=passage.text, spans=spans)])[0]
        assert np.array_equal(read.whole, one.vectors.whole)


def test_statements_are_packed_without_loss():
    statements = (Statement("Öffnen Sie das Gerät.\n2. 退货", 3, 9, "procedure"), Statement("\udc80 a", 0, 1, "item"))
    vectors = HashRanker().read([PassageToRead(headings=(), text="abc def", spans=[(0, 3), (4, 7)])])[0]
    packed = PassageStatements(statements=statements, vectors=vectors).packed()
    again = PassageStatements.unpacked(packed)
    assert again.statements == statements
    assert again.vectors.packed() == vectors.packed()
    for damaged in (b"", packed[:3], packed[:20], packed[:-1], packed[5:]):
        with pytest.raises(ValueError, match=""):
            PassageStatements.unpacked(damaged)


def test_a_passage_is_read_once(tmp_path):
    with desk_with_pages(tmp_path) as (desk, passages):
        ranker = CountingRanker()
        first = StatementStore(desk.library, ranker).of(passages[1:])
        again = StatementStore(desk.library, ranker).of(passages[::-1])
        assert ranker.texts == [passage.text for passage in [*passages[1:], passages[0]]]
        assert same(again[:-1], first[::-1])
        assert set(kept(desk, ranker)) == {passage.id for passage in passages}
        assert StatementStore(desk.library, ranker).of([]) == []


def test_of_a_changed_page_only_what_changed_is_read_and_once_although_it_says_nothing(tmp_path):
    with desk_with_pages(tmp_path) as (desk, _):
        desk.statements.encoder = ranker = CountingRanker("hash")
        changed = tmp_path / "pages" / "stores.txt"
        changed.write_text("Stores\n\nIs there a store in Cork?\n")
        desk.ingest([changed.parent], warm=False)
        (one,) = StatementStore(desk.library, ranker).of(desk.library.passages_of(str(changed)))
        assert (one.statements, len(one.vectors), len(ranker.texts)) == ((), 0, 1)


@pytest.mark.parametrize("change", ["ranker", "cut"])
def test_a_passage_is_read_again_if_its_vectors_would_be_others(tmp_path, monkeypatch, change):
    with desk_with_pages(tmp_path) as (desk, passages):
        store = StatementStore(desk.library, CountingRanker())
        store.of(passages)
        former = store.name
        ranker = CountingRanker("better" if change == "ranker" else "counting")
        if change == "cut":
            monkeypatch.setattr(store_module, "VERSION", VERSION + 1)
        found = StatementStore(desk.library, ranker).of(passages)
        assert ranker.texts == [passage.text for passage in passages]
        assert same(StatementStore(desk.library, ranker).of(passages), found)
        assert len(ranker.texts) == len(passages)
        before = desk.library.statement_vectors(former, desk.library.all_ids())
        assert before == {}, "the former vectors are replaced"


def test_vectors_go_with_their_passage(tmp_path):
    with desk_with_pages(tmp_path) as (desk, passages):
        desk.forget("gift-cards.md")
        left = {passage.id for passage in passages if "gift-cards" not in passage.document}
        assert len(left) < len(passages)
        name, ids = desk.statements.name, [passage.id for passage in passages]
        assert set(desk.library.statement_vectors(name, ids)) == left
        desk.library.keep_statement_vectors(name, dict.fromkeys(ids, b""))
        assert set(desk.library.statement_vectors(name, ids)) == left
