"""`warmdesk eval helpdesk`: what counts as a fact, beside the point, a dead end, contradicted; and the whole run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from desks import small_desk, write_pages

from app.domain.answers import Outcome
from app.domain.errors import DeskError
from app.domain.setting_values import SAMPLE, SHIPPED_DATA, sample_of, samples
from evals.contradictions import contradictions, values
from evals.fact_matching import holds_all, holds_fact, words
from evals.helpdesk import measure_helpdesk
from evals.helpdesk_corpora import (
    CHINESE_PAGES,
    CHINESE_QUESTIONS,
    FITTING_PAGES,
    articles,
    chinese,
    chinese_fitting,
    service,
    support,
)
from evals.helpdesk_figures import JudgedAnswer, figures, markdown
from evals.helpdesk_questions import CustomerQuestion, read_questions, sample
from evals.intervals import Figure, middle_of, share
from evals.shown_answers import ShownAnswer


def question(**changes: Any) -> CustomerQuestion:
    values: dict[str, Any] = {"id": "q", "kind": "plain", "articles": ("returns.md",), "facts": (("30 days",),)}
    values |= {"question": "How long do returns take?", "gold": "", "history": ()}
    return CustomerQuestion(**(values | changes))


def judged(
    *statements: str, outcome: Outcome = "answered", documents: tuple[str, ...] = (), **asked: Any
) -> JudgedAnswer:
    shown = ShownAnswer(
        outcome=outcome,
        text=" ".join(statements),
        statements=statements,
        documents=documents,
        quoted=documents[:1],
        first_ms=1.0,
        find_ms=1.0,
    )
    return JudgedAnswer(question=question(**asked), shown=shown, added_ms=0.5)


def test_advice_from_a_page_that_must_not_be_quoted_is_harmful() -> None:
    right, other = "desk/sv-3-pro.md", "desk/sv-3.md"
    assert judged("Charge it.", documents=(other, right), not_from=("sv-3.md",)).is_harmful
    only_near = judged("Charge it.", documents=(right, other), not_from=("sv-3.md",))
    assert not only_near.is_harmful, "named as a page to look at, and not quoted"
    assert "HARMFUL" in judged("Charge it.", documents=(other,), not_from=("sv-3.md",)).verdict
    assert figures([only_near, judged("Charge it.")])["harmful"].n == 1


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("It takes THIRTY days.", "30 days"),
        ("a 24‑hour wait", "24 hour"),
        ("We can’t send it", "can't send"),
        ("up to 1,000 sites", "1000 sites"),
        ("EUR 5.00 per parcel", "EUR 5"),
        ("call 1-877-438-4338.", "877-438-4338"),
        ("1\u202f000\u202f000 rows", "1,000,000"),
        ("twenty-one days", "21 days"),
        ("two hundred characters", "200 characters"),
        ("use private_key_jwt", "private_key_jwt"),
        ("退货期限为30天。", "30天"),
        ("full-width ３ days", "3 days"),
    ],
)
def test_a_fact_is_found_however_it_is_spelled(text: str, form: str) -> None:
    assert holds_fact(text, ["something else", form])


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("within 180 days", "18"),
        ("1.5 GB", "5 GB"),
        ("a renewal", "renew"),
        ("12,500 users", "500 users"),
        ("5 % off", "5 days"),
        ("anything", ""),
    ],
)
def test_a_fact_counts_only_as_whole_words(text: str, form: str) -> None:
    assert not holds_fact(text, [form])


def test_number_words_without_a_following_number_stay_apart() -> None:
    assert words("one or two, not forty") == ["1", "or", "2", "not", "40"]


def test_an_interval_is_wilsons() -> None:
    assert share([True] * 8 + [False] * 2) == Figure(value=0.8, low=0.4902, high=0.9433, n=10)
    assert share([]) == Figure(value=None, low=None, high=None, n=0)
    assert share([True] * 3).high == 1.0


def test_a_median_lies_between_two_of_the_values() -> None:
    assert middle_of(range(1, 11)) == Figure(value=5.5, low=2, high=9, n=10)  # binomial(10, 1/2): ranks 2 and 9
    assert middle_of([7.0]) == Figure(value=7.0, low=7.0, high=7.0, n=1)
    assert middle_of([]).value is None


def test_a_statement_without_a_fact_is_beside_the_point_unless_the_fact_needs_it() -> None:
    assert judged("It takes 30 days.", "We like returns.").beside_the_point == [False, True]
    assert judged("Send it back.", "This takes 30 days.").beside_the_point == [False, False]
    assert judged("Send it back.", "Returns take 30 days.").beside_the_point == [True, False]
    assert judged("How long it takes:", "30 days.").beside_the_point == [False, False]
    assert judged("This is nice.", "That is nice.").beside_the_point == [True, True]


def test_a_dead_end_has_neither_the_facts_nor_the_page() -> None:
    assert judged("No idea.", documents=("/pages/other.md",)).is_dead_end
    assert not judged("No idea.", documents=("/pages/other.md", "/pages/returns.md")).is_dead_end
    assert not judged("30 days.").is_dead_end
    assert judged("No idea.", documents=("/pages/no-returns.md",)).is_dead_end


def test_facts_may_be_spread_over_statements_but_not_for_the_first_one() -> None:
    both = judged("It takes 30 days.", "Bring the receipt.", facts=(("30 days",), ("receipt",)))
    assert both.has_all_facts
    assert not both.has_facts_first
    assert judged("Bring the receipt: it takes 30 days.", facts=(("30 days",), ("receipt",))).has_facts_first


def test_another_value_for_the_same_thing_contradicts() -> None:
    asked = question(question="How long do returns of lamps take?", gold="Returns of lamps take 30 days.")
    assert contradictions(asked, ["Returns of lamps take 14 days."]) == ["Returns of lamps take 14 days."]
    assert contradictions(asked, ["Returns of lamps take 30 days."]) == []
    assert contradictions(asked, ["Lamps need two bulbs."]) == []
    assert contradictions(asked, ["Parcels take 14 days."]) == []  # of something else


def test_a_rival_value_behind_the_right_one_does_not_contradict() -> None:
    asked = question(question="How long is the label valid?", gold="The label is valid for 30 days.")
    rival, right = "The label is valid for 14 days.", "Labels last 30 days."
    assert contradictions(asked, [rival, right]) == [rival]
    assert contradictions(asked, [right, rival]) == []
    assert contradictions(asked, ["A label and a lamp, a chair, a bed and a table take 14 days."]) == []  # what of it?


def test_the_opposite_contradicts() -> None:
    asked = question(facts=(("cannot be returned",),), gold="No, opened pillows cannot be returned.")
    assert contradictions(asked, ["Yes, of course."])
    assert contradictions(asked, ["Opened pillows are returned free of charge."])
    assert not contradictions(asked, ["No.", "Opened curtains need to be washed."])


def test_what_is_said_of_another_model_contradicts_if_the_facts_are_not_shown() -> None:
    asked = question(question="KM-450 shows E3", facts=(("jammed",),), gold="The grinder is jammed.")
    assert contradictions(asked, ["E06 means an empty tank."]) == ["E06 means an empty tank."]
    assert contradictions(asked, ["E06 means an empty tank.", "E03: the grinder is jammed."]) == []
    assert contradictions(asked, ["E03 is for the service."]) == []
    assert contradictions(asked, ["Unplug it."]) == []


def test_values_have_kinds() -> None:
    assert values("EUR 3.90, 5 %, 2 weeks and 12 codes by 3 May at 9:30") == {
        ("amount", "3.90"),
        ("share", "5"),
        ("duration", "2 week"),
        ("code", "12"),
        ("date", "3 may"),
        ("time", "9:30"),
    }


def test_both_forms_of_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    rows: list[dict[str, Any]] = [
        {"id": "a", "question": "A?", "articles": ["a.md"], "facts": [["x", "y"]], "answer": "x"},
        {"id": "b", "question": "B?", "article": "b.md", "facts": ["x"], "history": [["A?", "x"]]},
        {"id": "c", "question": "C?", "article": None, "facts": []},
        {"id": "d", "question": "hi", "articles": [], "facts": [], "kind": "smalltalk"},
        {
            "id": "e",
            "question": "E?",
            "articles": ["a.md"],
            "facts": [],
            "history": [{"question": "A?", "answer": "x"}],
        },
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    read = read_questions(file)
    assert [one.kind for one in read] == ["plain", "follow-up", "unanswerable", "smalltalk", "follow-up"]
    assert [one.facts for one in read[:2]] == [(("x", "y"),), (("x",),)]
    assert read[1].history == read[4].history == (("A?", "x"),)
    assert [one.is_unanswerable for one in read] == [False, False, True, False, False]
    file.write_text("{}")
    with pytest.raises(DeskError, match="line 1 is no question"):
        read_questions(file)


def test_a_limit_keeps_the_kinds_in_proportion() -> None:
    asked = [
        question(id=str(n), kind="plain" if n < 90 else "smalltalk" if n < 98 else "follow-up") for n in range(100)
    ]
    taken = sample(asked, 20)
    assert [one.kind for one in taken] == ["plain"] * 18 + ["smalltalk"] * 2 + ["follow-up"]
    assert [one.id for one in taken[:3]] == ["0", "5", "10"]
    assert sample(asked, None) == asked


def test_every_question_counts_where_it_belongs() -> None:
    found = figures(
        [
            judged("30 days.", "Nice.", documents=("/p/returns.md",)),
            judged("Soon.", outcome="unsure", documents=("/p/other.md", "/p/returns.md")),
            judged(outcome="nothing"),
            judged("Soon.", articles=(), facts=()),
            judged("Hello!", outcome="smalltalk", kind="smalltalk", articles=(), facts=()),
        ]
    )
    counted = {name: (figure.value, figure.n) for name, figure in found.items()}
    assert counted["all_facts"] == (0.3333, 3)
    assert counted["right_page_first"] == (0.3333, 3)
    assert counted["right_page_any"] == (0.6667, 3)
    assert counted["answered_all_facts"] == (1.0, 1)
    assert counted["dead_ends"] == (0.3333, 3)
    assert counted["beside_the_point"] == (0.6667, 3)
    assert counted["unanswerable_answered"] == (1.0, 1)
    assert counted["smalltalk_handled"] == (1.0, 1)
    assert counted["words"] == (1, 3)
    assert "| all facts | 33 % | 6 to 79 | 3 |" in markdown(found)


@pytest.mark.parametrize(
    ("text", "num"), [("It costs EUR 4.95, today.", 5), ("退货期限是三十天。", 4), ("用 Visa 付款", 3)]
)
def test_words_are_counted_in_chinese_too(text: str, num: int) -> None:
    assert judged(text).num_words == num


@pytest.mark.parametrize("arm", ["search", "shipped"])
def test_a_desk_is_asked_from_end_to_end(tmp_path: Path, arm: Any) -> None:
    asked = [
        question(facts=(("thirty days",),)),
        question(id="f", question="And gift cards?", articles=("gift-cards.md",), history=(("Returns?", "30 days."),)),
        question(id="u", question="Who is the king of Norway?", articles=(), facts=()),
    ]
    said: list[str] = []
    pages = write_pages(tmp_path / "pages")
    with small_desk(tmp_path / "desk", answer_mode="quote", answer_tokens=200) as desk:
        result = measure_helpdesk(desk, pages, asked, arm=arm, cold=False, report=said.append)
        assert desk.conversations() == []
        assert desk.is_ready() == (arm == "shipped")  # search alone opens nothing that answers
    found = result.as_json()
    assert set(found) == {"rows", "summary"}
    names = "id kind question outcome refused answer statements documents words first_token_ms added_ms"
    assert list(found["rows"][0]) == names.split()
    assert found["rows"][0]["statements"]
    assert found["rows"][0]["documents"][0].endswith("pages/returns.md")
    assert found["summary"]["all_facts"] == {"value": 0.5, "low": 0.0945, "high": 0.9055, "n": 2}
    assert said[0].startswith("4 documents")
    assert said[1].startswith("1/3 answered, 1 of 1 facts, page first: How long")


def test_a_desk_with_other_documents_is_not_measured(tmp_path: Path) -> None:
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "other")) as desk:
        pages = write_pages(tmp_path / "pages")
        with pytest.raises(DeskError, match="holds other documents"):
            measure_helpdesk(desk, pages, [question()], arm="search", cold=False, report=print)


def packed(file: Path, *rows: dict[str, Any]) -> Path:
    with gzip.open(file, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"title": "", "headings": "removed", **row}) + "\n" for row in rows)
    return file


def told(answer: str, asked: str = "How much does it cost?", **more: Any) -> dict[str, Any]:
    return {"question": asked, "answers": [answer] if answer else [], **more}


def test_a_desk_of_articles_leaves_every_fourth_answer_out(tmp_path: Path) -> None:
    answer = "The annual licence fee of {} is payable in advance by bank transfer."
    rows = [
        {
            "src": "clapnq",
            "doc_id": f"p{n}",
            "context": answer.format(n),
            "qas": [told(answer.format(n), f"Fee of {n}?")],
        }
        for n in range(5)
    ]
    turns = [["user", "Hi"], ["user", "Who are you?"], ["agent", "A desk."], ["user", "And?"]]
    rows[1]["qas"] += [told("No idea.", "Why?", answerability=["UNANSWERABLE"], history=turns)]
    rows[2]["qas"] += [told("Partly.", "Why not?", answerability=["PARTIAL"])]
    desk = articles([packed(tmp_path / "qa.gz", *rows, {"src": "squad", "doc_id": "s", "context": "", "qas": []})])
    assert sorted(desk.documents) == ["p1.md", "p2.md", "p3.md"]
    asked = {one["question"]: one for one in desk.questions}
    assert {text for text, one in asked.items() if not one["articles"]} == {"Fee of 0?", "Fee of 4?", "Why?"}
    assert "Why not?" not in asked
    assert asked["Why?"]["history"] == [["Hi Who are you?", "A desk."]]
    (forms,) = asked["Fee of 1?"]["facts"]
    assert "payable in advance by bank" in forms
    assert "the annual licence fee of" in forms


def test_a_desk_of_places_asks_only_what_names_its_place(tmp_path: Path) -> None:
    def place(number: int, name: str, *qas: dict[str, Any], more: str = "") -> dict[str, Any]:
        context = f"{name}\n{name} has free parking.\nDogs are welcome.\n{more}"
        return {"src": "dstc9_faq", "doc_id": f"hotel/{number}", "title": name, "context": context, "qas": list(qas)}

    parking = [told(f"{name} has free parking.", f"Can guests park a car at {name}?") for name in ("Elm", "Oak", "Ash")]
    before = [["U", "Is Oak nice?"], ["S", "Yes."]]
    unclear = told("Dogs are welcome.", "Do they take dogs or cats?")
    rows = [
        place(1, "Elm", parking[0], told("Dogs are welcome.", "Dogs allowed at Elm rooms?")),
        place(2, "Oak", parking[1], {**unclear, "history": before}, told("Dogs are welcome.", "ok oak dogs bring")),
        place(3, "Ash", parking[2], unclear, told("Dogs are welcome.", "Dogs in Ash rooms?", **{"from": "faq_title"})),
    ]
    desk = service([packed(tmp_path / "dstc.gz", *rows)])
    assert "free parking" not in desk.documents["hotel-1.md"]
    assert "free parking" in desk.documents["hotel-2.md"]
    found = {one["question"]: (one["articles"], one["facts"]) for one in desk.questions}
    assert found == {
        "Can guests park a car at Elm?": ([], []),
        "Dogs allowed at Elm rooms?": (["hotel-1.md"], []),  # every place says that dogs are welcome
        "Can guests park a car at Oak?": (["hotel-2.md"], [["Oak has free parking."]]),
        "Do they take dogs or cats?": (["hotel-2.md"], []),
        "Can guests park a car at Ash?": (["hotel-3.md"], [["Ash has free parking."]]),
    }


def test_a_desk_of_help_pages_takes_answers_out(tmp_path: Path) -> None:
    first, second = "Open the billing tab and press Cancel plan.", "Write to the finance team every January."
    qas = [
        told(first, "How do I stop?"),
        told(second, "Who helps?"),
        told(first, "How do I cancel?", **{"from": "heading"}),
    ]
    whole = packed(tmp_path / "a.gz", {"src": "a", "doc_id": "a/b.md#0", "context": f"{first}\n{second}", "qas": qas})
    minus = {"src": "a", "doc_id": "a/b.md#0-minus", "context": second, "qas": [told("", "How do I stop?")]}
    desk = support([whole, packed(tmp_path / "minus.gz", minus)])
    assert first not in desk.documents["a-b-md-0.md"]
    assert [(one["question"], bool(one["articles"])) for one in desk.questions] == [
        ("How do I stop?", False),
        ("Who helps?", True),
    ]
    desk.write(tmp_path / "desk")
    assert [one.is_unanswerable for one in read_questions(tmp_path / "desk" / "questions.jsonl")] == [False, True]


def test_the_chinese_desk_has_our_questions_and_other_pages_beside_theirs(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in CHINESE_QUESTIONS.read_text(encoding="utf-8").splitlines()]
    asked = sorted({name for line in lines for name in (*line["articles"], *line.get("about", ()))})
    names = [*(f"Other-{n}.md" for n in range(200)), *asked]
    rows = [{"src": "cmrc2018", "doc_id": Path(name).stem, "title": name, "context": "。", "qas": []} for name in names]
    chinese([packed(tmp_path / "zh.gz", *rows)]).write(tmp_path / "desk")
    written = {page.name for page in (tmp_path / "desk" / "documents").iterdir()}
    assert set(asked) <= written
    assert len(written) == CHINESE_PAGES
    assert (tmp_path / "desk" / "questions.jsonl").read_text("utf-8") == CHINESE_QUESTIONS.read_text("utf-8")
    with pytest.raises(ValueError, match=asked[-1]):
        chinese([packed(tmp_path / "less.gz", *rows[:-1])])


def test_no_document_of_the_chinese_desk_is_in_the_desk_it_is_fitted_on(tmp_path: Path) -> None:
    names = [Path(name).stem for line in CHINESE_QUESTIONS.read_text("utf-8").splitlines() for name in pages_of(line)]
    names += [f"Other-{n}" for n in range(CHINESE_PAGES + FITTING_PAGES)]
    qas = [{"question": "它有多大？", "answers": ["二"]}, {"question": "它的山有多高？", "answers": ["三"]}]
    named = [{"question": "广州有多大？", "answers": ["一"]}, *qas]
    rows = [
        {"src": "cmrc2018", "doc_id": name, "title": name, "context": "一", "qas": named}
        for name in dict.fromkeys(names)
    ]
    packed_rows = [packed(tmp_path / "zh.gz", *rows)]
    measured, fitted = chinese(packed_rows), chinese_fitting(packed_rows)
    assert not measured.documents.keys() & fitted.documents.keys()
    fitted.write(tmp_path / "desk")
    written = [json.loads(line) for line in (tmp_path / "desk" / "questions.jsonl").read_text("utf-8").splitlines()]
    assert len(written) == len(fitted.documents), "all of them, but not those that begin with a pronoun"
    assert {tuple(row["articles"]) for row in written} == {(name,) for name in fitted.documents}
    assert written[0] == {"question": "广州有多大？", "answers": ["一"], "articles": written[0]["articles"]}


def pages_of(line: str) -> list[str]:
    row = json.loads(line)
    return [*row["articles"], *row.get("about", ())]


def test_our_chinese_questions_have_their_facts_in_their_answers() -> None:
    asked = read_questions(CHINESE_QUESTIONS)
    assert len(asked) == 100
    assert sum(one.is_unanswerable for one in asked) == 30
    assert sum(bool(one.history) for one in asked) == 8
    assert [one.id for one in asked if one.is_answerable and not one.facts] == []
    assert [one.id for one in asked if not holds_all(one.gold, one.facts)] == []


def test_the_questions_about_the_chinese_sample_are_answered_by_its_articles() -> None:
    folder, asked = SHIPPED_DATA / "knowledge-zh", read_questions(SHIPPED_DATA / "chinese-shop-questions.jsonl")
    assert len([file for file in folder.rglob("*.*") if file.is_file()]) == 20
    assert [
        sum(kind) for kind in zip(*((q.is_answerable, q.is_unanswerable, q.is_small_talk) for q in asked), strict=True)
    ] == [30, 8, 2]
    for one in (one for one in asked if one.is_answerable):
        for name in one.articles:
            assert holds_all((folder / name).read_text("utf-8"), one.facts), one.id
        assert holds_all(one.gold, one.facts), one.id


def test_a_demo_asks_the_questions_of_its_sample(tmp_path: Path) -> None:
    for name, sample_desk in samples().items():
        assert (SHIPPED_DATA / name).is_dir()
        assert sample_of(SHIPPED_DATA / name) == sample_desk
    assert sample_of(tmp_path / "knowledge-zh") == samples()[SAMPLE]


def test_the_questions_of_the_browser_are_answered_by_their_articles() -> None:
    file = SHIPPED_DATA / "browser-questions.jsonl"
    asked = [one for one in read_questions(file) if not one.is_small_talk]
    for one in asked:
        assert all((SHIPPED_DATA / "knowledge" / name).is_file() for name in one.articles), one.id
        assert all(
            holds_all((SHIPPED_DATA / "knowledge" / name).read_text("utf-8"), one.facts) for name in one.articles
        )
        assert holds_all(one.gold, one.facts), one.id
    for row in map(json.loads, file.read_text("utf-8").splitlines()):
        misleading = row.get("not_from", [])
        assert all((SHIPPED_DATA / "knowledge" / name).is_file() for name in misleading), row["id"]
        assert not set(misleading) & set(row["articles"]), row["id"]
