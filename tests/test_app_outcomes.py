"""Three outcomes and small talk, end to end with the tiny model: decided, said, cited, stored, and asked on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import pytest
from desks import finish, small_desk, write_pages

from app.answering.prepare import earlier_question, is_topic, outcome_of
from app.cli.operate import finish as demo_answer
from app.desk.batch import BatchQuestion
from app.desk.output import answer_json, overview_json
from app.desk.service import Service
from app.domain.answers import OUTCOME_WORDS, Outcome, from_documents
from app.domain.callers import QUOTED
from app.domain.words import CURES, REASONS
from app.storage.history import PastMessage
from cache.engine.request import Generation
from cache.errors import CacheError
from cache.memory.disk import MissReason

GIFT_CARDS = "Can gift cards be returned?"
CERTAIN, UNSURE = {"answer_above": -1.0}, {"answer_above": 1.0}
LEAD = "I am not certain; this may help:"


@contextmanager
def desk_with_pages(folder: Path, **changes: object) -> Iterator[Service]:
    with small_desk(folder / "desk", pages=write_pages(folder / "pages"), **changes) as desk:
        yield desk


def test_an_unsure_answer_says_so_quotes_little_and_names_pages(tmp_path):
    with desk_with_pages(tmp_path, answer_mode="free", **UNSURE) as desk:
        stream = desk.ask(GIFT_CARDS)
        pieces = list(stream)
        answer = stream.answer
        stored = desk.turns(answer.conversation_id)[1].answer
    assert answer.outcome == "unsure"
    assert not answer.refused
    assert "".join(pieces).strip() == answer.answer
    assert answer.answer.startswith(LEAD + "\n\n")
    assert 1 <= len(answer.statements) <= 2
    assert all(any(text in one.quote for one in answer.citations) for text in answer.statements)
    assert answer.quoted  # a desk that is not sure lets no model word it
    assert stored == answer


def test_a_name_that_no_page_has_is_said(tmp_path):
    with desk_with_pages(tmp_path, **CERTAIN) as desk:
        unknown, known = finish(desk, "Can gift cards from Ennis be returned?"), finish(desk, GIFT_CARDS)
        many = finish(desk, "Can gift cards from Ennis, Ennis, Trim, Tuam, Navan, or Birr be returned?")
        _, said = desk.history.past(unknown.conversation_id)
    assert (unknown.outcome, known.outcome) == ("unsure", "answered")
    assert unknown.answer.startswith("I am not certain: our help pages do not mention Ennis. This may help:\n\n")
    assert said.text == "\n\n".join(unknown.statements)
    assert many.answer.startswith("I am not certain: our help pages do not mention Ennis, Trim, Tuam. This")
    assert outcome_of(unknown.answer, unknown.answer, desk.settings) == "unsure"


def test_what_was_said_of_a_forgotten_document_is_removed(tmp_path):
    with desk_with_pages(tmp_path, **UNSURE) as desk:
        answers = [finish(desk, text) for text in (GIFT_CARDS, "help")]
        desk.forget("gift-cards.md")
        assert not any("Gift cards" in desk.turns(answer.conversation_id)[1].text for answer in answers)


def test_the_line_of_an_unsure_answer_is_not_what_the_model_said(tmp_path):
    """The next prompt goes on from the model's own tokens, so what was computed for the first turn is reused."""
    with desk_with_pages(tmp_path, **UNSURE) as desk:
        first = finish(desk, GIFT_CARDS)
        [_, said] = desk.history.past(first.conversation_id)
        second = finish(desk, "And how long do they last then?", conversation_id=first.conversation_id)
    assert LEAD not in said.text
    assert said.text == "\n\n".join(first.statements)
    assert said.tokens is not None
    assert second.usage.session >= first.usage.computed  # what was copied word for word was not computed


def test_an_unsure_answer_that_is_stopped_at_its_first_words_is_kept(tmp_path):
    with desk_with_pages(tmp_path, **UNSURE) as desk:
        stream = desk.ask(GIFT_CARDS)
        pieces = []
        for piece in stream:
            pieces.append(piece)
            stream.cancel()
        assert pieces[0].startswith(LEAD)
        assert len(pieces[0]) > len(LEAD) + 2
        assert stream.answer.outcome == "unsure"
        assert stream.answer.answer == "".join(pieces)
        assert stream.answer.notice == QUOTED, "it was shown whole"


def test_a_quotation_is_kept_if_the_engine_fails_behind_it(tmp_path, monkeypatch, caplog):
    with desk_with_pages(tmp_path, answer_mode="quote", **CERTAIN) as desk:
        lost = Generation()
        lost.deliver(CacheError("the engine failed"))
        monkeypatch.setattr(desk.engine, "submit", lambda request: lost)
        answer = finish(desk, GIFT_CARDS)
        [_, said] = desk.history.past(answer.conversation_id)
    assert answer.outcome == "answered"
    assert said.text == answer.answer == "\n\n".join(answer.statements)
    assert (answer.usage.prompt_tokens, said.tokens) == (0, None)
    assert "could not read it: the engine failed" in caplog.text


def test_nothing_is_said_with_the_contacts_and_without_pages(tmp_path):
    with desk_with_pages(tmp_path, refuse_below=0.999, contact_email="care@shop.example") as desk:
        answer = finish(desk, "Do you sell bicycles for children?")
        chinese = finish(desk, "你们卖儿童自行车吗？")
    for one in (answer, chinese):
        assert (one.outcome, one.refused, one.citations, one.statements) == ("nothing", True, (), ())
        assert "care@shop.example" in one.answer
    assert "help pages" in answer.answer
    assert "帮助页面" in chinese.answer


def test_small_talk_needs_no_search_and_is_left_out_of_later_prompts(tmp_path, monkeypatch):
    with desk_with_pages(tmp_path) as desk:
        monkeypatch.setattr(desk.finder, "find", lambda *args, **options: pytest.fail("searched"))
        hello = finish(desk, "Hello!")
        monkeypatch.undo()
        alone = finish(desk, GIFT_CARDS)
        after = finish(desk, GIFT_CARDS, conversation_id=hello.conversation_id)
    assert (hello.outcome, hello.citations, hello.statements) == ("smalltalk", (), ())
    assert hello.usage.prompt_tokens == 0
    assert after.usage.prompt_tokens == alone.usage.prompt_tokens


def test_a_person_is_reached_by_the_contacts_or_by_the_page_about_it(tmp_path, monkeypatch):
    with desk_with_pages(tmp_path / "a", contact_phone="+353 1 555 0100") as desk:
        monkeypatch.setattr(desk.finder, "find", lambda *args, **options: pytest.fail("searched"))
        named = finish(desk, "I want to talk to a human agent")
    with desk_with_pages(tmp_path / "b") as desk:
        found = finish(desk, "I want to talk to a human agent")
    with desk_with_pages(tmp_path / "c", **UNSURE) as desk:
        neither = finish(desk, "I want to talk to a human agent")
    assert {one.outcome for one in (named, found, neither)} == {"smalltalk"}
    assert "+353 1 555 0100" in named.answer
    assert (len(named.citations), len(found.citations), len(neither.citations)) == (0, 1, 0)
    assert "customer service team" in neither.answer


def test_what_is_too_vague_gets_one_question_back(tmp_path):
    with desk_with_pages(tmp_path) as desk:
        answer = finish(desk, "it does not work")
        [_, said] = desk.history.past(answer.conversation_id)
    assert answer.outcome == "unsure"
    assert answer.answer.startswith("What is it about? For example: ")
    assert 1 <= len(answer.citations) <= 3
    assert all(one.title in answer.answer for one in answer.citations)
    assert (answer.statements, said.text, answer.usage.prompt_tokens) == ((), "", 0)


def test_a_topic_lists_what_there_is_unless_search_is_sure(tmp_path):
    with desk_with_pages(tmp_path, **UNSURE) as desk:
        unsure = finish(desk, "returns")
    with desk_with_pages(tmp_path, **CERTAIN) as desk:
        sure = finish(desk, "returns")
    assert "What is it about?" in unsure.answer
    assert "Returns" in unsure.answer
    assert sure.outcome == "answered"


def test_what_is_vague_is_about_the_question_before_and_small_talk_is_none(tmp_path):
    with desk_with_pages(tmp_path) as desk:
        first = finish(desk, GIFT_CARDS)
        second = finish(desk, "it does not work", conversation_id=first.conversation_id)
    assert second.outcome == "answered"
    assert "Gift cards" in second.citations[0].title

    def turn(question: str, outcome: Outcome) -> list[PastMessage]:
        said = PastMessage(role="assistant", text="", outcome=outcome)
        return [PastMessage(role="user", text=question), said]

    assert earlier_question(turn("How long?", "answered") + turn("thanks", "smalltalk")) == "How long?"
    assert earlier_question(turn("hello", "smalltalk")) is None
    assert earlier_question([]) is None


def test_without_documents_everything_but_small_talk_ends_in_nothing(tmp_path):
    with small_desk(tmp_path) as desk:
        assert [finish(desk, text).outcome for text in ("help", "hello", GIFT_CARDS)] == [
            "nothing",
            "smalltalk",
            "nothing",
        ]


def test_outcomes_are_counted_and_in_the_json(tmp_path):
    with desk_with_pages(tmp_path, **UNSURE) as desk:
        answers = [finish(desk, text) for text in (GIFT_CARDS, "hello", "thanks", "help")]
        document = overview_json(desk.overview())
        batch = desk.batch([BatchQuestion(id="1", question=GIFT_CARDS, past=())], lambda done, total: None)
    counts = {name: document[name] for name in ("answers", "answered", "unsure", "refusals", "smalltalk")}
    assert counts == {"answers": 4, "answered": 0, "unsure": 2, "refusals": 0, "smalltalk": 2}
    written = answer_json(answers[0])
    assert (written["outcome"], written["refused"]) == ("unsure", False)
    assert written["statements"] == list(answers[0].statements)
    assert batch.answers[0].answer == answers[0].answer


@pytest.mark.parametrize(
    ("outcome", "part"), [("answered", "a\n\nb"), ("unsure", "b"), ("nothing", ""), ("smalltalk", "")]
)
def test_what_of_a_text_comes_from_the_documents(outcome, part):
    assert from_documents("a\n\nb", outcome) == part


@pytest.mark.parametrize(
    ("question", "is_one"),
    [
        ("returns", True),
        ("退货", True),
        ("the delivery", True),
        *((text, False) for text in ("E03", "gift cards", "who?", "Can I cancel?", "Do you deliver?")),
    ],
)
def test_topics(question, is_one):
    assert is_topic(question) == is_one


def test_every_outcome_and_every_miss_has_words():
    assert set(OUTCOME_WORDS) == set(get_args(Outcome))
    assert set(REASONS) == set(CURES) == set(get_args(MissReason))


@contextmanager
def desk_with_plans(folder: Path, names: Sequence[str] = ("Amber", "Birch")) -> Iterator[Service]:
    (folder / "pages").mkdir()
    for plan, days, price in zip(names, (14, 30), (5, 9), strict=True):
        text = f"# {plan} plan\n\n## Cancelling\n\nYou can cancel within {days} days.\n\n## Price\n\nIt is EUR {price}."
        (folder / "pages" / f"{plan}.md").write_text(text)
    with small_desk(folder / "desk", pages=folder / "pages", answer_mode="quote", **CERTAIN) as desk:
        yield desk


def test_what_several_things_have_is_asked_back_and_the_reply_completes_the_question(tmp_path):
    with desk_with_plans(tmp_path) as desk:
        asked = finish(desk, "How many days do I have for cancelling?")
        replied = finish(desk, asked.choices[0], conversation_id=asked.conversation_id)
        thanks = finish(desk, "Thank you!", conversation_id=asked.conversation_id)
        explained = desk.quality.explain("How many days do I have for cancelling?")
    assert (asked.outcome, asked.statements, {*asked.choices}) == ("unsure", (), {"Amber", "Birch"})
    assert asked.answer.startswith("Which one do you mean?\n- ")
    assert {one.title for one in asked.citations} == {"Amber plan", "Birch plan"}
    assert outcome_of("", asked.answer, desk.settings) == "unsure"
    days = {"Amber": "14 days", "Birch": "30 days"}
    assert replied.outcome == "answered"
    assert days.pop(asked.choices[0]) in replied.answer
    assert not any(other in replied.answer for other in days.values())
    assert thanks.outcome == "smalltalk"
    assert explained.why == "which"


def test_pages_of_two_years_are_of_one_thing(tmp_path):
    with desk_with_plans(tmp_path, ["2024", "2026"]) as desk:
        assert finish(desk, "How many days do I have for cancelling?").choices == ()


@pytest.mark.parametrize("question", ["How many days can I cancel the Birch plan?", "What is the price of Birch?"])
def test_a_thing_that_the_question_names_is_the_one_meant(tmp_path, question):
    with desk_with_plans(tmp_path) as desk:
        answer = finish(desk, question)
    assert answer.choices == ()
    assert {one.title for one in answer.citations if not one.see_also} == {"Birch plan"}


def test_the_demo_compares_first_tokens_also_of_quotations(tmp_path):
    """Was wrong once: it stopped at the first words, before the model had read anything."""
    with desk_with_pages(tmp_path, answer_mode="quote", **CERTAIN) as desk:
        off, on = demo_answer(desk, GIFT_CARDS, "off"), demo_answer(desk, GIFT_CARDS, "on")
    assert off.usage.computed == off.usage.prompt_tokens > on.usage.computed > 0
    assert off.timings.ttft > off.timings.retrieve
