"""The questions that an empty conversation offers."""

import threading

from desks import serve_small, small_desk, write_pages
from waiting import wait_until

from app.answering.explain import MOST, TRIED, ExampleQuestions, example_questions
from app.web.serve import DeskServer


def test_questions_that_stand_alone_come_before_titles_and_all_are_answered_from_their_page():
    headings = [
        ("returns.md", ("Returns",)),
        ("returns.md", ("Returns", "How long do I have?")),
        ("faq.md", ("FAQ", "Do gift cards expire?")),
        ("faq.md", ("FAQ", "Do you deliver to Northern Ireland?")),
        ("lost.md", ("Lost parcels",)),
        ("other.md", ("Answered elsewhere",)),
    ]
    answered = {"Do gift cards expire?": "faq.md", "Returns": "returns.md", "Answered elsewhere": "faq.md"}
    assert example_questions(headings, answered.get) == ["Do gift cards expire?", "Returns"]


def test_only_some_are_tried_from_all_over_the_documents():
    tried: list[str] = []

    def answered_from(text: str) -> str | None:
        tried.append(text)
        return None

    headings = [(f"{number}.md", (f"Page {number}",)) for number in range(1000)]
    assert example_questions(headings, answered_from) == []
    assert len(tried) == TRIED
    assert tried[-1] == "Page 961"
    assert len(example_questions(headings, lambda text: f"{text.split()[1]}.md")) == MOST


def test_offered_questions_are_shown_as_far_as_documents_answer_them():
    answers = {"Do gift cards expire?": "/shop/cards.md", "Are there lockers?": "/shop/stores.md"}
    offered = {"Do gift cards expire?": "cards.md", "Are there lockers?": "lockers.md"}
    examples = ExampleQuestions(lambda: [("cards.md", ("Gift cards",))], answers.get, lambda: offered)
    examples.for_snapshot("first")
    wait_until(lambda: examples.for_snapshot("first") == ["Do gift cards expire?"])
    answers["Are there lockers?"] = "/shop/lockers.md"  # its own document is read now
    assert "Do gift cards expire?" in examples.for_snapshot("second"), "they stay while others are looked for"
    wait_until(lambda: examples.for_snapshot("second") == [*offered])


def test_a_desk_finds_them_behind_and_again_when_documents_change(tmp_path):
    with small_desk(tmp_path / "desk", answer_above=-1.0, refuse_below=-1.0) as desk:
        assert list(desk.examples()) == [], "it does not answer yet"
        desk.ingest([write_pages(tmp_path / "pages")])
        desk.prepare()
        desk.examples()
        wait_until(lambda: "Returns" in desk.examples())
        desk.forget("returns.md")
        desk.examples()
        wait_until(lambda: "Returns" not in desk.examples())


def test_a_desk_that_starts_looks_for_them(tmp_path, monkeypatch):
    def run(server: DeskServer, sockets: object) -> None:
        for opening in (thread for thread in threading.enumerate() if thread.name == "opening"):
            opening.join()

    looked = list[bool]()
    for name in ("signal.signal", "app.cli.opening.create_app", "app.web.serve.Opening.open"):
        monkeypatch.setattr(name, lambda *_: None)
    monkeypatch.setattr(DeskServer, "run", run)
    with small_desk(tmp_path, port=0) as service:
        monkeypatch.setattr(service, "examples", lambda: looked.append(service.is_ready()))
        serve_small(service)
    assert looked == [True]
