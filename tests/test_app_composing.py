"""Which statements an answer has, and which passages are cited with it: cover, neighbours, limits."""

from dataclasses import replace

from stored_answers import a_passage

from app.answering.checking import cite, cite_quotation
from app.answering.choosing import BESIDE, BLOCKS, PER_LOGIT, TOGETHER, WORDS, chosen
from app.domain.documents import StoredPassage
from app.knowledge.finder import RankedStatement

PAGE = "Gift cards last five years. They are made of paper.\n\nAsk in a store. Bring your receipt."
YEARS, PAPER = "Gift cards last five years.", "They are made of paper."
STORE, RECEIPT = "Ask in a store.", "Bring your receipt."
ALL, HALF, REST, NONE = (0.5, 0.3), (0.5, 0.0), (0.0, 0.3), (0.0, 0.0)


def said(text: str, logit: float, told: tuple[float, ...] = NONE, page: str = PAGE) -> RankedStatement:
    start = page.find(text)
    assert start >= 0
    return RankedStatement(text=text, logit=logit, passage=1, start=start, end=start + len(text), told=told)


def alone(text: str, logit: float, passage: int, told: tuple[float, ...] = NONE) -> RankedStatement:
    return RankedStatement(text=text, logit=logit, passage=passage, start=0, end=len(text), told=told)


def shown(*ranked: RankedStatement, page: str = PAGE) -> list[str]:
    in_order = sorted(ranked, key=lambda one: -one.logit)
    return [one.text for one in chosen(in_order, {one.passage: one.text for one in ranked} | {1: page})]


def test_a_statement_is_shown_with_likely_neighbours_of_its_section_in_their_order():
    ranked = [said(PAPER, 2.0), said(YEARS, 1.0), said(STORE, 0.9), said(RECEIPT, -9.0)]
    (one,) = chosen(ranked, {1: PAGE})
    assert one.text == f"{YEARS} {PAPER} {STORE}", "the next paragraph too"
    assert (one.logit, one.passage) == (2.0, 1)
    assert PAGE[one.start : one.end] == f"{YEARS} {PAPER}\n\n{STORE}"
    page = f"{PAPER}\n\nWhere to get one\n{STORE}"
    assert shown(said(PAPER, 2.0, page=page), said(STORE, 1.9, page=page), page=page) == [PAPER], "another section"
    assert shown(said(YEARS, 9.0), said(PAPER, 9.0 - BESIDE / PER_LOGIT - 0.1)) == [YEARS], "too unlikely"


def test_what_a_statement_refers_to_is_shown_with_it_although_it_is_long():
    steps = "1. Check the plug.\n2. " + " ".join(["Wait."] * TOGETHER)
    still, price = "If it stays dark, call us.", "A new one costs 15 euros."
    page = f"{steps}\n\n{still}"
    before, after = (said(text, 2.0, page=page) for text in (steps, still))
    assert shown(replace(before, kind="procedure"), replace(after, logit=2.1), page=page) == [f"{steps}\n{still}"]
    assert shown(replace(before, logit=2.1), after, page=page) == [steps], "the steps are clear without it"
    page = f"{steps}\n\n{price}"
    assert shown(said(price, 2.1, page=page), said(steps, 2.0, page=page), page=page) == [price], "it is clear alone"
    page = f"{still}\n\n{steps}"
    assert shown(said(still, 2.1, page=page), said(steps, 2.0, page=page), page=page) == [still], "it refers to others"


def test_another_statement_must_tell_what_is_missing():
    first = alone("Cards last.", 2.0, 2, HALF)
    assert shown(first, alone("Shoes fit.", 2.0, 3, REST)) == ["Cards last.", "Shoes fit."]
    assert shown(first, alone("Cards hold.", 2.0, 3, HALF)) == ["Cards last."]
    assert shown(first, alone("Cards last and shoes fit.", 1.0, 3, ALL)) == ["Cards last.", "Cards last and shoes fit."]
    unlikely = alone("Shoes fit.", 2.0 - 0.3 / PER_LOGIT, 3, REST)
    assert shown(first, unlikely) == ["Cards last."]


def test_two_answers_that_differ_in_what_is_asked_are_both_shown():
    dublin = alone("Dublin Capel Street: open from 9:00 to 18:00.", 2.0, 2, HALF)
    dundrum = alone("Dublin Dundrum: open from 9:00 to 20:00.", 1.9, 3, (0.3, 0.3))
    assert len(shown(dublin, dundrum)) == 2


def test_statements_of_passages_that_are_not_in_the_prompt_are_not_shown():
    assert chosen([], {}) == []
    ranked = [said(YEARS, 2.0), alone("Shoes fit.", 1.9, 2)]
    assert [one.text for one in chosen(ranked, {2: "Shoes fit."})] == ["Shoes fit."]


def test_rows_of_a_table_are_one_statement_and_those_under_another_heading_are_not():
    page = "Standard: 3 days\nExpress: 1 day\n\nFurniture\nLarge: 9 days"
    standard, express, large = (
        replace(said(text, logit, page=page), kind="row")
        for text, logit in (("Standard: 3 days", 2.0), ("Express: 1 day", 2.1), ("Large: 9 days", 2.0))
    )
    assert shown(standard, express, large, page=page) == ["Standard: 3 days\nExpress: 1 day"]


def test_the_line_above_a_list_is_said_once():
    page = "You need:\n- a card that is yours\n- a receipt"
    items = [
        replace(said(text, 2.0, page=page), text=f"You need: {text}.", kind="item")
        for text in ("a card that is yours", "a receipt")
    ]
    assert shown(*items, page=page) == ["You need: a card that is yours.\na receipt."]


def test_a_block_has_so_many_words_and_the_likelier_neighbour_comes_first():
    words = TOGETHER // 3
    page = " ".join(f"{name} {'x ' * (words - 2)}end." for name in ("Aa", "Bb", "Cc", "Dd"))
    texts = [f"{part}end." for part in page.replace("end. ", "end.").split("end.")[:4]]
    ranked = [said(texts[1], 3.0, page=page), *(said(texts[n], 2.9 - n / 10, page=page) for n in (0, 2, 3))]
    (one, *_) = chosen(ranked, {1: page})
    assert one.text == " ".join(texts[:3])


def test_a_list_is_not_said_with_its_item():
    page = "Bring:\n- the card,\n- the receipt."
    whole = RankedStatement(text=page, logit=2.0, passage=1, start=0, end=len(page), told=HALF)
    assert shown(whole, said("- the card,", 1.9, ALL, page), page=page) == [page]


def test_an_answer_has_at_most_so_many_blocks_and_words():
    ranked = [
        alone(f"Thing{n} costs {n} euros.", 2.0, n + 2, tuple(0.3 * (n == m) for m in range(BLOCKS + 2)))
        for n in range(BLOCKS + 2)
    ]
    assert len(shown(*ranked)) == BLOCKS
    long = "word " * WORDS
    assert shown(alone(f"{long}one.", 2.0, 2, HALF), alone("Shoes fit.", 1.9, 3, REST)) == [f"{long}one."]
    some = [alone("Cards last.", 2.0, 2, HALF), alone(f"{long}two.", 1.9, 3, REST), alone("Shoes fit.", 1.8, 4, REST)]
    assert shown(*some) == ["Cards last.", "Shoes fit."], "a long one is left out, a short one after it is not"


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
    said = [said_by(PRICES, "Take this one."), said_by(passage(7, "Box; Price: 9"), "Box – Price: 9", end=13)]
    said.append(replace(said[0], text="Not in the prompt.", passage=8))
    answer = "\n\n".join(["Box – Price: 9.", "Take this one.", "Not in the prompt.", "In no statement."])
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
