"""Which passages are cited with an answer."""

from dataclasses import replace

from app.answering.checking import NEAREST, cite, cite_quotation
from app.domain.documents import StoredPassage
from app.knowledge.finder import RankedStatement


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


def said_by(found: tuple[StoredPassage, float], text: str, end: int | None = None) -> RankedStatement:
    """A statement that stands at the beginning of a passage."""
    return RankedStatement(text=text, logit=1.0, passage=found[0].id, start=0, end=len(text) if end is None else end)


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
    said = [said_by(PRICES, "Take this one."), said_by(passage(7, "Box; Price: 9"), "Box: 9", end=13)]
    said.append(replace(said[0], text="Not in the prompt.", passage=8))
    answer = "\n\n".join(["Box: 9.", "Take this one.", "Not in the prompt.", "In no statement."])
    cited = cite_quotation(answer, said, found)
    assert [stored.id for stored, one in cited if not one.see_also] == [7, 5]
    assert [stored.id for stored, one in cited if one.see_also] == [1, 2, 4], "three besides those it is from"
    assert [one.marks for _, one in cited] == [((0, 0, 13),), ((1, 0, 14),), (), (), ()]
    more = [said_by(MORE, "Stores can print")]
    assert [stored.id for stored, _ in cite_quotation("Stores can print.", more, (LABELS, COURIER, MORE))] == [3, 2]


def test_words_of_the_model_point_at_the_sentences_that_share_most_of_them() -> None:
    text = "Stores open at nine. Labels are printed without charge. Ask at the counter."
    [(_, citation), *_] = cite("Printed labels are without charge.\n\nPlease ask.", [passage(1, text)])
    assert [text[one.start : one.end] for one in citation.marks] == ["Labels are printed without charge."]
    assert citation.marks[0].paragraph == 0


def test_a_citation_says_where_its_words_are_from() -> None:
    [(_, citation)] = cite("Labels.", [LABELS])
    assert (citation.document, citation.quote, citation.score) == ("1.md", LABELS[0].text, 0.9)
