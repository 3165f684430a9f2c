"""`warmdesk eval helpdesk`: facts, contradictions, labelled questions, figures; and the whole run."""

import json
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from desks import small_desk, write_pages

from app.answering.explain import MOST
from app.domain.answers import Outcome
from app.domain.documents import StoredPassage
from app.domain.errors import DeskError
from app.domain.setting_types import SAMPLE, SHIPPED_DATA, sample_of, samples
from app.knowledge.finder import NOTHING
from evals.answers.contradictions import contradictions
from evals.answers.helpdesk import (
    JudgedAnswer,
    ShownAnswer,
    compare_modes,
    figures,
    markdown,
    measure_helpdesk,
    mode_metrics,
)
from evals.answers.questions import (
    CustomerQuestion,
    LabelledQuestion,
    holds_all,
    holds_fact,
    read_labelled,
    read_questions,
)
from evals.answers.replay import auc, decision_figures, kept, replay, search_once
from retrieval.statements.grouping import Statement


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
    return JudgedAnswer(question=question(**asked), shown=shown)


def test_advice_from_a_page_that_must_not_be_quoted_is_harmful():
    right, other = "desk/sv-3-pro.md", "desk/sv-3.md"
    assert judged("Charge it.", documents=(other, right), not_from=("sv-3.md",)).is_harmful
    only_near = judged("Charge it.", documents=(right, other), not_from=("sv-3.md",))
    assert not only_near.is_harmful, "named as a page to look at, and not quoted"
    assert "HARMFUL" in judged("Charge it.", documents=(other,), not_from=("sv-3.md",)).verdict
    assert figures([only_near, judged("Charge it.")])["harmful"]["n"] == 1


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
def test_a_fact_is_found_however_it_is_spelled(text, form):
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
def test_a_fact_counts_only_as_whole_words(text, form):
    assert not holds_fact(text, [form])


def test_another_value_for_the_same_thing_contradicts():
    asked = question(question="How long do returns of lamps take?", gold="Returns of lamps take 30 days.")
    assert contradictions(asked, ["Returns of lamps take 14 days."]) == ["Returns of lamps take 14 days."]
    assert contradictions(asked, ["Returns of lamps take 30 days."]) == []
    assert contradictions(asked, ["Lamps need two bulbs."]) == []
    assert contradictions(asked, ["Parcels take 14 days."]) == []  # of something else


def test_the_opposite_contradicts():
    asked = question(facts=(("cannot be returned",),), gold="No, opened pillows cannot be returned.")
    assert contradictions(asked, ["Yes, of course."])
    assert contradictions(asked, ["Opened pillows are returned free of charge."])
    assert not contradictions(asked, ["No.", "Opened curtains need to be washed."])


def test_what_is_said_of_another_model_contradicts_if_the_facts_are_not_shown():
    asked = question(question="KM-450 shows E3", facts=(("jammed",),), gold="The grinder is jammed.")
    assert contradictions(asked, ["E06 means an empty tank."]) == ["E06 means an empty tank."]
    assert contradictions(asked, ["E06 means an empty tank.", "E03: the grinder is jammed."]) == []
    assert contradictions(asked, ["E03 is for the service."]) == []
    assert contradictions(asked, ["Unplug it."]) == []


def test_both_forms_of_lines_are_read(tmp_path):
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
    with pytest.raises(DeskError, match="line 1 is not a question"):
        read_questions(file)


def test_every_question_counts_where_it_belongs():
    found = figures(
        [
            judged("30 days.", "Nice.", documents=("/p/returns.md",)),
            judged("Soon.", outcome="unsure", documents=("/p/other.md", "/p/returns.md")),
            judged(outcome="nothing"),
            judged("Soon.", articles=(), facts=()),
            judged("Hello!", outcome="smalltalk", kind="smalltalk", articles=(), facts=()),
        ]
    )
    counted = {name: (figure["value"], figure["n"]) for name, figure in found.items()}
    assert counted["all_facts"] == (0.3333, 3)
    assert counted["right_page_first"] == (0.3333, 3)
    assert counted["right_page_any"] == (0.6667, 3)
    assert counted["answered_all_facts"] == (1.0, 1)
    assert counted["dead_ends"] == (0.3333, 3)
    assert counted["beside_the_point"] == (0.6667, 3)
    assert counted["unanswerable_answered"] == (1.0, 1)
    assert counted["smalltalk_handled"] == (1.0, 1)
    assert counted["words"] == (1, 3)
    assert counted["search_ms_p95"] == (1.0, 4)
    assert "| all facts | 33 % | 6 to 79 | 3 |" in markdown(found)


@pytest.mark.parametrize("arm", ["search", "shipped"])
def test_a_desk_is_asked_from_end_to_end(tmp_path, arm):
    asked = [
        question(facts=(("thirty days",),)),
        question(id="f", question="And gift cards?", articles=("gift-cards.md",), history=(("Returns?", "30 days."),)),
        question(id="u", question="Who is the king of Norway?", articles=(), facts=()),
    ]
    said: list[str] = []
    pages = write_pages(tmp_path / "pages")
    with small_desk(tmp_path / "desk", answer_mode="quote", answer_tokens=200) as desk:
        found = measure_helpdesk(desk, pages, asked, arm=arm, report=said.append)
        assert desk.conversations() == []
        assert desk.is_ready() == (arm == "shipped")  # search alone opens nothing that answers
    assert set(found) == {"rows", "summary"}
    names = "id kind question outcome refused answer statements documents words first_token_ms"
    assert list(found["rows"][0]) == names.split()
    assert found["rows"][0]["statements"]
    assert found["rows"][0]["documents"][0].endswith("pages/returns.md")
    assert found["summary"]["all_facts"] == {"value": 0.5, "low": 0.0945, "high": 0.9055, "n": 2}
    assert said[0].startswith("4 documents")
    assert said[1].startswith("1/3 answered, 1 of 1 facts, page first: How long")


def test_own_words_and_quotations_are_counted_by_what_customers_see(tmp_path):
    asked = [question(facts=(("thirty days",),)), question(id="u", question="Returns on Mars?", articles=(), facts=())]
    with small_desk(tmp_path / "desk", answer_mode="checked", answer_tokens=200) as desk:
        own_words, quotations = compare_modes(desk, write_pages(tmp_path / "pages"), asked, print)
    assert (own_words.mode, own_words.questions) == ("checked", 2)
    assert (quotations.mode, quotations.questions, quotations.right) == ("quote", 2, 1)
    shown = [
        judged("Thirty days."),
        judged("You can.", facts=(("thirty days",),)),  # wrong
        judged("You can.", outcome="unsure"),
        judged("On Mars too.", articles=(), facts=()),  # wrong
        judged("", outcome="nothing", articles=(), facts=()),
        judged("Hello!", outcome="smalltalk", kind="smalltalk", articles=(), facts=()),
    ]
    found = mode_metrics(shown, "checked")
    assert (found.questions, found.right, found.wrong, found.words) == (5, 1, 2, 2)


def test_a_desk_with_other_documents_is_not_measured(tmp_path):
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "other")) as desk:
        pages = write_pages(tmp_path / "pages")
        with pytest.raises(DeskError, match="has other documents"):
            measure_helpdesk(desk, pages, [question()], arm="search", report=print)


def test_a_replay_answers_as_the_desk_that_searched(tmp_path):
    asked = [
        question(facts=(("thirty days",),)),
        question(id="f", question="And gift cards?", articles=("gift-cards.md",), history=(("Returns?", "30 days."),)),
        question(id="u", question="Who is the king of Norway?", articles=(), facts=()),
        question(id="h", question="hello", kind="smalltalk", articles=(), facts=()),
    ]
    pages, file = write_pages(tmp_path / "pages"), tmp_path / "found.json"
    with small_desk(tmp_path / "desk", answer_mode="quote") as desk:
        live = measure_helpdesk(desk, pages, asked, arm="search", report=print)
        search_once(desk, pages, asked, file, print)
        again = replay(file, asked, desk.settings)
        for one, other in zip(live["rows"], again["rows"], strict=True):
            assert one | {"first_token_ms": 0} == other | {"first_token_ms": 0}
        same = live["summary"].keys() & again["summary"].keys()
        assert "all_facts" in same
        assert all(live["summary"][name] == again["summary"][name] for name in same)
        with pytest.raises(DeskError, match="lacks 'New"):
            replay(file, [question(id="new", question="New?")], desk.settings)
        file.write_text("{}")
        with pytest.raises(DeskError, match="delete it"):
            replay(file, asked, desk.settings)


def test_a_decision_stands_beside_its_baselines():
    asked = [
        question(id=f"{n}-{kind}", question=f"{kind} {n}?", facts=((str(n),),) * (kind == "twin"), articles=())
        for n in range(20)
        for kind in ("miss", "twin")
    ]
    signs = [n / 100 + (0.5 if one.is_answerable else 0.0) for n, one in enumerate(asked)]
    found = decision_figures(asked, [replace(NOTHING, relevance=sign) for sign in signs])
    values = {name: figure["value"] for name, figure in found.items()}
    assert values["auc_relevance"] == values["kept_relevance"] == 1
    assert values["auc_question_only"] == 1, "the word twin gives it away"
    assert values["auc_word_overlap"] == 0.5
    assert values["kept_word_overlap"] == 0, "no threshold lies between equal signs"
    assert found["auc_relevance"]["n"] == 40
    assert kept(np.array([0.2, 0.4, 0.6, 0.8]), np.array([0.1, 0.3, 0.5, 0.7, 0.9])) == 0.25
    assert auc(np.array([1.0, 3.0]), np.array([0.0, 2.0])) == 0.75


def test_a_demo_asks_the_questions_of_its_sample(tmp_path):
    for name, sample_desk in samples().items():
        assert (SHIPPED_DATA / name).is_dir()
        assert sample_of(SHIPPED_DATA / name) == sample_desk
        assert len(sample_desk.examples) == MOST
        assert all((SHIPPED_DATA / name / page).is_file() for page in sample_desk.examples.values())
    assert sample_of(tmp_path / "knowledge-zh") == samples()[SAMPLE]


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("chinese-questions", ""),
        ("chinese-shop-questions", "knowledge-zh"),
        ("browser-questions", "knowledge"),
        ("twins/knowledge", "knowledge"),
        ("twins/login-gov", "login-gov/documents"),
    ],
)
def test_shipped_questions_have_their_facts_in_their_answers_and_articles(name, folder):
    asked = read_questions(SHIPPED_DATA / f"{name}.jsonl")
    for one in (one for one in asked if one.is_answerable):
        assert one.facts, one.id
        assert holds_all(one.gold, one.facts), one.id
        assert not set(one.not_from) & set(one.articles), one.id
        for article in (*one.articles, *one.not_from) if folder else ():
            text = unescape((SHIPPED_DATA / folder / article).read_text("utf-8"))
            assert article in one.not_from or holds_all(text, one.facts), one.id


@pytest.mark.parametrize(("name", "folder"), [("knowledge", "knowledge"), ("login-gov", "login-gov/documents")])
def test_every_near_miss_has_an_answerable_twin_on_its_page(name, folder):
    rows = [json.loads(line) for line in (SHIPPED_DATA / f"twins/{name}.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == len({row["question"] for row in rows}) == 120
    for number, (miss, twin) in enumerate(zip(rows[::2], rows[1::2], strict=True), start=1):
        assert (miss["id"], twin["id"]) == (f"{number:02}-miss", f"{number:02}-twin")
        assert miss["articles"] == miss["facts"] == []
        assert twin["articles"] == [miss["about"]]
        assert twin["facts"]
        assert (SHIPPED_DATA / folder / miss["about"]).is_file()


TEXT = "Returns take ten days. Keep the receipt. 退款需要五天。"


def labelled(folder: Path, *rows: dict[str, Any]) -> list[LabelledQuestion]:
    file = folder / "questions.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return read_labelled(file)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, {}),
        ({"answer": "A."}, {"answers": ("A.",)}),
        ({"answer": None, "facts": []}, {}),
        ({"answers": ["A", "B"], "articles": ["a.md"]}, {"answers": ("A", "B"), "articles": ("a.md",)}),
        ({"answers": ["A"], "earlier": "b?"}, {"earlier": "b?", "answers": ("A",)}),
        ({"facts": ["x", ["y", "z"]], "answer": "for people", "kind": "plain"}, {"facts": (("x",), ("y", "z"))}),
        ({"facts": ["x"], "history": [["b?", "B."], ["c?", "C."]]}, {"earlier": "c?", "facts": (("x",),)}),
        ({"facts": ["x"], "history": [{"question": "b?", "answer": "B."}]}, {"earlier": "b?", "facts": (("x",),)}),
    ],
)
def test_every_form_of_a_line(tmp_path, row, expected):
    (found,) = labelled(tmp_path, {"question": "a?", **row})
    assert found == LabelledQuestion(question="a?", **expected)
    assert found.is_answerable == bool(row.get("answers") or row.get("facts") or row.get("answer"))


def test_a_line_of_a_collection_has_many_questions_and_small_talk_is_none(tmp_path):
    rows = (
        {
            "title": "t",
            "context": "c",
            "qas": [{"question": "a?", "answers": ["A"]}, {"question": "b?", "answers": []}],
        },
        {"question": "Hello!", "kind": "smalltalk"},
        {"question": "c?"},
    )
    assert [(one.question, one.answers) for one in labelled(tmp_path, *rows)] == [
        ("a?", ("A",)),
        ("b?", ()),
        ("c?", ()),
    ]


@pytest.mark.parametrize("text", ["{", "5", '{"answer": "x"}', '{"qas": [{"question": "x"}]}', '["a"]'])
def test_another_file_is_one_clear_error(tmp_path, text):
    file = tmp_path / "questions.jsonl"
    file.write_text(text)
    with pytest.raises(DeskError, match=r"questions\.jsonl, line 1 is not a question") as caught:
        read_labelled(file)
    assert caught.value.code == "bad-questions"
    with pytest.raises(DeskError, match=r"none\.jsonl"):
        read_labelled(tmp_path / "none.jsonl")


PASSAGE = StoredPassage(
    id=1,
    document="d.md",
    title="Returns",
    ordinal=0,
    heading_path=("Returns",),
    text=TEXT,
    content_hash="",
    num_tokens=9,
    module_key=None,
)


def right(question: LabelledQuestion) -> list[str]:
    """The statements that are its answer. They are shown with a line that governs them, which does not count."""
    found = []
    for said in ("Returns take ten days.", "Keep the receipt.", "退款需要五天。"):
        start = TEXT.index(said)
        statement = Statement(f"Everything about zebras: {said}", start, start + len(said), "sentence")
        if question.is_answered_by(statement, PASSAGE):
            found.append(said)
    return found


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Returns take ten days.", ["Returns take ten days."]),
        ("ten days", ["Returns take ten days."]),
        ("TEN  days!", ["Returns take ten days."]),
        ("en day", []),  # parts of words are none of the answer
        ("Returns take ten days. Keep the receipt.", ["Returns take ten days.", "Keep the receipt."]),
        ("退款需要五天", ["退款需要五天。"]),
        ("五天", ["退款需要五天。"]),
        ("A return takes ten days", []),  # too few words in common
        ("All returns take ten days.", ["Returns take ten days."]),
        ("zebras", []),
        ("", []),
    ],
)
def test_statements_that_hold_the_answer_or_a_part_of_it_are_right(answer, expected):
    assert right(LabelledQuestion(question="?", answers=(answer,))) == expected


def test_one_of_several_answers_is_enough():
    question = LabelledQuestion(question="?", answers=("Keep the receipt", "ten days"))
    assert right(question) == ["Returns take ten days.", "Keep the receipt."]
    assert right(LabelledQuestion(question="?")) == []


def test_statements_with_one_of_the_facts_are_right():
    assert right(LabelledQuestion(question="?", facts=(("10 days", "ten days"), ("receipt",)))) == [
        "Returns take ten days.",
        "Keep the receipt.",
    ]
    assert right(LabelledQuestion(question="?", facts=(("zebras",),))), "facts are looked for in what is shown"


def test_other_documents_than_those_named_do_not_answer():
    question = LabelledQuestion(question="q?", answers=("ten days",), articles=("other.md",))
    assert right(question) == []
    assert right(LabelledQuestion(question="q?", answers=("ten days",), articles=("d.md",))) == [
        "Returns take ten days."
    ]
