"""A document is forgotten while questions about it are asked, answered and waited for: nothing of it comes back."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from desks import finish, small_desk
from forgetting import NOTHING, SECRET, files_with, kept, modules, write_secret
from test_app_neighbours import stored

from app.answering.prepare import PreparedQuestion
from app.desk.service import Service
from app.domain.progress import no_progress
from app.knowledge.prompts import PassageText, PromptTurn
from app.storage.history import PastMessage
from cache.engine.request import Limits, Reuse


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    return write_secret(tmp_path / "pages")


def test_an_answer_under_way_brings_no_quotation_back(tmp_path: Path, pages: Path) -> None:
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        stream = desk.ask("What is the word of the day?")
        assert desk.forget("secret.md").left == NOTHING
        for _ in stream:
            pass
        assert desk.history.quotes_of(str(pages / "secret.md")) == 0
        assert files_with(tmp_path / "desk", SECRET) == set()


def test_no_later_prompt_holds_an_answer_that_rests_on_it(tmp_path: Path, pages: Path) -> None:
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        conversation = finish(desk, "What is the word of the day?").conversation_id
        assert len(prompt_turns(desk, conversation)) == 2
        desk.forget("secret.md")
        assert len(prompt_turns(desk, conversation)) == 1
        finish(desk, "How long do returns take?", conversation_id=conversation)
        assert [turn.question for turn in prompt_turns(desk, conversation)] == ["How long do returns take?", "Next?"]


def prompt_turns(desk: Service, conversation: str) -> list[PromptTurn]:
    return desk._answering.questions._turns(desk.history.past(conversation), (), "Next?")[0]


def test_a_question_asked_while_it_is_being_removed_brings_no_quotation_back(
    tmp_path: Path, pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_desk(tmp_path / "desk", pages=pages, answer_mode="quote", answer_tokens=90) as desk:
        remove = desk._ingestion.remove
        streams = []

        def asked_before(path: str) -> object:
            streams.append(desk.ask("What is the word of the day?"))
            assert SECRET in "".join(streams[0])  # recorded before the document is gone
            streams.append(desk.ask("What is the word of the day?"))
            return remove(path)

        monkeypatch.setattr(desk._ingestion, "remove", asked_before)
        assert desk.forget("secret.md").left == NOTHING
        assert SECRET in "".join(streams[1])
        assert files_with(tmp_path / "desk", SECRET) == set()
        assert desk.history.turns(streams[0].answer.conversation_id)[-1].text == "(removed)"


# --- what is under way -------------------------------------------------------------------------------------


def test_a_question_that_had_read_the_document_is_answered_first(
    tmp_path: Path, pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_desk(tmp_path / "desk", pages=pages, neighbours=0) as desk:
        desk.prepare()
        questions = desk._answering.questions
        prepare, is_prepared, may_go_on = questions.prepare, threading.Event(), threading.Event()

        def slow(question: str, past: Sequence[PastMessage], collections: Sequence[str] = ()) -> PreparedQuestion:
            prepared = prepare(question, past, collections)
            is_prepared.set()
            assert may_go_on.wait(20)
            return prepared

        monkeypatch.setattr(questions, "prepare", slow)
        with ThreadPoolExecutor(2) as pool:
            answer = pool.submit(finish, desk, "What is the word of the day?")
            assert is_prepared.wait(20)
            forgetting = pool.submit(desk.forget, "secret.md")
            while len(desk.documents()) == 5:
                time.sleep(0.01)
            assert not forgetting.done()
            may_go_on.set()
            assert answer.result(20).citations[0].document == str(pages / "secret.md")
            assert forgetting.result(20).left == NOTHING
        assert modules(desk) == kept(desk)


def test_a_question_that_waits_for_its_turn_brings_nothing_back(tmp_path: Path, pages: Path) -> None:
    with small_desk(tmp_path / "desk", pages=pages, neighbours=1, answer_tokens=60) as desk:
        streams = [desk.ask("How long do returns take?") for _ in range(Limits().running)]
        streams.append(desk.ask("What is the word of the day?"))
        assert desk.forget("secret.md").left == NOTHING
        for stream in streams:
            assert "".join(stream)
        assert modules(desk) == kept(desk)


def test_a_question_is_waited_for_from_before_it_reads_its_conversation(
    tmp_path: Path, pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer in it may rest on the document. Was wrong once: it was waited for only while it searched."""
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        conversation = finish(desk, "What is the word of the day?").conversation_id
        read, is_waited_for = desk.history.past, list[bool]()

        def past(conversation_id: str, owner: str, without: str = "") -> list[PastMessage]:
            is_waited_for.append(bool(desk._in_flight._open))
            return read(conversation_id, owner)

        monkeypatch.setattr(desk.history, "past", past)
        finish(desk, "And tomorrow?", conversation_id=conversation)
        assert is_waited_for == [True]
        assert not desk._in_flight._open


def test_passages_read_ahead_meanwhile_keep_their_modules(
    tmp_path: Path, pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was wrong once: which modules are in use was looked up before the wait, not behind it."""
    with small_desk(tmp_path / "desk", pages=pages / "secret.md", neighbours=0) as desk:
        desk.ingest([pages / "returns.md"], warm=False)
        settle = desk.engine.settle

        def waits() -> None:
            unread = desk.library.all_ids(only_unencoded=True)
            assert desk._warming.encode(unread, no_progress).encoded == 1
            settle()

        monkeypatch.setattr(desk.engine, "settle", waits)
        assert desk.forget("secret.md").left == NOTHING
        assert stored(desk)["returns"].module_key in modules(desk)


@pytest.mark.parametrize("reuse", ["on", "prefix"])
def test_what_was_computed_with_it_goes_although_its_module_is_gone(tmp_path: Path, pages: Path, reuse: Reuse) -> None:
    """Evicted, or never encoded. Was wrong once: only modules that were in memory or on disk were forgotten."""
    with small_desk(tmp_path / "desk", passages=1, neighbours=0) as desk:
        desk.ingest([pages], warm=reuse == "on")
        finish(desk, "What is the word of the day?", reuse=reuse)
        finish(desk, "Can gift cards be returned?", reuse=reuse)
        key = desk.engine.store.key(desk.engine.segment(desk.prompts.module(PassageText.of(stored(desk)["secret"]))))
        assert key in computed_with(desk)
        desk.engine.call(lambda store: store.remove(key))
        assert desk.forget("secret.md").left == NOTHING
        assert key not in computed_with(desk)
        if reuse == "on":
            assert stored(desk)["gift-cards"].module_key in computed_with(desk)


def computed_with(desk: Service) -> frozenset[str]:
    """The modules that stand in what conversations hold in memory."""
    return desk.engine.call(lambda store: store.device.prefixes.modules())
