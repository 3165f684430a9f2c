"""Reranking: the order is the cross-encoder's, and a model that cannot be had is a clear error."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from desks import finish, small_desk, write_pages

from app.desk.service import Service
from app.knowledge.finder import Finder
from retrieval.errors import RetrievalError
from retrieval.search.retriever import CrossEncoderReranker, PassageHit, rerank


class Longest:
    """Takes the longest text for the best."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        self.asked.append((question, len(texts)))
        return [float(len(text)) for text in texts]


def found(id_: int) -> PassageHit:
    return PassageHit(id=id_, score=-id_, cosine=0.0, share=0.0)


def test_the_order_is_the_rerankers() -> None:
    texts = {1: "aa", 2: "aaaa", 3: "a", 4: "aa"}
    order = rerank(Longest(), "q", [found(id_) for id_ in texts], lambda hit: texts[hit.id])
    assert [hit.id for hit in order] == [2, 1, 4, 3]


def test_the_desk_asks_it_about_more_than_it_shows(tmp_path: Path) -> None:
    reranker = Longest()
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages"), passages=1) as desk:
        finder = Finder(desk.library, desk.search, desk.statements, desk.finder.classifier, reranker)
        judged = finder.judge("Can I return a gift card?", earlier=None, count=4)
        longest = max(
            (passage for document in desk.documents() for passage in desk.library.passages_of(document.path)),
            key=lambda passage: len("\n".join((*passage.heading_path, passage.text))),
        )
        assert judged.hits[0].id == longest.id
        assert reranker.asked == [("Can I return a gift card?", 4)]
        assert isinstance(desk, Service)
        assert finish(desk, "Can I return a gift card?").citations  # the desk itself has none set


def test_a_model_that_cannot_be_had_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RetrievalError, match=r"^reranker .*empty: cannot be loaded .*; give a folder or a hub name"):
        CrossEncoderReranker(str(tmp_path / "empty"))
