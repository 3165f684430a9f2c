"""What owners do with their conversations: search, rename, delete and take back, ask anew; what is left of it."""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
from refusals import one_line
from sqlalchemy import func, select, update
from stored_answers import an_answer, details

from app.desk.repeating import Housekeeping, every_minute
from app.domain.errors import DeskError
from app.domain.quality import ENDED_WORDS
from app.storage.conversation_care import UNDO_S, ConversationCare, Period, Transcripts
from app.storage.database import Database
from app.storage.handoffs import Handoffs
from app.storage.history import History
from app.storage.statistics import Statistics
from app.storage.tables import ConversationRow, MessageRow

ANN, BOB = "v-ann", "v-bob"


@pytest.fixture
def care(database):
    return ConversationCare(database)


def asked(history: History, *questions: str, owner: str = ANN) -> str:
    conversation = history.start_conversation(questions[0], owner)
    for question in questions:
        answer = an_answer(conversation)
        history.record_answer(answer, details(history.record_question(conversation, question), answer))
    return conversation


def set_deleted(database: Database, when: datetime) -> None:
    """As if every conversation that is hidden had been deleted then."""
    hidden = update(ConversationRow).where(ConversationRow.deleted.is_not(None))
    with database.write() as session:
        session.execute(hidden.values(deleted=when))


def is_gone(care: ConversationCare, conversation: str, owner: str = ANN) -> bool:
    try:
        care.restore_conversation(conversation, owner)
    except DeskError as error:
        return error.code == "no-such-conversation"
    return False


SEARCHED = {
    "kaffee": ["de"],
    "ENTKALKE": ["de"],  # within a word, and in a later question
    "HAUPTSTRAßE": ["de"],
    "Hauptstr_ße": [],
    "ÉTAGÈRE": ["fr"],
    "退款 运费": ["zh"],
    "退款 étagère": [],
    "you have 0 DAYS": ["zh", "fr", "de"],  # the answers
    "_": [],
    "  ": ["zh", "fr", "de"],
    "lamp": [],  # somebody else's
}


def test_search_finds_titles_and_messages_in_any_language(history):
    names = {
        asked(history, "Die Kaffeemaschine steht", "Wie entkalke ich sie in der Hauptstraße?"): "de",
        asked(history, "Où est mon étagère ?"): "fr",
        asked(history, "我要退款", "运费谁付"): "zh",
    }
    asked(history, "Where is my lamp?", owner=BOB)

    def found(query: str, **limit: int) -> list[str]:
        return [names[one.id] for one in history.conversations(ANN, query=query, **limit)]

    assert {query: found(query) for query in SEARCHED} == SEARCHED
    assert {query: found(query, limit=2) for query in SEARCHED} == {query: some[:2] for query, some in SEARCHED.items()}


def test_a_title_is_changed_shortened_and_found(history, care):
    conversation = asked(history, "Where is it?")
    care.rename_conversation(conversation, "  The lamp\n for Ann ", ANN)
    [found] = history.conversations(ANN, query="LAMP")
    assert (found.id, found.title, found.turns) == (conversation, "The lamp for Ann", 2)
    other = asked(history, "two")
    care.rename_conversation(conversation, "x" * 200, ANN)
    assert [one.id for one in history.conversations(ANN)] == [other, conversation], "it does not move up"
    assert len(history.conversations(ANN)[1].title) == 80
    with pytest.raises(DeskError, match="the title is empty"):
        care.rename_conversation(conversation, " \n", ANN)


def test_others_can_do_nothing(history, care):
    conversation = asked(history, "Where is it?")
    care.delete_conversation(conversation, BOB)
    for change in (
        lambda: care.rename_conversation(conversation, "mine", BOB),
        lambda: care.restore_conversation(conversation, BOB),
        lambda: care.last_question(conversation, BOB),
    ):
        with one_line("no-such-conversation"):
            change()
    assert history.conversations(ANN)[0].title == "Where is it?"
    care.delete_conversation(conversation, ANN)
    assert is_gone(care, conversation, BOB)
    care.restore_conversation(conversation, ANN)


def test_a_deleted_conversation_is_hidden_and_comes_back_whole(history, care):
    conversation = asked(history, "Where is it?")
    turns = history.turns(conversation, ANN)
    care.delete_conversation(conversation, ANN)
    assert history.conversations(ANN) == history.conversations(ANN, query="where") == []
    assert history.turns(conversation, ANN) == []
    assert history.past(conversation, ANN) == []
    assert not history.is_there(conversation, ANN)
    with pytest.raises(DeskError):
        care.rename_conversation(conversation, "x", ANN)
    with pytest.raises(DeskError):
        history.feedback(turns[1].message_id, "up", owner=ANN)
    history.start_conversation("another may be kept in its place", ANN, most=1)
    care.restore_conversation(conversation, ANN)
    assert history.turns(conversation, ANN) == turns
    assert is_gone(care, conversation), "it is no longer deleted"


def test_an_answer_that_ends_after_the_deletion_is_there_after_undo(history, care):
    conversation = history.start_conversation("Where is it?", ANN)
    question = history.record_question(conversation, "Where is it?")
    care.delete_conversation(conversation, ANN)
    answer = an_answer(conversation)
    history.record_answer(answer, details(question, answer))
    care.restore_conversation(conversation, ANN)
    assert len(history.turns(conversation, ANN)) == 2


def test_undo_ends_and_the_text_is_gone(history, care, database, tmp_path):
    kept, gone = asked(history, "kept"), asked(history, "my number is 4929-1111 " * 20)
    care.delete_conversation(gone, ANN)
    now = datetime.now(UTC)
    assert care.purge(now - timedelta(seconds=UNDO_S)) == frozenset()
    set_deleted(database, now - timedelta(seconds=UNDO_S + 1))
    assert is_gone(care, gone)
    assert care.purge(now - timedelta(seconds=UNDO_S)) == {ANN}
    assert [one.id for one in history.conversations(ANN)] == [kept]
    assert not any(b"4929-1111" in file.read_bytes() for file in tmp_path.iterdir())


def test_housekeeping_removes_what_is_due_and_what_was_computed(history, care):
    busy, dropped = {ANN}, list[str]()

    def drop(owner: str) -> bool:
        dropped.append(owner)
        return owner not in busy

    housekeeping, now = Housekeeping(care, drop), datetime.now(UTC)
    for owner in (ANN, BOB):
        care.delete_conversation(asked(history, "x", owner=owner), owner)
    housekeeping.tidy(now)
    assert dropped == [], "they may still be brought back"
    later = now + timedelta(seconds=UNDO_S + 5)
    housekeeping.tidy(later)
    assert sorted(dropped) == [ANN, BOB]
    busy.clear()
    housekeeping.tidy(later)
    housekeeping.tidy(later)
    assert sorted(dropped) == [ANN, ANN, BOB], "what was in use is dropped the next time, and once"


def test_conversations_that_nobody_used_are_removed(history, care, database):
    old, new = asked(history, "old?", owner=BOB), asked(history, "new?")
    now = datetime.now(UTC)
    with database.write() as session:
        aged = update(ConversationRow).where(ConversationRow.id == old).values(updated=now - timedelta(days=31))
        session.execute(aged)
    dropped: list[str] = []
    Housekeeping(care, lambda owner: True, 30).tidy(now + timedelta(days=9999), is_clock_set=False)
    for keep_days, kept in ((None, [old]), (32, [old]), (30, [])):
        Housekeeping(care, lambda owner: not dropped.append(owner), keep_days).tidy(now)  # type: ignore[func-returns-value]
        assert [one.id for one in history.conversations(BOB)] == kept
    assert dropped == [BOB]
    assert [one.id for one in history.conversations(ANN)] == [new]


@pytest.mark.parametrize("clock_s", [0.0, 3600.0])
def test_a_clock_that_is_wrong_at_the_start_removes_nothing(monkeypatch, clock_s):
    monkeypatch.setattr("app.desk.repeating.CLOCK_S", clock_s)
    told = SimpleQueue[bool]()
    with every_minute(SimpleNamespace(tidy=lambda now, is_clock_set: told.put(is_clock_set))):  # type: ignore[arg-type]
        assert told.get(timeout=30) == (clock_s == 0)


def test_of_too_many_conversations_the_oldest_lose_what_was_computed(history, care, monkeypatch):
    monkeypatch.setattr("app.desk.repeating.MOST_WATCHED", 1)
    dropped = list[str]()
    housekeeping = Housekeeping(care, lambda owner: dropped.append(owner) is None)
    for owner in (ANN, BOB):
        housekeeping.asked(asked(history, "x", owner=owner), owner)
    housekeeping.tidy(datetime.now(UTC))
    assert dropped == [ANN]


def test_housekeeping_begins_at_once_and_survives_a_failure(history, care, database, monkeypatch):
    failed, dropped = threading.Event(), threading.Event()

    def failing_first(owner: str) -> bool:
        if not failed.is_set():
            failed.set()
            raise DeskError("the disk is full", code="disk-full")
        dropped.set()
        return True

    def delete_one() -> None:
        care.delete_conversation(asked(history, "x"), ANN)
        set_deleted(database, datetime.now(UTC) - timedelta(hours=1))

    delete_one()
    monkeypatch.setattr("app.desk.repeating.TIDY_EVERY_S", 0.01)
    with every_minute(Housekeeping(care, failing_first)):
        assert failed.wait(30)
        delete_one()
        assert dropped.wait(30)
    assert not [thread for thread in threading.enumerate() if thread.name == "housekeeping"]


def put_in_its_place(history: History, conversation: str, replaced: str, question: str) -> None:
    question_id, answer = history.record_question(conversation, question), an_answer(conversation)
    history.record_answer(answer, replace(details(question_id, answer), replaces=replaced))


def test_the_last_turn_goes_when_the_answer_in_its_place_is_stored(history, care, database):
    conversation = asked(history, "one?", "two?")
    last = care.last_question(conversation, ANN)
    question = history.record_question(conversation, "three?")
    assert [turn.text for turn in history.turns(conversation, ANN)][2::2] == ["two?", "three?"], "it is there still"
    assert [one.text for one in history.past(conversation, ANN, last)][::2] == ["one?"]
    history.ended(question, is_withdrawn=True)
    assert care.last_question(conversation, ANN) == last, "nothing has changed"
    put_in_its_place(history, conversation, last, "three?")
    assert [turn.text for turn in history.turns(conversation, ANN)][::2] == ["one?", "three?"]
    assert database.values(select(func.count()).select_from(MessageRow)) == [4]
    empty = history.start_conversation("", ANN)
    with pytest.raises(DeskError, match="has no question"):
        care.last_question(empty, ANN)


def test_a_title_that_came_from_the_first_question_comes_from_the_one_in_its_place(history, care):
    conversation = asked(history, "one?")
    put_in_its_place(history, conversation, care.last_question(conversation, ANN), "two?")
    assert history.conversations(ANN)[0].title == "two?"
    care.rename_conversation(conversation, "Mine", ANN)
    put_in_its_place(history, conversation, care.last_question(conversation, ANN), "three?")
    assert history.conversations(ANN)[0].title == "Mine"


def test_nobody_replaces_what_another_conversation_says(history, care):
    conversation, other = asked(history, "one?"), asked(history, "kept?", owner=BOB)
    put_in_its_place(history, conversation, care.last_question(other, BOB), "two?")
    assert [turn.text for turn in history.turns(other, BOB)][::2] == ["kept?"]


def test_an_answer_to_a_question_that_was_replaced_is_not_stored(history, care):
    conversation = history.start_conversation("one?", ANN)
    question = history.record_question(conversation, "one?")
    put_in_its_place(history, conversation, question, "two?")
    answer = an_answer(conversation)
    with pytest.raises(DeskError, match="there is no question"):
        history.record_answer(answer, details(question, answer))
    assert [turn.text for turn in history.turns(conversation, ANN)][::2] == ["two?"]


def test_everything_of_one_owner_is_erased(history, care, monkeypatch):
    monkeypatch.setattr("app.storage.conversation_care._AT_ONCE", 2)
    conversations = [asked(history, f"{number}?", "more?") for number in range(5)]
    asked(history, "kept?", owner=BOB)
    history.feedback(history.turns(conversations[0], ANN)[1].message_id, "down", "wrong", owner=ANN)
    care.delete_conversation(conversations[1], ANN)
    erased = care.erase(ANN)
    assert (erased.conversations, erased.messages, erased.feedback) == (5, 20, 1)
    assert history.conversations(ANN) == []
    assert is_gone(care, conversations[1])
    assert len(history.conversations(BOB)) == 1


def test_each_number_of_the_dashboard_is_that_of_the_conversations_it_leads_to(history, care, database):
    now = datetime.now(UTC)
    outcomes = {"good": ("answered",), "found": ("nothing", "answered"), "maybe": ("unsure",), "hi": ("smalltalk",)}
    outcomes |= {"angry": ("answered",), "called": ("answered",), "liked": ("answered",), "hidden": ("nothing",)}
    for title, ends in outcomes.items():
        conversation = history.start_conversation(title, ANN)
        for outcome in ends:
            answer = replace(an_answer(conversation), outcome=outcome)
            history.record_answer(answer, details(history.record_question(conversation, title), answer))
        if title in ("angry", "liked"):
            history.feedback(answer.message_id, "down" if title == "angry" else "up", owner=ANN)
        if title == "called":
            Handoffs(database, announced=False).request(conversation, ANN, "waiting", "button", "", now)
    care.delete_conversation(conversation, ANN)
    asked(history, "of a program", owner="k-1")
    transcripts = Transcripts(database)
    period = Period(since=now - timedelta(hours=1), until=now + timedelta(hours=1))
    listed = {kind: {one.title for one in transcripts.conversations(ended=kind, period=period)} for kind in ENDED_WORDS}
    assert listed == {
        "asked": {"good", "found", "maybe", "angry", "called", "liked"},
        "answered": {"good", "angry", "called", "liked"},
        "resolved": {"good", "liked"},
        "unsure": {"maybe"},
        "nothing": {"found"},
        "person": {"called"},
        "down": {"angry"},
        "up": {"liked"},
    }
    assert transcripts.how_many(period) == {kind: len(found) for kind, found in listed.items()}
    later = Period(since=now + timedelta(hours=1), until=now + timedelta(hours=2))
    assert set(transcripts.how_many(later).values()) == {0}
    [angry] = transcripts.conversations("angry")
    assert angry.ended == ("down",)


def test_the_dashboard_shows_nothing_of_a_hidden_conversation(history, care, database):
    conversation = history.start_conversation("private?", ANN)
    question = history.record_question(conversation, "private?")
    answer = replace(an_answer(conversation), grounding=0.2)
    history.record_answer(answer, details(question, answer))
    asked(history, "shown?")
    statistics = Statistics(database)
    assert {row.question for row in statistics.misses()} == {"private?", "shown?"}
    assert [row.question for row in statistics.weakly_supported(0.5)] == ["private?"]
    care.delete_conversation(conversation, ANN)
    assert {row.question for row in statistics.misses()} == {"shown?"}
    assert statistics.weakly_supported(0.5) == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_erasing_takes_the_copies_of_the_database_away(history, care, database, tmp_path):
    asked(history, "my number is 4929-1111")
    database.back_up("m099_next")
    assert len([file for file in tmp_path.iterdir() if b"4929-1111" in file.read_bytes()]) >= 2
    care.erase(ANN)
    assert not any(b"4929-1111" in file.read_bytes() for file in tmp_path.iterdir())
