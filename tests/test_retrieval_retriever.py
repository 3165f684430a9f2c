"""Both searches fused into one order of passages, and which words of a question are corrected."""

import random
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from desks import finish, small_desk, write_pages
from hashed_search import HashEmbedder
from meanings import MeaningEmbedder, retriever_of

from app.desk.service import Service
from app.knowledge.finder import Finder
from retrieval.errors import RetrievalError
from retrieval.search.embedding import Vectors
from retrieval.search.keyword_index import KeywordIndex
from retrieval.search.retriever import ALIKE, CrossEncoderReranker, PassageHit, Query, Retriever, rerank
from retrieval.search.vector_index import VectorIndex, passage_id, window_texts

RETURNS, DELIVERY, GIFTS = 1, 2, 3
PAGES = {
    RETURNS: ["The parcel label is free."],
    DELIVERY: ["Drivers come on weekdays."],
    GIFTS: ["Vouchers last five years."],
}


def search(retriever: Retriever, *wordings: str, k: int = 9, within: Sequence[int] | None = None) -> list[PassageHit]:
    if within is not None:
        retriever = Retriever(retriever.embedder, retriever.index, retriever.keywords, within=within)
    return retriever.search([retriever.queries([text])[0] for text in wordings], k)


def ids(found: Sequence[PassageHit]) -> list[int]:
    return [one.id for one in found]


def about_delivery(knowledge: float) -> Retriever:
    """The question has a word of the page on returns and the meaning of that on delivery."""
    meanings = {"parcel": (0, 1, 0), PAGES[DELIVERY][0]: (0, 1, 0), PAGES[GIFTS][0]: (1, 1, 0)}
    return retriever_of(PAGES, MeaningEmbedder(meanings, knowledge))


def test_a_long_passage_is_found_by_a_window_of_it():
    filler = "\n\n".join(f"Filler{number} about something else entirely, number {number}." for number in range(40))
    windows = {
        3: window_texts(["Help"], f"{filler}\n\nThe return label costs EUR 3.50."),
        4: window_texts(["Help"], "Express delivery costs EUR 9.95."),
    }
    assert len(windows[3]) > 2
    retriever = retriever_of(windows, HashEmbedder())
    best, other = search(retriever, "return label")
    assert (best.id, other.id) == (3, 4)
    only_whole = retriever_of({id_: texts[:1] for id_, texts in windows.items()}, HashEmbedder())
    assert best.score > search(only_whole, "return label")[0].score


def test_of_several_wordings_the_best_score_counts():
    retriever = retriever_of(PAGES, HashEmbedder())
    apart = [{one.id: one for one in search(retriever, text)} for text in ("parcel label", "vouchers")]
    together = search(retriever, "parcel label", "vouchers")
    assert {one.id: one for one in together} == {
        id_: max((one[id_] for one in apart), key=lambda one: one.score) for id_ in PAGES
    }
    assert set(ids(together)[:2]) == {RETURNS, GIFTS}
    assert ids(together) == ids(search(retriever, "vouchers", "parcel label"))


SAME = " ".join(f"word{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")


def test_near_copies_of_better_ones_are_left_out_and_others_take_their_place():
    texts = {1: [f"{SAME} label"], 2: [f"{SAME} label extra"], 3: [f"{SAME} 14"], 4: [f"{SAME} 30"], 5: ["other"]}
    retriever = retriever_of(texts, HashEmbedder())
    assert retriever.keywords.is_near_copy(1, 2)
    assert ids(search(retriever, f"{SAME} label extra", k=4)) == [2, 3, 4, 5]
    assert ids(search(retriever, f"{SAME} label", k=4)) == [1, 3, 4, 5]


def test_a_near_copy_that_fits_the_question_much_worse_is_none():
    texts = {1: [f"{SAME} label"], 2: [f"{SAME} sticker"]}
    retriever = retriever_of(texts, MeaningEmbedder({texts[2][0]: (0, 1, 0)}))
    assert retriever.keywords.is_near_copy(1, 2)
    first, second = search(retriever, "label")
    assert first.score - second.score >= ALIKE


def test_within_filters_what_either_search_finds():
    retriever = about_delivery(1.0)
    assert ids(search(retriever, "parcel", within=[GIFTS, RETURNS, 99])) == [GIFTS, RETURNS]
    assert ids(search(retriever, "parcel", within=[DELIVERY])) == [DELIVERY]
    assert search(retriever, "parcel", within=[]) == search(retriever, "parcel", within=[99]) == []
    assert ids(search(about_delivery(0.0), "parcel", within=[DELIVERY, GIFTS])) == [DELIVERY, GIFTS]


def naive(retriever: Retriever, query: Query) -> dict[int, tuple[float, float, float]]:
    """Score, cosine and share of every passage, computed for every window."""
    best: dict[int, tuple[float, float, float]] = {}
    cosines = {hit.id: hit.score for hit in retriever.index.search(query.vector, len(retriever.index))}
    windows, shares = retriever.keywords.window_ids.tolist(), retriever.keywords.scores(query.text).tolist()
    for window, share in zip(windows, shares, strict=True):
        values = (query.trust * cosines[window] + share, cosines[window], share)
        best[passage_id(window)] = max(values, best.get(passage_id(window), values))
    return best


def scattered(number: int, knowledge: float = 1.0) -> Retriever:
    """Passages whose meanings and words say nothing of each other."""
    chance = random.Random(number)
    vocabulary = [f"{first}{second}word" for first in "abcdefghij" for second in "abcdefghij"]
    texts = {
        id_: [" ".join(chance.choices(vocabulary, k=12)) for _ in range(chance.randint(1, 3))] for id_ in range(number)
    }
    meanings = {text: [chance.gauss(0, 1) for _ in range(3)] for windows in texts.values() for text in windows}
    return retriever_of(texts, MeaningEmbedder(meanings, knowledge))


@pytest.mark.parametrize("knowledge", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("candidates", [1, 3, 20, 1000])
def test_the_best_of_all_are_found_with_their_exact_scores_however_few_are_proposed(monkeypatch, candidates, knowledge):
    monkeypatch.setattr("retrieval.search.retriever.CANDIDATES", candidates)
    retriever = scattered(200, knowledge)
    for text in ("aaword bbword ccword", "abword", "zzword", "aaword abword acword adword aeword afword agword"):
        query = retriever.queries([text])[0]
        expected = naive(retriever, query)
        assert query.trust == knowledge**2
        found = retriever.search([query], 8)
        assert [one.score for one in found] == pytest.approx(
            sorted((v[0] for v in expected.values()), reverse=True)[:8]
        )
        for one in found:
            assert (one.score, one.cosine, one.share) == pytest.approx(expected[one.id])


def test_blank_questions_and_no_passages_find_nothing():
    retriever = about_delivery(1.0)
    assert (
        search(retriever) == search(retriever, "") == search(retriever, " \n") == search(retriever, "parcel", k=0) == []
    )
    assert search(retriever_of({}, HashEmbedder()), "parcel") == []
    assert ids(search(retriever, "", "parcel")) == ids(search(retriever, "parcel"))


def test_a_misspelt_question_is_searched_as_the_passages_spell():
    retriever = retriever_of(PAGES, HashEmbedder())
    assert retriever.queries(["parcle labl?"])[0].text == "parcel label?"
    assert ids(search(retriever, "vouchrs"))[0] == GIFTS
    assert search(retriever, "parcle labl")[0] == search(retriever, "parcel label")[0]


def test_a_corrected_wording_is_searched_beside_the_written_one():
    """Tracking is what the passages have; who asks for trucking, which the embedder does not know, may mean it."""
    texts = {1: ["tracking a parcel"], 2: ["lorries"]}
    meanings = {"trucking": (0, 1, 0), "lorries": (0, 1, 0)}
    retriever = retriever_of(texts, MeaningEmbedder(meanings))
    query = retriever.queries(["trucking"])[0]
    assert (query.text, query.as_written and query.as_written.text) == ("tracking", "trucking")
    assert {one.id: round(one.cosine, 2) for one in search(retriever, "trucking")} == {1: 1.0, 2: 1.0}
    assert retriever.queries(["tracking"])[0].as_written is None


def test_all_spellings_of_all_wordings_are_embedded_together():
    batches: list[list[str]] = []

    class Counting(HashEmbedder):
        def embed_queries(self, texts: Sequence[str]) -> Vectors:
            batches.append(list(texts))
            return super().embed_queries(texts)

    retriever = retriever_of(PAGES, Counting())
    asked = ["parcle", "vouchrs of a parcle", "parcel"]
    queries = retriever.queries(asked)
    assert len(batches) == 1
    assert sorted(batches[0]) == sorted({*asked, "parcel", "vouchers of a parcel"}), "each once"
    spellings = [(query.text, query.as_written.text if query.as_written else None) for query in queries]
    assert spellings == [("parcel", "parcle"), ("vouchers of a parcel", "vouchrs of a parcle"), ("parcel", None)]
    for query in queries:
        alone = retriever.queries([query.text])[0]
        assert np.array_equal(query.vector, alone.vector)
        assert query.trust == alone.trust


def test_spelling_knows_only_words_of_the_passages_that_may_be_found():
    texts = {1: ["parcel voucher"], 2: ["parsel gateway"]}
    whole = retriever_of(texts, HashEmbedder())
    first, second = (Retriever(whole.embedder, whole.index, whole.keywords, within=[id_]) for id_ in texts)
    assert whole.queries(["parsel"])[0].text == second.queries(["parsel"])[0].text == "parsel"
    assert first.queries(["parsel"])[0].text == "parcel"
    assert first.queries(["gatewey"])[0].text == "gatewey", "nothing of other passages shows"
    assert second.queries(["gatewey"])[0].text == "gateway"


def test_equal_scores_come_in_order_of_number_and_the_same_each_time():
    texts = {number: [f"filler page{letter}"] for number, letter in zip((5, 3, 4, 1), "abcd", strict=True)}
    for retriever in (retriever_of(texts, MeaningEmbedder()), retriever_of(texts, HashEmbedder())):
        found = search(retriever, "unknown zebra")
        assert found == sorted(found, key=lambda one: (-one.score, one.id))
        assert all(search(retriever, "unknown zebra") == found for _ in range(3))
    assert ids(search(retriever_of(texts, MeaningEmbedder()), "zebra", k=3)) == [1, 3, 4]


def test_an_index_of_another_embedder_is_refused():
    for index in (VectorIndex("hash", 256), VectorIndex("hash-256", 8)):
        with pytest.raises(
            RetrievalError, match=f"the index has vectors of {index.embedder}, not of hash-256; rebuild"
        ):
            Retriever(HashEmbedder(), index, KeywordIndex())


class Longest:
    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        self.asked.append((question, len(texts)))
        return [float(len(text)) for text in texts]


def hit_of(id_: int) -> PassageHit:
    return PassageHit(id=id_, score=-id_, cosine=0.0, share=0.0)


def test_the_order_is_the_rerankers():
    texts = {1: "aa", 2: "aaaa", 3: "a", 4: "aa"}
    order = rerank(Longest(), "q", [hit_of(id_) for id_ in texts], lambda hit: texts[hit.id])
    assert [hit.id for hit in order] == [2, 1, 4, 3]


def test_the_desk_asks_it_about_more_than_it_shows(tmp_path):
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


def test_a_model_that_cannot_be_had_is_a_clear_error(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RetrievalError, match=r"^reranker .*empty: cannot be loaded .*; give a folder or a hub name"):
        CrossEncoderReranker(str(tmp_path / "empty"))


WORDS = ["return", "tracking", "delivery", "refund", "warranty", "voucher", "gateway", "iphone", "450", "card", "退款"]


def corrected(question: str, known: str = "", words: Iterable[str] = WORDS) -> str:
    """The question by the spelling of one passage with these words."""
    embedder = MeaningEmbedder()
    embedder.knows_word = known.split().__contains__
    return retriever_of({1: [" ".join(words)]}, embedder).queries([question])[0].text


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Traking my delivrey?", "tracking my delivery?"),
        ("REFUDN", "refund"),
        ("a voucer, a warrenty", "a voucher, a warranty"),
        ("retrun 450", "return 450"),  # letters that change places count once
    ],
)
def test_misspelt_words_become_words_of_the_passages(question, expected):
    assert corrected(question) == expected


@pytest.mark.parametrize(
    "question",
    [
        "Return the VOUCHER",
        "returned returning refunds",  # forms of words that passages have
        "trucking zzzzzz",  # nothing is near enough, or it is
        "cad 退",  # too short
        "xeturn qracking",  # another first letter
        "退宽 환불은 返品",
        "451",
        "",
    ],
)
def test_other_words_stay(question):
    assert corrected(question, known="trucking") == question


def test_words_the_embedder_knows_stay_and_are_asked_for_folded():
    assert corrected("Gatway") == "gateway"
    assert corrected("Gatway", known="gatway") == "Gatway"


def test_the_nearest_word_wins_whatever_the_order_of_words():
    orders = [["tracking", "trucking"], ["trucking", "tracking"]]
    assert {corrected("trackng", words=order) for order in orders} == {"tracking"}
    assert len({corrected("trcking", words=order) for order in orders}) == 1


def test_of_words_as_near_the_more_frequent_one_wins():
    """In a large collection there is another word beside every word: it must not win by its place in the alphabet."""
    whole = retriever_of({1: ["it expires"], 2: ["express delivery"], 3: ["express"]}, MeaningEmbedder())
    assert whole.queries(["expres"])[0].text == "express"
    inside = Retriever(whole.embedder, whole.index, whole.keywords, within=[1, 2])
    assert inside.queries(["expres"])[0].text == "expires", "as frequent there"


@pytest.mark.parametrize("question", ["warranty退货", "iphone退款", "iPhoneの"])
def test_chinese_behind_a_word_is_not_lost(question):
    assert corrected(question) == question
