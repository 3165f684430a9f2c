"""Which words of a question are corrected, and which are left alone."""

from collections.abc import Callable, Iterable

import pytest

from retrieval.search.keyword_index import KeywordIndex
from retrieval.search.retriever import Spelling

WORDS = ["return", "tracking", "delivery", "refund", "warranty", "voucher", "gateway", "iphone", "450", "card", "退款"]


def nobody(_: str) -> bool:
    return False


def spelling(words: Iterable[str], is_known: Callable[[str], bool] = nobody) -> Spelling:
    """Of one passage with these words."""
    keywords = KeywordIndex().updated((), {1: [" ".join(words)]})
    return Spelling(keywords.words_from, keywords.having, is_known)


def corrected(question: str, is_known: Callable[[str], bool] = nobody) -> str:
    return spelling(WORDS, is_known).corrected(question)


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
    assert corrected(question, lambda word: word == "trucking") == question


def test_words_the_embedder_knows_stay_and_are_asked_for_folded():
    assert corrected("Gatway") == "gateway"
    assert corrected("Gatway", lambda word: word == "gatway") == "Gatway"


def test_the_nearest_word_wins_whatever_the_order_of_words():
    orders = [["tracking", "trucking"], ["trucking", "tracking"]]
    assert {spelling(order).corrected("trackng") for order in orders} == {"tracking"}
    assert len({spelling(order).corrected("trcking") for order in orders}) == 1


def test_of_words_as_near_the_more_frequent_one_wins():
    """In a large collection there is another word beside every word: it must not win by its place in the alphabet."""
    texts = {1: ["it expires"], 2: ["express delivery"], 3: ["express"]}
    keywords = KeywordIndex().updated((), texts)
    assert Spelling(keywords.words_from, keywords.having, nobody).corrected("expres") == "express"
    within = keywords.are_of([1, 2])
    inside = Spelling(keywords.words_from, lambda word: keywords.having(word, within), nobody)
    assert inside.corrected("expres") == "expires", "as frequent there"


@pytest.mark.parametrize("question", ["warranty退货", "iphone退款", "iPhoneの"])
def test_chinese_behind_a_word_is_not_lost(question):
    assert corrected(question) == question
