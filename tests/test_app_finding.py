"""What the desk's documents say to a question: wordings, passages, statements, and documents that change meanwhile."""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pytest
from hashed_search import HashEmbedder, HashRanker
from meanings import MeaningEmbedder, retriever_of
from stored_answers import a_passage

from app.domain.documents import StoredPassage
from app.knowledge.finder import NOTHING, Finder, SearchResults, StatementStore, wordings
from app.knowledge.search import Search
from app.storage.library import Library
from retrieval.answerability import rule_of_thumb
from retrieval.search.embedding import Embedder
from retrieval.search.retriever import Retriever
from retrieval.search.vector_index import window_texts

PAGES = {
    1: ("Returns", "Returns take thirty days. Keep the receipt. Do you need a label?"),
    2: ("Gift cards", "Gift cards cannot be returned. A card lasts five years."),
    3: ("Shipping", "Standard shipping costs 4.95."),
}


class Desk:
    """The library and the search of a desk with some pages. when_read: called before each reading of passages.
    when_waited: called when a question waits until no change is under way.
    """

    def __init__(self, pages: Mapping[int, tuple[str, str]] = PAGES, embedder: Embedder | None = None) -> None:
        self.embedder = embedder or HashEmbedder()
        self.pages: Mapping[int, tuple[str, str]] = pages
        self.readings: list[list[int]] = []
        self.kept: dict[tuple[str, int], bytes] = {}
        self.when_read: Callable[[], None] = lambda: None
        self.when_waited: Callable[[], None] = lambda: None
        self.publish(pages)

    def publish(self, pages: Mapping[int, tuple[str, str]]) -> None:
        """Both the library and the search have these pages now."""
        self.pages = pages
        self.everything: Retriever = retriever_of(
            {id_: window_texts([heading], text) for id_, (heading, text) in pages.items()}, self.embedder
        )

    def stored(self, id_: int) -> StoredPassage:
        heading, text = self.pages[id_]
        return a_passage(id_, text, f"{heading}.md", heading)

    def passages(self, ids: Sequence[int]) -> list[StoredPassage]:
        self.when_read()
        self.readings.append(list(ids))
        return [self.stored(id_) for id_ in ids if id_ in self.pages]

    @property
    def snapshot(self) -> "Desk":
        return self

    def retriever(self, collections: Sequence[str]) -> Retriever:
        """Every page is a collection of its own, named by its number."""
        whole = self.everything
        if not collections:
            return whole
        return Retriever(self.embedder, whole.index, whole.keywords, within=[int(name) for name in collections])

    def follow(self) -> None:
        self.when_waited()

    def statement_vectors(self, encoder: str, ids: Sequence[int]) -> dict[int, bytes]:
        return {id_: self.kept[encoder, id_] for id_ in ids if (encoder, id_) in self.kept}

    def keep_statement_vectors(self, encoder: str, vectors: Mapping[int, bytes]) -> None:
        self.kept.update({(encoder, id_): rows for id_, rows in vectors.items()})

    @property
    def finder(self) -> Finder:
        library, ranker = cast(Library, self), HashRanker()
        classifier = rule_of_thumb(self.embedder.name, ranker.name)
        return Finder(library, cast(Search, self), StatementStore(library, ranker), classifier)

    def find(
        self, question: str, *, earlier: str | None = None, count: int = 2, within: Sequence[str] = ()
    ) -> SearchResults:
        return self.finder.find(question, earlier=earlier, count=count, collections=within)


def ids(results: SearchResults) -> list[int]:
    return [found.passage.id for found in results.passages]


# --- wordings -------------------------------------------------------------------------------------------

EARLIER = "Can I return gift cards?"
ALONE = "How many working days does standard shipping to Galway take?"


@pytest.mark.parametrize(
    "question",
    [
        "And abroad?",
        "How long does it take?",
        "What about vouchers?",
        "Does that hold for standard shipping to stores in Galway, Cork and Dublin?",
        "WHAT ABOUT standard shipping vouchers bought abroad by relatives?",
        "Shipping costs?",
        "多久？",
        "",
    ],
)
def test_follow_ups_are_searched_with_the_question_before_them_last(question):
    assert wordings(question, EARLIER) == [question, f"{EARLIER} {question}"]


@pytest.mark.parametrize(
    "question",
    [
        ALONE,
        "Welche Zahlungsarten werden beim Kauf akzeptiert?",
        "标准配送到上海需要多少个工作日",
        "Italian heather theme shipping costs abroad weekdays?",  # no "it", "he" or "them" inside words
        "Is there free parking behind your shop in Athlone?",
        "I am sure that Cork stores open on Sundays in winter, right?",
        "Can several gift cards pay for one order from your website?",
    ],
)
def test_self_contained_questions_are_searched_alone(question):
    assert wordings(question, EARLIER) == [question]
    assert wordings("And it?", None) == ["And it?"]


# --- findings -------------------------------------------------------------------------------------------


def test_passages_and_their_statements_come_best_first_and_from_more_than_are_asked_for():
    desk = Desk()
    results = desk.find("Can gift cards be returned?")
    assert ids(results)[0] == 2
    assert len(ids(results)) == 2
    assert results.passages[0].passage == desk.stored(2)
    assert 0 < results.passages[0].cosine <= 1
    first = results.statements[0]
    assert (first.text, first.passage) == ("Gift cards cannot be returned.", 2)
    assert PAGES[2][1][first.start : first.end] == first.text
    logits = [statement.logit for statement in results.statements]
    assert logits == sorted(logits, reverse=True)
    assert {statement.text for statement in results.statements} >= {"A card lasts five years."}
    assert not any(statement.text.endswith("?") for statement in results.statements)
    results = Desk().find("Can gift cards be returned?", count=1)
    assert ids(results) == [2]
    assert {statement.passage for statement in results.statements} == {1, 2, 3}


def test_the_passage_of_the_likeliest_statement_comes_first():
    """Search prefers the passage that has all words; but they stand in sentences of their own there."""
    scattered = "Lamps are red. Delivery is free. Take your time. Days are long. Shoes are blue. Returns are easy."
    desk = Desk({1: ("Returns", scattered), 2: ("Shop", "Delivery of lamps takes days.")})
    question = "Delivery lamps days returns"
    assert [hit.id for hit in desk.finder.judge(question, earlier=None, count=2).hits] == [1, 2]
    results = desk.find(question)
    assert [results.statements[0].passage, *ids(results)] == [2, 2, 1]


def test_passages_can_be_hidden_as_if_they_did_not_exist():
    judged = Desk().finder.judge("Can gift cards be returned?", earlier=None, count=5, without=[2])
    assert [hit.id for hit in judged.hits] == [1, 3]
    assert {judged.hits[one.passage].id for _, one in judged.statements.ranked} == {1, 3}
    none = Desk().finder.judge("Can gift cards be returned?", earlier=None, count=5, without=PAGES)
    assert (none.hits, none.statements.ranked) == ((), ())


def test_nothing_and_passages_without_statements_say_nothing():
    assert Desk({}).find("Can gift cards be returned?") == NOTHING
    assert Desk().find(" ") == Desk().find("Returns?", within=["99"]) == NOTHING
    assert sorted(ids(Desk().find("Can gift cards be returned?", within=["1", "3"], count=5))) == [1, 3]
    alone = Desk({1: ("Returns", "Returns?")}).find("Returns?")
    assert (ids(alone), alone.statements, alone.relevance) == ([1], (), 0.0)
    both = Desk({**PAGES, 4: ("Gift cards", "Gift cards?")}).find("Gift cards?", count=4)
    assert 4 in ids(both)
    assert 4 not in {statement.passage for statement in both.statements}


def test_a_follow_up_finds_what_the_earlier_question_is_about_unless_it_is_understood_alone():
    desk = Desk()
    assert ids(desk.find("How long?", earlier="Do gift cards last?"))[0] == 2
    assert ids(desk.find("How long?", earlier="How long do returns take?"))[0] == 1
    later = desk.find("For how many years does a card?", earlier="Do gift cards last?")
    assert later.statements[0].text == "A card lasts five years."
    desk = Desk()
    asked, before = "Standard shipping costs?", "Gift cards cannot be returned, gift cards?"
    assert desk.find(asked).relevance >= desk.finder.classifier.threshold
    assert desk.find(asked, earlier=before) == desk.find(asked)
    unknown = "Zebra stripes?"
    assert desk.find(unknown).relevance < desk.finder.classifier.threshold
    assert ids(desk.find(unknown, earlier=before))[0] == 2


def test_a_sentence_of_two_passages_counts_as_the_better_one():
    text = "Both are free of charge."
    once = Desk({1: ("Gift cards", text)}).find("Are gift cards free?").statements
    for pages in ({1: ("Gift cards", text), 2: ("Shoes", text)}, {1: ("Shoes", text), 2: ("Gift cards", text)}):
        twice = Desk(pages).find("Are gift cards free?").statements
        assert [statement.text for statement in twice] == [text]
        assert twice[0].logit == pytest.approx(once[0].logit, abs=0.5)


# --- documents that change meanwhile --------------------------------------------------------------------

NEWER = {1: PAGES[1], 3: PAGES[3], 4: ("Gift cards", "Gift cards can be returned now.")}


@pytest.mark.parametrize("is_under_way", [False, True])
def test_a_passage_replaced_between_search_and_reading_is_searched_again(is_under_way):
    """is_under_way: the library has the newer passage already, the search not yet."""
    desk = Desk()

    def replace() -> None:
        if not desk.readings:
            desk.publish(NEWER)

    if is_under_way:
        desk.pages, desk.when_waited = NEWER, lambda: desk.publish(NEWER)
    else:
        desk.when_read = replace
    results = desk.find("Can gift cards be returned?")
    assert [2 in reading for reading in desk.readings] == [True, False]
    assert ids(results)[0] == 4
    assert len(ids(results)) == 2
    assert results.statements[0].text == "Gift cards can be returned now."


def test_a_passage_that_is_gone_and_stays_so_is_left_out_whole():
    desk = Desk()
    desk.pages = NEWER
    results = desk.find("Can gift cards be returned?", count=3)
    assert len(desk.readings) == 1
    assert sorted(ids(results)) == [1, 3]
    assert not any("Gift" in statement.text for statement in results.statements)
    desk.pages = {}
    assert desk.find("Can gift cards be returned?") == NOTHING


def test_an_embedder_that_knows_nothing_leaves_words_to_decide():
    desk = Desk(embedder=MeaningEmbedder(knowledge=0.0))
    results = desk.find("gift cards returned")
    assert ids(results)[0] == 2
    assert results.statements[0].text == "Gift cards cannot be returned."
    assert results.relevance > 0.5 > desk.find("zebra").relevance
