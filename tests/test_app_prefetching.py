"""What is typed and not asked yet: its passages are in memory when it is asked, and nothing of it is kept."""

import logging
import threading
from typing import Any

import pytest
from desks import finish, small_desk, write_pages
from forgetting import NOTHING, SECRET, files_with, write_secret
from test_app_faq import GALWAY

from app.answering.prefetching import is_enough
from app.desk.service import Service
from cache.prompt.plan import Segment

ANN, BOB = "v-ann", "v-bob"
TYPED, QUESTION = "How long do returns", "How long do returns take?"


@pytest.fixture
def desk(tmp_path):
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([write_pages(tmp_path / "pages")], warm=False)
        desk.prepare()
        yield desk


def settled(desk: Service) -> None:
    while desk.engine.call(lambda store: desk.engine._core.has_work):
        pass


def in_memory(desk: Service) -> set[str]:
    return {entry.header.name.split("/")[-1] for entry in desk.engine.store.device.entries.values()}


def prefetched(desk: Service, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the modules of each prefetch from now on."""
    asked: list[list[str]] = []
    prefetch = desk.engine.prefetch

    def noted(segments: list[Segment], *others: Any) -> Any:
        asked.append([segment.name.split("/")[-1] for segment in segments])
        return prefetch(segments, *others)

    monkeypatch.setattr(desk.engine, "prefetch", noted)
    return asked


@pytest.mark.parametrize("kept_on_disk", [False, True])
def test_the_question_finds_its_passages_in_memory(desk, kept_on_disk):
    if kept_on_disk:
        finish(desk, QUESTION)
        desk.engine.store.flush()
        desk.engine.call(lambda store: [store.device.evict(key) for key in [*store.device.entries]])
        desk.engine.drop_prefixes("operator")
    desk.prefetch(TYPED, owner=ANN)
    settled(desk)
    answer = finish(desk, QUESTION, owner=ANN)
    assert len(answer.modules) == 3
    assert {module.source for module in answer.modules} == {"device"}
    assert answer.usage.computed == answer.usage.prompt_tokens - answer.usage.module


def test_the_nearest_passage_comes_first_also_of_a_follow_up(desk, monkeypatch):
    asked = prefetched(desk, monkeypatch)
    desk.prefetch(TYPED, owner=ANN)
    plan = desk._answering.questions.prepare(TYPED, []).plan
    assert plan is not None
    names = [segment.name.split("/")[-1] for segment in plan.segments()]
    assert asked == [names[::-1]]
    assert (names[0], names[-1]) == ("system", "returns.md#0")
    conversation = finish(desk, QUESTION, owner=ANN).conversation_id
    asked = prefetched(desk, monkeypatch)
    desk.prefetch("And does it last?", owner=ANN, conversation_id=conversation)
    desk.prefetch("And does it last?", owner=BOB, conversation_id=conversation)  # which is nobody's of his
    assert "returns.md#0" in asked[0]
    assert asked[1] != asked[0]


def test_nothing_of_it_is_kept(desk, tmp_path, monkeypatch, caplog):
    """Nor does the engine see it, which remembers the tokens of texts."""
    caplog.set_level(logging.DEBUG)
    arrange, arranged = desk.engine.arrange, []

    def noted(parts: Any) -> Any:
        arranged.append(str(parts))
        return arrange(parts)

    monkeypatch.setattr(desk.engine, "arrange", noted)
    before = desk.overview().answers
    desk.prefetch("Do zebras return gift cards?", owner=ANN)
    settled(desk)
    desk.engine.store.flush()  # files come and go until then
    assert desk.overview().answers == before
    assert desk.conversations(ANN) == []
    assert files_with(tmp_path / "desk", "zebras") == set()
    assert "zebras" not in caplog.text
    assert arranged
    assert not any("zebras" in parts for parts in arranged)


def test_the_same_text_is_searched_once(desk, monkeypatch):
    asked = prefetched(desk, monkeypatch)
    for text in (TYPED, TYPED, "What about gift cards", TYPED):
        desk.prefetch(text, owner=ANN)
    desk.prefetch(TYPED, owner=BOB)
    assert len(asked) == 4


def test_a_newer_text_replaces_the_older_one_and_an_empty_one_drops_it(desk):
    may_go_on = threading.Event()
    waiting = threading.Thread(target=desk.engine.call, args=(lambda store: may_go_on.wait(20),))
    waiting.start()
    desk.prefetch(TYPED, owner=ANN)
    desk.prefetch("Which repair bench is in Galway", owner=ANN)
    desk.prefetch("What does shipping cost", owner=BOB)
    desk.prefetch("", owner=BOB)
    may_go_on.set()
    waiting.join()
    settled(desk)
    plan = desk._answering.questions.prepare("Which repair bench is in Galway", []).plan
    assert plan is not None
    assert in_memory(desk) == {segment.name.split("/")[-1] for segment in plan.segments()}


@pytest.mark.parametrize(
    ("text", "enough"),
    [
        ("", False),
        ("internationalisation", False),
        ("returns?!  ...", False),
        ("my order", True),
        ("退", False),
        ("退货政策", True),
    ],
)
def test_too_little_is_not_searched(text, enough):
    assert is_enough(text) == enough


def test_small_talk_the_faq_and_a_conversation_with_a_person_need_nothing(desk, monkeypatch):
    desk.quality.save_faq(GALWAY, "ann")
    asked = prefetched(desk, monkeypatch)
    desk.prefetch("Thank you very much", owner=ANN)
    desk.prefetch(GALWAY.question, owner=BOB)
    conversation = desk.hand_off("button", owner=ANN, text="A person, please").conversation_id
    desk.prefetch(TYPED, owner=ANN, conversation_id=conversation)
    assert asked == [[], []]


def test_nothing_is_searched_while_a_question_is_answered(desk, monkeypatch):
    asked, decider = prefetched(desk, monkeypatch), desk._answering.questions.decider
    decide, loads, searched = decider.decide, [(0, 1), (1, 0), (0, 0), (0, 1), (0, 0), (0, 0)], []

    def noted(question: str, *others: Any) -> Any:
        searched.append(question)
        return decide(question, *others)

    monkeypatch.setattr(decider, "decide", noted)
    monkeypatch.setattr(desk.engine, "load", lambda: loads.pop(0))
    desk.prefetch(TYPED, owner=ANN)
    desk.prefetch(TYPED, owner=ANN)
    assert searched == []
    desk.prefetch(TYPED, owner=ANN)  # one is asked during the search
    assert searched == [TYPED]
    assert asked == []
    desk.prefetch(TYPED, owner=ANN)
    assert len(asked) == 1


def test_one_search_for_a_visitor_and_two_for_all(desk, monkeypatch):
    """More are dropped and do not wait."""
    begun, may_go_on = threading.Semaphore(0), threading.Event()
    decide = desk._answering.questions.decider.decide

    def slow(question: str, *others: Any) -> Any:
        begun.release()
        assert may_go_on.wait(20)
        return decide(question, *others)

    monkeypatch.setattr(desk._answering.questions.decider, "decide", slow)
    asked = prefetched(desk, monkeypatch)
    typing = [threading.Thread(target=desk.prefetch, args=(TYPED,), kwargs={"owner": owner}) for owner in (ANN, BOB)]
    for thread, dropped in zip(typing, (ANN, "v-eve"), strict=True):
        thread.start()
        assert begun.acquire(timeout=20)
        desk.prefetch("What about gift cards", owner=dropped)
        assert not begun.acquire(blocking=False)
    may_go_on.set()
    for thread in typing:
        thread.join()
    assert len(asked) == 2


def test_failures_are_one_line_that_names_no_text(desk, monkeypatch, caplog):
    def broken(question: str, *others: Any) -> Any:
        raise RuntimeError(question)

    with monkeypatch.context() as patched, caplog.at_level(logging.DEBUG, "app.answering"):
        patched.setattr(desk._answering.questions.decider, "decide", broken)
        desk.prefetch(TYPED, owner=ANN)
        desk.prefetch(2 * TYPED * 200, owner=ANN)  # too long to be asked: it is not looked at
    assert [record.getMessage() for record in caplog.records] == ["nothing was prefetched: RuntimeError"]
    assert finish(desk, QUESTION, owner=ANN).modules


def test_a_question_takes_its_place(desk, monkeypatch):
    desk.prefetch(TYPED, owner=ANN)
    typed = desk._prefetching._last[ANN][1]
    finish(desk, QUESTION, owner=BOB)
    assert not typed.is_cancelled
    finish(desk, QUESTION, owner=ANN)
    assert typed.is_cancelled
    assert ANN not in desk._prefetching._last


def test_switched_off_or_not_open_it_does_nothing(tmp_path):
    with small_desk(tmp_path / "desk", prefetch=False) as desk:
        desk.ingest([write_pages(tmp_path / "pages")], warm=False)
        desk.prepare()
        desk.prefetch(TYPED, owner=ANN)
        settled(desk)
        assert in_memory(desk) == set()
    with small_desk(tmp_path / "desk") as desk:
        desk.prefetch(TYPED, owner=ANN)
        assert not desk.is_ready()


def test_the_policy_exact_needs_what_is_exact(tmp_path):
    with small_desk(tmp_path / "desk", policy="exact") as desk:
        desk.ingest([write_pages(tmp_path / "pages")], warm=False)
        desk.prepare()
        desk.prefetch(TYPED, owner=ANN)
        settled(desk)
        brought = in_memory(desk)
        answer = finish(desk, QUESTION, owner=ANN)
    assert brought == {"system"}
    assert [module.source for module in answer.modules] == ["device", "computed", "computed"]


def test_a_document_that_is_forgotten_does_not_come_back(tmp_path):
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([write_secret(tmp_path / "pages")], warm=False)
        desk.prepare()
        may_go_on = threading.Event()
        waiting = threading.Thread(target=desk.engine.call, args=(lambda store: may_go_on.wait(20),))
        waiting.start()
        desk.prefetch("What is the word of the day", owner=ANN)
        threading.Timer(0.05, may_go_on.set).start()
        assert desk.forget("secret.md").left == NOTHING
        waiting.join()
        settled(desk)
        desk.engine.store.flush()
        assert files_with(tmp_path / "desk", SECRET) == set()
        assert not any("secret" in name for name in in_memory(desk))
