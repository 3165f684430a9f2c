"""Stored conversations: what is read back equals what was recorded."""

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from refusals import one_line
from sqlalchemy import delete, func, select
from stored_answers import add_turn, an_answer, details

from app.domain.callers import OPERATOR
from app.domain.errors import DeskError
from app.storage import tables
from app.storage.conversation_care import ConversationCare
from app.storage.database import Database, open_database
from app.storage.history import History


def row_counts(database: Database) -> dict[str, int]:
    with database.read() as session:
        counted = {
            table.name: session.scalar(select(func.count()).select_from(table)) or 0
            for table in tables.Base.metadata.sorted_tables
        }
    return {name: count for name, count in counted.items() if count}


def test_answers_read_back_are_those_recorded_also_after_a_restart(history, database_url):
    conversation_id = history.start_conversation("How long?")
    recorded = [add_turn(history, conversation_id, number, refused=number == 1) for number in range(3)]
    history.feedback(recorded[2].message_id, "up")
    again = open_database(database_url)
    with closing(again):
        turns = History(again).turns(conversation_id)
    assert [turn.answer for turn in turns if turn.role == "assistant"] == recorded
    assert [turn.text for turn in turns if turn.role == "user"] == ["question 0?", "question 1?", "question 2?"]
    assert [turn.role for turn in turns] == ["user", "assistant"] * 3
    assert [turn.feedback for turn in turns] == [None] * 5 + ["up"]
    assert all(abs(datetime.now(UTC) - turn.created) < timedelta(minutes=1) for turn in turns)


def test_an_answer_without_its_figures_is_damage_in_one_line(history, database):
    conversation_id = history.start_conversation("How long?")
    add_turn(history, conversation_id)
    with database.engine.begin() as connection:
        connection.execute(delete(tables.UsageRow))
    with one_line("database-damaged", "answer .* is incomplete.*restore a backup"):
        history.turns(conversation_id)


def test_past_is_what_the_next_prompt_needs(history):
    conversation_id = history.start_conversation("How long?")
    add_turn(history, conversation_id)
    question_id = history.record_question(conversation_id, "and now?")
    answer = an_answer(conversation_id)
    history.record_answer(answer, details(question_id, answer, tokens=None))
    question, first, _, second = history.past(conversation_id)
    assert (question.role, question.text, question.tokens, question.passage_ids) == ("user", "question 0?", None, ())
    assert (first.role, first.tokens, first.passage_ids) == ("assistant", (5, 6, 7), (None, 11))
    assert (second.message_id, second.tokens) == (answer.message_id, None)


def test_only_the_latest_messages_are_read_for_a_prompt(history, monkeypatch):
    monkeypatch.setattr("app.storage.history._MOST_PAST", 3)
    conversation_id = history.start_conversation("x")
    for number in range(4):
        add_turn(history, conversation_id, number)
    assert [message.text for message in history.past(conversation_id)] == [
        "You have 2 days.",
        "question 3?",
        "You have 3 days.",
    ]


def test_an_answer_stands_behind_its_question_whichever_ended_first(history):
    """Two tabs of one conversation: the second question was answered before the first."""
    conversation_id = history.start_conversation("x")
    questions = [history.record_question(conversation_id, text) for text in ("one?", "two?", "three?")]
    answers = [an_answer(conversation_id, number) for number in (1, 2)]
    for number in (1, 0):
        history.record_answer(answers[number], details(questions[number], answers[number]))
    add_turn(history, conversation_id, 4)
    expected = ["one?", "You have 1 days.", "two?", "You have 2 days.", "three?", "question 4?", "You have 4 days."]
    assert [turn.text for turn in history.turns(conversation_id)] == expected
    assert [turn.text for turn in history.turns(conversation_id, last=3)] == expected[-3:]
    expected.remove("three?")  # without an answer it is in no prompt
    assert [message.text for message in history.past(conversation_id)] == expected


def test_conversations_are_listed_by_last_use(history):
    ids = [history.start_conversation(f"  title\n {number} " + "x" * 200) for number in range(3)]
    assert history.conversations() == [], "an empty conversation is not shown"
    for conversation_id in ids:
        add_turn(history, conversation_id)
    history.record_question(ids[0], "again")
    listed = history.conversations()
    assert [(one.id, one.turns) for one in listed] == [(ids[0], 3), (ids[2], 2), (ids[1], 2)]
    assert listed[0].title.startswith("title 0 x")
    assert len(listed[0].title) == 80
    assert listed[0].updated == history.turns(ids[0])[-1].created
    history.start_conversation("empty, and the latest")
    assert [one.id for one in history.conversations(limit=1)] == [ids[0]]


def test_deleting_a_conversation_leaves_nothing(history, database, tmp_path):
    kept, gone = history.start_conversation("kept"), history.start_conversation("gone")
    add_turn(history, kept)
    before = row_counts(database)
    for _ in range(20):
        question_id = history.record_question(gone, "my number is 4929-1111 " * 20)
        answer = an_answer(gone)
        history.record_answer(answer, details(question_id, answer))
        history.feedback(answer.message_id, "down", "wrong")
    care = ConversationCare(database)
    care.delete_conversation(gone)
    care.purge(datetime.now(UTC))
    care.delete_conversation(gone)  # not there any more: no error
    left = row_counts(database)
    del left["tallies"], before["tallies"]  # numbers of each minute
    assert left | {"conversations": 2} == before
    assert history.turns(gone) == []
    assert not any(b"4929-1111" in file.read_bytes() for file in tmp_path.iterdir())


def test_conversation_that_is_gone(history, database):
    conversation_id = history.start_conversation("x")
    question_id = history.record_question(conversation_id, "x")
    ConversationCare(database).erase(OPERATOR)
    answer = an_answer(conversation_id)
    for record in (
        lambda: history.record_answer(answer, details(question_id, answer)),
        lambda: history.record_question(conversation_id, "x"),
    ):
        with one_line("no-such-conversation", "there is no conversation"):
            record()
    assert row_counts(database) == {}


def test_feedback_of_answers_is_set_replaced_and_taken_back(history):
    conversation_id = history.start_conversation("x")
    answer = add_turn(history, conversation_id)
    for value in ("up", "down", None, None):
        history.feedback(answer.message_id, value, "because")
        assert history.turns(conversation_id)[1].feedback == value
    question_id = history.record_question(conversation_id, "x")
    for message_id in (question_id, "none"):
        with one_line("no-such-message"):
            history.feedback(message_id, "up")
    with pytest.raises(DeskError, match="it must be up or down"):
        history.feedback(question_id, "sideways")


def test_forgetting_a_document_takes_its_words_out_of_citations(history, tmp_path):
    conversation_id = history.start_conversation("x")
    answer = add_turn(history, conversation_id)
    history.forget_document("/kb/return")  # another document
    assert history.turns(conversation_id)[1].answer == answer
    history.forget_document("/kb/returns.md")
    history.forget_document("/kb/other.md")
    stored = history.turns(conversation_id)[1].answer
    assert stored is not None
    assert [one.quote for one in stored.citations] == ["(removed)", "(removed)"]
    assert stored.citations[0] == replace(answer.citations[0], quote="(removed)")
    assert not any("Grüße 退款".encode() in file.read_bytes() for file in tmp_path.iterdir())


def answer_from(history: History, conversation_id: str, document: str, *, cites: bool) -> None:
    """An answer in the model's own words that cites a document, or only had it in its prompt."""
    question_id = history.record_question(conversation_id, "x?")
    answer = an_answer(conversation_id)
    shown, read = (document, "/kb/z.md") if cites else ("/kb/z.md", document)
    citations = (replace(answer.citations[0], document=shown),)
    modules = (answer.modules[0], replace(answer.modules[1], document=read))
    answer = replace(answer, citations=citations, modules=modules)
    history.record_answer(answer, details(question_id, answer))


@pytest.mark.parametrize("cites", [True, False])
def test_what_a_forgotten_document_said_is_in_no_later_prompt(history, cites):
    conversation_id = history.start_conversation("x")
    for document in ("/kb/a.md", "/kb/gone.md", "/kb/b.md"):
        answer_from(history, conversation_id, document, cites=cites)
    history.forget_document("/kb/gone.md")
    answer_from(history, conversation_id, "/kb/c.md", cites=cites)
    said = [message.text for message in history.past(conversation_id) if message.role == "assistant"]
    assert said == ["You have 0 days.", "", "", "You have 0 days."], "the third had the second in its prompt"
    shown = [turn.text for turn in history.turns(conversation_id) if turn.role == "assistant"]
    assert shown == ["You have 0 days."] * 4, "people may read what was said"
    answer_from(history, conversation_id, "/kb/gone.md", cites=cites)  # it was ingested again
    assert history.past(conversation_id)[-1].text == "You have 0 days."


def test_a_quotation_that_is_recorded_after_the_forgetting_is_caught_also_after_a_restart(history, database):
    conversation_id = history.start_conversation("x")
    question_id = history.record_question(conversation_id, "x?")
    history.forget_document("/kb/returns.md")
    answer = replace(an_answer(conversation_id), quoted=True)
    History(database).record_answer(answer, details(question_id, answer))
    stored = history.turns(conversation_id)[-1].answer
    assert stored is not None
    assert (stored.answer, stored.citations[0].quote) == ("(removed)", "(removed)")
    assert history.quotes_of("/kb/returns.md") == 0
    assert history.past(conversation_id)[-1].text == ""


def test_a_question_counts_as_asked_when_it_came(history):
    """Its conversation was read for its prompt before the document was forgotten, and it was recorded afterwards."""
    conversation_id = history.start_conversation("x")
    answer_from(history, conversation_id, "/kb/gone.md", cites=True)
    arrived = datetime.now(UTC)
    history.forget_document("/kb/gone.md")
    question_id = history.record_question(conversation_id, "and now?", arrived=arrived)
    answer = an_answer(conversation_id)
    history.record_answer(answer, details(question_id, answer))
    assert [message.text for message in history.past(conversation_id)] == ["x?", "", "and now?", ""]


def test_a_conversation_is_its_owners_alone(history, database):
    care = ConversationCare(database)
    conversation = history.start_conversation("Mine", "v-ann")
    answer = add_turn(history, conversation)
    for owner in ("v-bob", OPERATOR):
        assert history.conversations(owner) == []
        assert history.turns(conversation, owner) == []
        assert history.past(conversation, owner) == []
        care.delete_conversation(conversation, owner)
        with pytest.raises(DeskError, match="there is no answer"):
            history.feedback(answer.message_id, "up", owner=owner)
    assert [turn.role for turn in history.turns(conversation, "v-ann")] == ["user", "assistant"]
    assert [one.id for one in history.conversations("v-ann")] == [conversation]
    history.feedback(answer.message_id, "up", owner="v-ann")
    care.delete_conversation(conversation, "v-ann")
    assert history.turns(conversation, "v-ann") == []


def test_a_question_without_an_answer_is_being_answered_or_was_lost_or_failed(history, database_url):
    conversation_id = history.start_conversation("How long?")
    add_turn(history, conversation_id)
    history.record_question(conversation_id, "killed?")
    history.ended(history.record_question(conversation_id, "failed?"))
    add_turn(history, conversation_id, 1)

    def unanswered(history: History) -> dict[str, str]:
        return {turn.text: turn.unanswered for turn in history.turns(conversation_id) if turn.unanswered}

    assert unanswered(history) == {"failed?": "failed"}, "the other one is being answered"
    with closing(open_database(database_url)) as again:
        later = History(again, longest=timedelta(0))
        assert unanswered(later) == {"killed?": "lost", "failed?": "lost"}
        assert [message.role for message in later.past(conversation_id)] == ["user", "assistant"] * 2
        assert later.is_there(conversation_id)
        assert not later.is_there(conversation_id, "v-somebody")
