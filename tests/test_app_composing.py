"""Which statements an answer has: neighbours, limits, no duplicates, the best first."""

import re
from dataclasses import replace

import pytest

from app.answering.checking import (
    MARGIN,
    NEARLY,
    NEARLY_ROWS,
    STATEMENTS,
    TOGETHER,
    UNSURE_MARGIN,
    UNSURE_STATEMENTS,
    WORDS,
    composed,
)
from app.answering.prepare import Decision
from app.domain.answers import Outcome
from app.domain.documents import StoredPassage
from app.knowledge.finder import FoundPassage, RankedStatement, SearchResults

FAR = MARGIN + 0.01
PAGE = "Gift cards last five years. They are made of paper.\n\nAsk in a store. Bring your receipt."


def said(text: str, logit: float, passage: int = 1, page: str = PAGE) -> RankedStatement:
    start = page.find(text)
    assert start >= 0
    return RankedStatement(text=text, logit=logit, passage=passage, start=start, end=start + len(text))


def alone(text: str, logit: float, passage: int) -> RankedStatement:
    """The only statement of its passage."""
    return RankedStatement(text=text, logit=logit, passage=passage, start=0, end=len(text))


def shown(*ranked: RankedStatement, page: str = PAGE) -> list[str]:
    in_order = sorted(ranked, key=lambda one: -one.logit)
    return [one.text for one in composed(in_order, {one.passage: one.text for one in ranked} | {1: page})]


YEARS, PAPER = "Gift cards last five years.", "They are made of paper."
STORE, RECEIPT = "Ask in a store.", "Bring your receipt."


def test_nothing_found_is_nothing_shown() -> None:
    assert composed([], {}) == []


def test_a_statement_is_shown_with_likely_neighbours_of_its_paragraph_in_their_order() -> None:
    ranked = [said(PAPER, 2.0), said(YEARS, 1.0), said(STORE, 0.9), said(RECEIPT, -9.0)]
    (one, *_) = composed(ranked, {1: PAGE})
    assert one.text == f"{YEARS} {PAPER}"
    assert (one.logit, one.passage) == (2.0, 1)
    assert PAGE[one.start : one.end] == f"{YEARS} {PAPER}"
    assert shown(said(PAPER, 2.0), said(STORE, 1.9), said(YEARS, 1.0)) == [f"{YEARS} {PAPER}", STORE]


def test_a_neighbour_that_is_much_less_likely_stays_out() -> None:
    assert shown(said(YEARS, 2.0), said(PAPER, 2.0 - NEARLY)) == [f"{YEARS} {PAPER}"]
    assert shown(said(YEARS, 2.0), said(PAPER, 2.0 - NEARLY - 0.01)) == [YEARS]


def test_only_neighbours_without_a_gap_belong_together() -> None:
    page = "One is red. Two is blue. Three is green."
    first, gap, last = (
        said(text, logit, page=page)
        for text, logit in (("One is red.", 2.0), ("Two is blue.", -9.0), ("Three is green.", 2.0 - MARGIN / 2))
    )
    assert shown(first, gap, last, page=page) == ["One is red.", "Three is green."]


def test_statements_of_passages_that_are_not_in_the_prompt_are_not_shown() -> None:
    ranked = [said(YEARS, 2.0), alone("Shoes fit.", 1.9, 2)]
    assert [one.text for one in composed(ranked, {2: "Shoes fit."})] == ["Shoes fit."]


def test_only_what_is_of_one_kind_is_shown_together() -> None:
    row = replace(said(PAPER, 1.9), kind="row")
    assert shown(said(YEARS, 2.0), row) == [YEARS, PAPER]
    assert shown(replace(said(YEARS, 2.0), kind="item"), said(PAPER, 1.9)) == [YEARS, PAPER]


def test_rows_of_a_table_that_are_about_as_likely_are_one_statement() -> None:
    page = "Standard: 3 days\nExpress: 1 day\nPick-up: 2 days\n\nLarge: 9 days"
    standard, express, pickup, large = (
        replace(said(text, logit, page=page), kind="row")
        for text, logit in zip(re.split("\n+", page), (2.0, 2.1, 2.1 - NEARLY_ROWS - 0.01, 2.0), strict=True)
    )
    assert shown(standard, express, pickup, page=page) == ["Standard: 3 days\nExpress: 1 day", "Pick-up: 2 days"]
    assert shown(standard, large, page=page) == ["Standard: 3 days", "Large: 9 days"], "another table"


def test_a_statement_with_its_neighbours_has_so_many_words() -> None:
    words = TOGETHER // 3
    page = " ".join(f"{name} {'x ' * (words - 2)}end." for name in ("Aa", "Bb", "Cc", "Dd"))
    texts = [f"{part}end." for part in page.replace("end. ", "end.").split("end.")[:4]]
    ranked = [said(texts[1], 3.0, page=page), *(said(texts[n], 2.9 - n / 10, page=page) for n in (0, 2, 3))]
    (one, *_) = composed(ranked, {1: page})
    assert one.text == " ".join(texts[:3]), "three fit, the likelier neighbour first"
    long = "Many " + "words " * TOGETHER + "here."
    page = f"{long} {YEARS}"
    assert shown(said(long, 2.0, page=page), said(YEARS, 1.9, page=page), page=page)[0] == long


def test_a_list_and_its_item_are_not_said_both() -> None:
    page = "Bring:\n- the card,\n- the receipt."
    whole = RankedStatement(text=page, logit=2.0, passage=1, start=0, end=len(page))
    item = said("- the card,", 1.9, page=page)
    assert shown(whole, item, page=page) == [page]


def test_steps_are_joined_by_lines() -> None:
    page = "1. Open it.\n2. Fill it.\nThen wait."
    steps = RankedStatement(text="1. Open it.\n2. Fill it.", logit=2.0, passage=1, start=0, end=22)
    assert shown(steps, said("Then wait.", 1.9, page=page), page=page) == [page]


def test_more_follows_only_if_it_is_about_as_likely_as_the_first() -> None:
    ranked = [alone("Cards last.", 2.0, 2), alone("Shoes fit.", 2.0 - MARGIN, 3), alone("Lamps shine.", 2.0 - FAR, 4)]
    assert shown(*ranked) == ["Cards last.", "Shoes fit."]


def test_less_follows_where_the_desk_is_not_sure() -> None:
    ranked = [alone("Cards last.", 2.0, 2), alone("Shoes fit.", 1.9, 3), alone("Lamps shine.", 1.99 - UNSURE_MARGIN, 4)]
    texts = {one.passage: one.text for one in ranked}
    assert [one.text for one in composed(ranked, texts, sure=False)] == ["Cards last.", "Shoes fit."]
    assert len(composed(ranked, texts)) == 3


def test_an_answer_has_at_most_so_many_statements() -> None:
    ranked = [alone(f"Thing{n} costs {n} euros.", 2.0, n + 2) for n in range(STATEMENTS + 2)]
    assert len(shown(*ranked)) == STATEMENTS
    assert len(composed(ranked, {one.passage: one.text for one in ranked}, sure=False)) == UNSURE_STATEMENTS


def test_all_but_the_first_statement_keep_within_some_words() -> None:
    long = "word " * WORDS
    assert shown(alone(f"{long}one.", 2.0, 2), alone("Shoes fit.", 1.9, 3)) == [f"{long}one."]
    some = [alone("Cards last.", 2.0, 2), alone(f"{long}two.", 1.9, 3), alone("Shoes fit.", 1.8, 4)]
    assert shown(*some) == ["Cards last.", "Shoes fit."], "a long one is left out, a short one after it is not"


@pytest.mark.parametrize(
    ("again", "is_shown"),
    [
        ("Gift cards last for five years.", False),
        ("Gift cards", False),
        ("Gift vouchers last a year at most.", True),
    ],
)
def test_the_same_is_not_said_twice(again: str, is_shown: bool) -> None:
    assert (again in shown(said(YEARS, 2.0), alone(again, 1.9, 2))) == is_shown


def test_what_is_shown_is_best_first() -> None:
    ranked = [alone("Shoes fit.", 2.0, 2), said(PAPER, 1.8), said(YEARS, 1.7), said(STORE, 1.6)]
    found = composed(ranked, {1: PAGE, 2: "Shoes fit."})
    assert [one.logit for one in found] == sorted((one.logit for one in found), reverse=True)
    assert [one.text for one in found] == ["Shoes fit.", f"{YEARS} {PAPER}", STORE]


# --- the decision ---------------------------------------------------------------------------------------


def decision(outcome: Outcome) -> Decision:
    stored = StoredPassage(
        id=1,
        document="1.md",
        title="Gift cards",
        ordinal=0,
        heading_path=(),
        text=PAGE,
        content_hash="",
        num_tokens=9,
        module_key=None,
    )
    rows = (replace(said(STORE, 1.7), kind="item"), replace(said(RECEIPT, 1.6), kind="item"))
    ranked = (alone("Not in the prompt.", 2.0, 2), said(YEARS, 1.9), said(PAPER, 1.8), *rows)
    found = (FoundPassage(passage=stored, score=1.0, cosine=1.0),)
    results = SearchResults(passages=found, found=found, statements=ranked, relevance=0.5)
    return Decision(outcome=outcome, results=results)


def test_a_decision_shows_what_is_composed_and_less_if_it_is_not_sure() -> None:
    said_three = [f"{YEARS} {PAPER}", STORE, RECEIPT]
    assert [one.text for one in decision("answered").statements] == said_three
    assert [one.text for one in decision("unsure").statements] == said_three[:UNSURE_STATEMENTS]
