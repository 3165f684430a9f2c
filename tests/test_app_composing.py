"""Which statements an answer has, and which passages are cited with it: neighbours, limits, no duplicates."""

import re
from dataclasses import replace

import pytest
from stored_answers import a_passage

from app.answering.checking import (
    MARGIN,
    NEARLY,
    NEARLY_ROWS,
    STATEMENTS,
    TOGETHER,
    UNSURE_MARGIN,
    UNSURE_STATEMENTS,
    WORDS,
    cite,
    cite_quotation,
    composed,
)
from app.domain.documents import StoredPassage
from app.knowledge.finder import RankedStatement

FAR = MARGIN + 0.01
PAGE = "Gift cards last five years. They are made of paper.\n\nAsk in a store. Bring your receipt."


def said(text: str, logit: float, passage: int = 1, page: str = PAGE) -> RankedStatement:
    start = page.find(text)
    assert start >= 0
    return RankedStatement(text=text, logit=logit, passage=passage, start=start, end=start + len(text))


def alone(text: str, logit: float, passage: int) -> RankedStatement:
    return RankedStatement(text=text, logit=logit, passage=passage, start=0, end=len(text))


def shown(*ranked: RankedStatement, page: str = PAGE) -> list[str]:
    in_order = sorted(ranked, key=lambda one: -one.logit)
    return [one.text for one in composed(in_order, {one.passage: one.text for one in ranked} | {1: page})]


YEARS, PAPER = "Gift cards last five years.", "They are made of paper."
STORE, RECEIPT = "Ask in a store.", "Bring your receipt."


def test_a_statement_is_shown_with_likely_neighbours_of_its_paragraph_in_their_order():
    ranked = [said(PAPER, 2.0), said(YEARS, 1.0), said(STORE, 0.9), said(RECEIPT, -9.0)]
    (one, *_) = composed(ranked, {1: PAGE})
    assert one.text == f"{YEARS} {PAPER}"
    assert (one.logit, one.passage) == (2.0, 1)
    assert PAGE[one.start : one.end] == f"{YEARS} {PAPER}"
    assert shown(said(PAPER, 2.0), said(STORE, 1.9), said(YEARS, 1.0)) == [f"{YEARS} {PAPER}", STORE]


def test_neighbours_are_likely_without_a_gap_and_of_one_kind():
    assert shown(said(YEARS, 2.0), said(PAPER, 2.0 - NEARLY)) == [f"{YEARS} {PAPER}"]
    assert shown(said(YEARS, 2.0), said(PAPER, 2.0 - NEARLY - 0.01)) == [YEARS]
    page = "One is red. Two is blue. Three is green."
    first, gap, last = (
        said(text, logit, page=page)
        for text, logit in (("One is red.", 2.0), ("Two is blue.", -9.0), ("Three is green.", 2.0 - MARGIN / 2))
    )
    assert shown(first, gap, last, page=page) == ["One is red.", "Three is green."]
    row = replace(said(PAPER, 1.9), kind="row")
    assert shown(said(YEARS, 2.0), row) == [YEARS, PAPER]
    assert shown(replace(said(YEARS, 2.0), kind="item"), said(PAPER, 1.9)) == [YEARS, PAPER]


def test_statements_of_passages_that_are_not_in_the_prompt_are_not_shown():
    assert composed([], {}) == []
    ranked = [said(YEARS, 2.0), alone("Shoes fit.", 1.9, 2)]
    assert [one.text for one in composed(ranked, {2: "Shoes fit."})] == ["Shoes fit."]


def test_rows_of_a_table_that_are_about_as_likely_are_one_statement():
    page = "Standard: 3 days\nExpress: 1 day\nPick-up: 2 days\n\nLarge: 9 days"
    standard, express, pickup, large = (
        replace(said(text, logit, page=page), kind="row")
        for text, logit in zip(re.split("\n+", page), (2.0, 2.1, 2.1 - NEARLY_ROWS - 0.01, 2.0), strict=True)
    )
    assert shown(standard, express, pickup, page=page) == ["Standard: 3 days\nExpress: 1 day", "Pick-up: 2 days"]
    assert shown(standard, large, page=page) == ["Standard: 3 days", "Large: 9 days"], "another table"


def test_a_statement_with_its_neighbours_has_so_many_words():
    words = TOGETHER // 3
    page = " ".join(f"{name} {'x ' * (words - 2)}end." for name in ("Aa", "Bb", "Cc", "Dd"))
    texts = [f"{part}end." for part in page.replace("end. ", "end.").split("end.")[:4]]
    ranked = [said(texts[1], 3.0, page=page), *(said(texts[n], 2.9 - n / 10, page=page) for n in (0, 2, 3))]
    (one, *_) = composed(ranked, {1: page})
    assert one.text == " ".join(texts[:3]), "three fit, the likelier neighbour first"
    long = "Many " + "words " * TOGETHER + "here."
    page = f"{long} {YEARS}"
    assert shown(said(long, 2.0, page=page), said(YEARS, 1.9, page=page), page=page)[0] == long


def test_a_list_is_not_said_with_its_item_nor_steps_with_what_follows():
    page = "Bring:\n- the card,\n- the receipt."
    whole = RankedStatement(text=page, logit=2.0, passage=1, start=0, end=len(page))
    item = said("- the card,", 1.9, page=page)
    assert shown(whole, item, page=page) == [page]
    page = "1. Open it.\n2. Fill it.\nThen wait."
    steps = RankedStatement(text="1. Open it.\n2. Fill it.", logit=2.0, passage=1, start=0, end=22)
    assert shown(steps, said("Then wait.", 1.9, page=page), page=page) == [page]


def test_more_follows_if_it_is_about_as_likely_as_the_first_and_less_where_the_desk_is_not_sure():
    ranked = [alone("Cards last.", 2.0, 2), alone("Shoes fit.", 2.0 - MARGIN, 3), alone("Lamps shine.", 2.0 - FAR, 4)]
    assert shown(*ranked) == ["Cards last.", "Shoes fit."]
    ranked = [alone("Cards last.", 2.0, 2), alone("Shoes fit.", 1.9, 3), alone("Lamps shine.", 1.99 - UNSURE_MARGIN, 4)]
    texts = {one.passage: one.text for one in ranked}
    assert [one.text for one in composed(ranked, texts, sure=False)] == ["Cards last.", "Shoes fit."]
    assert len(composed(ranked, texts)) == 3


def test_an_answer_has_at_most_so_many_statements_and_words():
    ranked = [alone(f"Thing{n} costs {n} euros.", 2.0, n + 2) for n in range(STATEMENTS + 2)]
    assert len(shown(*ranked)) == STATEMENTS
    assert len(composed(ranked, {one.passage: one.text for one in ranked}, sure=False)) == UNSURE_STATEMENTS
    long = "word " * WORDS
    assert shown(alone(f"{long}one.", 2.0, 2), alone("Shoes fit.", 1.9, 3)) == [f"{long}one."]
    some = [alone("Cards last.", 2.0, 2), alone(f"{long}two.", 1.9, 3), alone("Shoes fit.", 1.8, 4)]
    assert shown(*some) == ["Cards last.", "Shoes fit."], "a long one is left out, a short one after it is not"


@pytest.mark.parametrize(
    ("again", "is_shown"),
    [("Gift cards last for five years.", False), ("Gift cards", False), ("Gift vouchers last a year at most.", True)],
)
def test_the_same_is_not_said_twice(again, is_shown):
    assert (again in shown(said(YEARS, 2.0), alone(again, 1.9, 2))) == is_shown


def passage(id_: int, text: str, document: str | None = None) -> tuple[StoredPassage, float]:
    """A passage with its score; the first ones have the highest."""
    return a_passage(id_, text, document or f"{id_}.md"), 1.0 - id_ / 10


LABELS = passage(1, "Labels are always printed without charge in stores.")
COURIER = passage(2, "The courier has a label with him, too.")
MORE = passage(3, "Stores can print something else.", "1.md")
FLOWERS = passage(4, "Flowers bloom in spring.")
PRICES = passage(5, "Take this one.\n- Box; Price: 9")


def said_by(found: tuple[StoredPassage, float], text: str, end: int | None = None) -> RankedStatement:
    """A statement that stands at the beginning of a passage."""
    return RankedStatement(text=text, logit=1.0, passage=found[0].id, start=0, end=len(text) if end is None else end)


def cited(answer: str, *found: tuple[StoredPassage, float]) -> list[int]:
    return [stored.id for stored, _ in cite(answer, found)]


def test_the_best_passages_and_those_that_hold_much_of_the_answer_are_cited():
    assert cited("Labels are always printed without charge in stores.", LABELS, COURIER, MORE, FLOWERS) == [1, 2, 4]
    assert cite("Labels are printed.", []) == []
    labels, flowers = (one for _, one in cite("Labels are always printed without charge.", [LABELS, FLOWERS]))
    assert (labels.see_also, flowers.see_also) == (False, True)
    assert (labels.document, labels.quote, labels.score) == ("1.md", LABELS[0].text, 0.9)
    again = passage(9, "Our stores print labels: they are printed.")
    assert cited("Labels are printed in stores.", LABELS, COURIER, FLOWERS, PRICES, again) == [1, 2, 4, 9]


def test_a_quotation_cites_the_passages_of_its_statements_and_then_the_nearest_pages():
    found = (LABELS, COURIER, FLOWERS, passage(6, "Something else."), PRICES, passage(7, "Box; Price: 9"))
    said = [said_by(PRICES, "Take this one."), said_by(passage(7, "Box; Price: 9"), "Box: 9", end=13)]
    said.append(replace(said[0], text="Not in the prompt.", passage=8))
    answer = "\n\n".join(["Box: 9.", "Take this one.", "Not in the prompt.", "In no statement."])
    cited = cite_quotation(answer, said, found)
    assert [stored.id for stored, one in cited if not one.see_also] == [7, 5]
    assert [stored.id for stored, one in cited if one.see_also] == [1, 2, 4], "three besides those it is from"
    assert [one.marks for _, one in cited] == [((0, 0, 13),), ((1, 0, 14),), (), (), ()]
    more = [said_by(MORE, "Stores can print")]
    assert [stored.id for stored, _ in cite_quotation("Stores can print.", more, (LABELS, COURIER, MORE))] == [3, 2]


def test_words_of_the_model_point_at_the_sentences_that_share_most_of_them():
    text = "Stores open at nine. Labels are printed without charge. Ask at the counter."
    [(_, citation), *_] = cite("Printed labels are without charge.\n\nPlease ask.", [passage(1, text)])
    assert [text[one.start : one.end] for one in citation.marks] == ["Labels are printed without charge."]
    assert citation.marks[0].paragraph == 0
