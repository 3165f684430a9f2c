"""Which passages are cited with an answer."""

from __future__ import annotations

from app.answering.cite import NEAREST, cite, cite_quotation
from app.domain.documents import StoredPassage


def passage(id_: int, text: str, document: str | None = None) -> tuple[StoredPassage, float]:
    """A passage with its score; the first ones have the highest."""
    name = document or f"{id_}.md"
    stored = StoredPassage(
        id=id_,
        document=name,
        title=name,
        ordinal=0,
        heading_path=(),
        text=text,
        content_hash=text,
        num_tokens=9,
        module_key=None,
    )
    return stored, 1.0 - id_ / 10


LABELS = passage(1, "Labels are always printed without charge in stores.")
COURIER = passage(2, "The courier has a label with him, too.")
MORE = passage(3, "Stores can print something else.", "1.md")
FLOWERS = passage(4, "Flowers bloom in spring.")
PRICES = passage(5, "Take this one.\n- Box; Price: 9")


def cited(answer: str, *found: tuple[StoredPassage, float]) -> list[int]:
    return [stored.id for stored, _ in cite(answer, found)]


def test_nothing_found_is_nothing_cited() -> None:
    assert cite("Labels are printed.", []) == []


def test_the_best_passage_of_the_best_documents_is_cited() -> None:
    assert cited("Labels are always printed without charge in stores.", LABELS, COURIER, MORE, FLOWERS) == [1, 2, 4]
    assert NEAREST == 3


def test_a_page_without_words_of_the_answer_is_marked() -> None:
    marked = [one.see_also for _, one in cite("Labels are always printed without charge.", [LABELS, FLOWERS])]
    assert marked == [False, True]


def test_so_is_every_passage_that_holds_much_of_the_answer() -> None:
    again = passage(9, "Our stores print labels: they are printed.")
    assert cited("Labels are printed in stores.", LABELS, COURIER, FLOWERS, PRICES, again) == [1, 2, 4, 9]


def test_a_quotation_cites_the_passages_of_its_statements_and_then_the_nearest_pages() -> None:
    found = (LABELS, COURIER, FLOWERS, passage(6, "Something else."), PRICES, passage(7, "Box; Price: 9"))
    said = {"Take this one.": 5, "Box: 9.": 7, "Not in the prompt.": 8}
    answer = "\n\n".join(["Box: 9.", "Take this one.", "Not in the prompt.", "In no statement."])
    cited = cite_quotation(answer, said, found)
    assert [stored.id for stored, one in cited if not one.see_also] == [7, 5]
    assert [stored.id for stored, one in cited if one.see_also] == [1, 2, 4], "three besides those it is from"
    assert [stored.id for stored, _ in cite_quotation("Labels.", {"Labels.": 3}, (LABELS, COURIER, MORE))] == [3, 2]


def test_a_citation_says_where_its_words_are_from() -> None:
    [(_, citation)] = cite("Labels.", [LABELS])
    assert (citation.document, citation.quote, citation.score) == ("1.md", LABELS[0].text, 0.9)
