"""The cache-aware choice among passages: what it may give up, and what it never does."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from retrieval.search.ordering import prefer_cheap
from retrieval.search.retriever import Found

SCORES = st.lists(st.integers(0, 200).map(lambda hundredth: hundredth / 100), max_size=14)
MARGINS = st.integers(1, 120).map(lambda hundredth: hundredth / 100)


def ranking(scores: Sequence[float]) -> list[Found]:
    """Passages with these scores, best first, numbered from 1."""
    best_first = sorted(scores, reverse=True)
    return [Found(id=number, score=score, cosine=score, share=0.0) for number, score in enumerate(best_first, 1)]


@given(SCORES, st.integers(1, 8), MARGINS, st.lists(st.integers(0, 3), min_size=14, max_size=14))
def test_no_passage_is_given_up_for_one_much_worse(
    scores: list[float], count: int, margin: float, costs: list[int]
) -> None:
    ranked = ranking(scores)
    taken = prefer_cheap(ranked, count, margin, lambda found: costs[found.id - 1])
    assert len(taken) == min(count, len(ranked))
    assert len({found.id for found in taken}) == len(taken)
    assert taken == sorted(taken, key=lambda found: (-found.score, found.id))
    assert set(taken) <= set(ranked)
    given_up = [found for found in ranked if found not in taken]
    for lost in given_up:
        for kept in taken:
            assert lost.score - kept.score <= margin + 1e-9
            if lost.score > kept.score:  # only for less work
                assert costs[kept.id - 1] <= costs[lost.id - 1]


@given(SCORES, st.integers(1, 8), MARGINS)
def test_where_all_cost_the_same_the_order_is_the_plain_one(scores: list[float], count: int, margin: float) -> None:
    ranked = ranking(scores)
    assert prefer_cheap(ranked, count, margin, lambda found: 2) == ranked[:count]


@given(SCORES, st.integers(1, 8), st.lists(st.integers(0, 3), min_size=14, max_size=14))
def test_without_a_margin_the_first_ones_are_taken(scores: list[float], count: int, costs: list[int]) -> None:
    ranked = ranking(scores)
    assert prefer_cheap(ranked, count, 0.0, lambda found: costs[found.id - 1]) == ranked[:count]


def test_the_cheap_one_of_two_that_rank_nearly_the_same_is_taken() -> None:
    ranked = ranking([0.9, 0.60, 0.59, 0.2])
    costs = {1: 3, 2: 3, 3: 1, 4: 0}
    taken = prefer_cheap(ranked, 2, 0.05, lambda found: costs[found.id])
    assert [found.id for found in taken] == [1, 3], "the best stays, the far cheap one is not taken"
    assert [found.id for found in prefer_cheap(ranked, 3, 0.05, lambda found: costs[found.id])] == [1, 2, 3]


def test_few_passages_are_all_taken_in_order() -> None:
    ranked = ranking([0.9, 0.6])
    assert prefer_cheap(ranked, 2, 0.5, lambda found: found.id) == ranked
    assert prefer_cheap(ranked, 5, 0.5, lambda found: -found.id) == ranked
    assert prefer_cheap([], 5, 0.5, lambda found: 0) == []


def test_a_score_on_the_edge_is_not_lost_to_rounding() -> None:
    last, margin = 0.47224524357611664, 0.1
    assert prefer_cheap(ranking([0.5222452435761167, last, 0.1]), 2, margin, lambda found: 0)[1:], "only one is left"
