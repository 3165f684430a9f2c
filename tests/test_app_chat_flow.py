"""What the chat page does: asking, streaming, stopping, switching, errors, feedback, several readers."""

import threading
from typing import Any

import pytest
from desks import small_desk, write_pages
from fake_answers import make_answer
from fake_desk import NOW, FakeDesk, FakeStream
from page_check import check

from app.access.limits import QuestionLimits
from app.domain.callers import OPERATOR
from app.domain.errors import DeskError
from app.domain.progress import DocumentsRead
from app.domain.settings import Settings
from app.web.chat_flow import SHOWN_TURNS, ChatFlow, ChatView, Reader
from app.web.rendering import UNEXPECTED

READER = Reader(owner=OPERATOR, session="s")
SETTINGS = Settings(questions_per_minute=1000, answers_at_once=10)
LIMITS = QuestionLimits(SETTINGS)


def ask(flow: ChatFlow, question: str, open_id: str = "", reader: Reader = READER) -> list[ChatView]:
    return list(flow.ask(question, open_id, reader))


@pytest.fixture
def flow(desk):
    return ChatFlow(desk, LIMITS, SETTINGS, now=lambda: NOW)


def test_asking_streams_then_shows_the_stored_turn(flow, desk):
    first, *rest, last = ask(flow, "  Can I return it?  ")
    assert (first.box, first.answering, first.transcript) == ("", True, "")
    assert "Searching the documents" in (first.live or "")
    assert all(view.transcript is None for view in rest)
    assert last.conversation_id == desk.conversations()[0].id
    assert (last.live, last.answering) == ("", False)
    assert "30 days" in (last.transcript or "")
    assert 'aria-current="true"' in (last.conversations or "")
    follow_up = ask(flow, "And then?", last.conversation_id or "")
    assert follow_up[-1].conversation_id == last.conversation_id
    assert follow_up[0].transcript is None
    assert check(follow_up[-1].transcript or "").count("You asked") == 2


def test_while_documents_are_read_a_new_conversation_says_so_and_gets_examples(flow, desk):
    assert flow.reading(READER) == ""
    desk.read = DocumentsRead(read=12, total=48, is_most=True)
    assert "Documents are being read: 12 of 48" in check(flow.reading(READER))
    desk.examples = lambda: ("Can gift cards be returned?",)
    assert "Can gift cards be returned?" in (flow.look("", READER).transcript or "")
    assert flow.look("c", READER) == ChatView(), "a conversation stays as it is"
    asking = flow.ask("Can I return it?", "", READER)
    next(asking)
    assert flow.look("", READER) == ChatView(), "so does a question"
    asking.close()
    desk.read = DocumentsRead(read=12, total=48, is_most=False)
    assert flow.reading(READER) == "", "customers need not know of a few more"


def test_of_a_long_conversation_the_latest_messages_are_read_and_shown(flow, desk):
    """Was wrong once: all were read for each look, which took seconds where there were thousands."""
    for i in range(30):
        desk.store(f"question {i};", make_answer("c", f"m{i}", "returns"))
    read = list[int | None]()
    turns = desk.turns
    desk.turns = lambda *given: (read.append(given[2]), turns(*given))[1]  # type: ignore[method-assign]
    text = check(flow.open("c", READER).transcript or "")
    assert "Older messages are not shown" in text
    assert "question 9;" not in text
    assert "question 10;" in text
    assert read == [SHOWN_TURNS + 1]
    desk.store("short", make_answer("d", "m", "returns"))
    assert "Older messages" not in (flow.open("d", READER).transcript or "")


def test_redraws_are_spaced_not_one_for_each_piece(desk):
    ticks = iter(x * 0.011 for x in range(10_000))
    views = ask(ChatFlow(desk, LIMITS, SETTINGS, now=lambda: NOW, clock=lambda: next(ticks)), "Can I return it?")
    pieces = len(make_answer("c", "m", "returns").answer.split(" "))
    assert pieces / 5 < len(views) < pieces / 2


@pytest.mark.parametrize(
    ("question", "line"),
    [
        ("x" * 4001, "Your question is too long"),
        ("please break", UNEXPECTED),  # what the desk says names a setting: it is for the log
        ("please crash", UNEXPECTED),
    ],
)
def test_errors_are_one_line_and_the_question_stays(flow, desk, question, line):
    last = ask(flow, question)[-1]
    assert last.box == question
    assert last.answering is False
    assert line in check(last.live or "").replace("\n", " ")
    assert "/secret/place" not in (last.live or "")
    assert ask(flow, "Can I return it?")[-1].live == ""  # and the desk goes on


def test_stop_keeps_what_was_written(flow, desk):
    views = flow.ask("Can I return it?", "", READER)
    next(views), next(views)
    flow.stop(Reader(owner=OPERATOR, session="other"))
    assert not desk.streams[0].cancelled.is_set()
    flow.stop(READER)
    last = list(views)[-1]
    assert "Stopped before the end." in (last.transcript or "")
    assert last.answering is False
    views = flow.ask("Can I return it?", "", READER)
    next(views)
    flow.stop(READER)
    last = list(views)[-1]
    assert "The answer was stopped before it began" in (last.live or "")
    assert last.box == "Can I return it?"


def test_the_desk_searches_while_the_page_draws_and_may_be_left_meanwhile(flow, desk, monkeypatch):
    begun, go_on, ask_desk, asking = threading.Event(), threading.Event(), desk.ask, []

    def slow(*args: Any, **options: Any) -> Any:
        asking.append(threading.current_thread())
        begun.set()
        go_on.wait(10)
        return ask_desk(*args, **options)

    monkeypatch.setattr(desk, "ask", slow)
    views = flow.ask("Can I return it?", "", READER)
    assert "Can I return it?" in (next(views).live or "")
    assert begun.wait(10)
    views.close()
    assert not desk.streams
    go_on.set()
    asking[0].join(10)
    assert desk.streams[0].cancelled.is_set()


def test_a_question_that_is_asked_before_the_page_has_been_drawn_goes_on(flow, desk):
    views = flow.ask("Can I return it?", "", READER)
    next(views)
    assert flow.arrive("", READER) == ChatView()
    assert "Can I return it?" in (list(views)[-1].transcript or "")
    assert "Do gift cards expire?" in check(flow.arrive("", READER).transcript or "")


@pytest.mark.parametrize("is_slow_to_end", [False, True])
def test_switching_conversations_ends_the_answer_and_it_draws_no_more(desk, monkeypatch, is_slow_to_end):
    clock = iter(range(10_000))
    flow = ChatFlow(desk, LIMITS, SETTINGS, now=lambda: NOW, clock=lambda: next(clock))
    if is_slow_to_end:
        monkeypatch.setattr(FakeStream, "cancel", lambda self: None)
    views = flow.ask("Can I return it?", "", READER)
    next(views), next(views)
    flow.open(desk.conversations()[0].id, READER)
    assert desk.streams[0].cancelled.is_set() is not is_slow_to_end
    assert list(views) == [ChatView(live="")]


def test_an_old_answer_does_not_wipe_a_newer_one(flow, desk):
    old = flow.ask("Can I return it?", "", READER)
    next(old), next(old)
    flow.open("", READER)
    new = flow.ask("And this?", "", READER)
    next(new)
    assert list(old) == []
    assert list(new)[-1].live == ""


def test_a_second_question_waits_for_the_first(flow, desk):
    views = flow.ask("Can I return it?", "", READER)
    next(views), next(views)
    assert ask(flow, "Second") == [ChatView()]
    assert len(desk.streams) == 1
    list(views)
    assert ask(flow, "  \n ") == [ChatView()], "an empty one is none"


def test_two_readers_at_once_see_only_their_own(flow, desk):
    seen: dict[str, list[ChatView]] = {}

    def reader(name: str) -> None:
        seen[name] = ask(flow, f"Question of {name}", "", Reader(owner=f"v-{name}", session=name))

    threads = [threading.Thread(target=reader, args=(f"reader{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, views in seen.items():
        text = check("".join(f"{view.transcript or ''}{view.live or ''}{view.conversations or ''}" for view in views))
        assert f"Question of {name}" in text
        assert not any(f"Question of {other}" in text for other in seen if other != name)
    assert len({views[-1].conversation_id for views in seen.values()}) == 8


def test_nobody_sees_continues_rates_or_deletes_what_belongs_to_somebody_else():
    desk = FakeDesk(seeded=False)
    flow = ChatFlow(desk, LIMITS, SETTINGS)
    ann, bob = Reader(owner="v-ann", session="a"), Reader(owner="v-bob", session="b")
    conversation = ask(flow, "Can I return it?", reader=ann)[-1].conversation_id or ""
    shown = flow.open(conversation, bob)
    assert shown.conversation_id == ""
    assert "Can I return it?" not in f"{shown.transcript}{shown.conversations}"
    assert "This conversation no longer exists" in (ask(flow, "And then?", conversation, bob)[-1].live or "")
    flow.delete(conversation, "", bob)
    assert "Can I return it?" in (flow.open(conversation, ann).transcript or "")


@pytest.mark.parametrize("trouble", ["the desk is busy", "no engine", "the database is away"])
def test_without_a_new_answer_the_old_one_stays(tmp_path, monkeypatch, trouble):
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages")) as service:
        limits = QuestionLimits(SETTINGS)
        flow = ChatFlow(service, limits, SETTINGS)
        conversation = ask(flow, "How long do returns take?")[-1].conversation_id or ""
        before = service.turns(conversation, READER.owner)

        def fail(*given: object, **options: object) -> None:
            raise DeskError(trouble, code="engine")

        failing = {
            "the desk is busy": (limits, "asking"),
            "no engine": (service.engine, "submit"),
            "the database is away": (service.history, "record_answer"),
        }
        with monkeypatch.context() as context:
            context.setattr(*failing[trouble], fail)
            end = list(flow.ask("And how long for shoes?", conversation, READER, replaces_last=True))[-1]
        assert end.box == "And how long for shoes?"
        turns = service.turns(conversation, READER.owner)
        assert turns[:2] == before
        assert len(turns) == (3 if trouble == "the database is away" else 2)
        if trouble == "no engine":
            assert (end.editing, "How long do returns take?" in check(end.transcript or "")) == (True, True)
        end = list(flow.ask("And for shoes?", conversation, READER, replaces_last=True))[-1]
        assert "And for shoes?" in check(end.transcript or "")


def test_the_answer_follows_the_question_and_the_rest_the_page(tmp_path):
    with small_desk(tmp_path, contact_email="help@shop.example", handoff="off") as service:
        flow = ChatFlow(service, LIMITS, SETTINGS)
        asked_in_chinese = ask(flow, "我想找人工客服")[-1].transcript or ""
        assert all(words in asked_in_chinese for words in ("无法直接为您转接人工", "电子邮件", "You asked"))
        chinese = Reader(owner=OPERATOR, session="t", language="zh")
        asked_in_english = ask(flow, "I want to talk to a human", reader=chinese)[-1].transcript or ""
        assert all(words in asked_in_english for words in ("I am an automatic assistant", "您的提问"))
