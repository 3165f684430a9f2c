"""The whole of a table as the answer to a general question, and questions that get none."""

import pytest
from desks import finish, small_desk
from stored_answers import a_passage

from app.answering.choosing import chosen
from app.answering.overview import ROWS, with_overview
from app.knowledge.finder import FoundPassage, RankedStatement, SearchResults

ROW = "Way: {}; Where: Ireland; Time: {} days"
TABLE = "\n".join([ROW.format("Post", "2 to 4"), ROW.format("Courier", 1)])
EXCEPTION = "Delivery can take 2 days longer before Christmas."
TITLE = "Delivery costs and times"


def results(table: str = TABLE, first: str = TITLE, title: str = TITLE) -> SearchResults:
    """Search results: the exception before Christmas, on the page `first`, and the rows of the table."""
    pages = [(1, first, EXCEPTION), (2, title, f"At a glance\n{table}\nWe do not fly.")]
    found = tuple(
        FoundPassage(passage=a_passage(id_, text, f"{name}.md", name), cosine=0.5) for id_, name, text in pages
    )
    said = RankedStatement(text=EXCEPTION, logit=4.0, passage=1, start=0, end=len(EXCEPTION), told=(0.5,))
    start = found[1].passage.text.index("Way")
    row = RankedStatement(text="Post", logit=0.5, passage=2, start=start, end=start + 4, kind="row", told=(0.2,))
    return SearchResults(passages=found[:1], found=found, statements=(said, row), relevance=0.9)


@pytest.mark.parametrize("question", ["How long does delivery take?", "your delivery times"])
def test_a_general_question_gets_the_whole_table_and_its_rows_only_once(question):
    told = with_overview(question, results())
    [whole] = chosen(told.statements, {one.passage.id: one.passage.text for one in told.passages})
    assert whole.text == "Post – Where: Ireland; Time: 2 to 4 days.\nCourier – Where: Ireland; Time: 1 days."
    assert told.found[1].passage.text[whole.start : whole.end] == TABLE
    assert [one.passage.id for one in told.passages] == [2], "the page of the answer is in the prompt"
    assert (whole.logit, told.relevance) == (4.0, 0.9), "it is as sure as before"


@pytest.mark.parametrize(
    "question",
    ["How long does delivery to Galway take?", "How long does it take?", "How much is delivery?", "Why delivery?"],
    ids=["it names something else", "it names nothing", "the table has no prices", "a table gives no reasons"],
)
def test_other_questions_get_the_likeliest_statements(question):
    assert with_overview(question, results()) == results()


@pytest.mark.parametrize(("question", "is_shown"), [("What can I return?", False), ("What can't I return?", True)])
def test_a_table_of_what_is_denied_is_for_a_question_that_denies(question, is_shown):
    told = results(first="Items that can't be returned", title="Items that can't be returned")
    assert (with_overview(question, told) != told) is is_shown


def test_only_a_small_table_of_the_likeliest_page_is_shown_whole():
    question = "How long does delivery take?"
    for told in (
        results(first="Delivery before Christmas"),
        results("\n".join(ROW.format(f"Way {n}", n) for n in range(ROWS + 1))),
        results("\n".join(ROW.format(way, "2 " * 90) for way in ("Post", "Courier"))),
        results(ROW.format("Post", 2)),
    ):
        assert with_overview(question, told) == told
    assert with_overview(question, SearchResults(passages=(), found=(), statements=(), relevance=0.0)).statements == ()


def test_the_table_is_shown_and_cited(tmp_path):
    rows = "| Way | Where | Time |\n|---|---|---|\n| Post | Ireland | 2 to 4 days |\n| Courier | Ireland | 1 day |"
    page = tmp_path / "pages" / "delivery.md"
    page.parent.mkdir()
    page.write_text(f"# {TITLE}\n\n{rows}\n\n## Busy weeks\n\n{EXCEPTION}\n", encoding="utf-8")
    with small_desk(tmp_path / "desk", pages=page.parent, answer_mode="quote", answer_above=-1.0) as desk:
        answer = finish(desk, "How long does delivery take?")
    assert answer.statements[0] == "Post – Where: Ireland; Time: 2 to 4 days.\nCourier – Where: Ireland; Time: 1 day."
    assert answer.citations[0].marks, "the rows are marked in the source"
