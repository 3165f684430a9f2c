"""The whole line with the tiny model: ingest, ask, ask again, restart, change, forget."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from desks import finish, small_desk
from hashed_search import HashEmbedder
from refusals import one_line
from tiny import build
from tiny_desk import tiny_desk

from app.desk.service import Service
from app.domain.settings import Settings
from cache.errors import ModelError
from cache.model.language_model import LanguageModel


def use_of(answer: object) -> dict[str, tuple[str, str | None]]:
    """Source and miss reason by document name, the system text left out."""
    return {Path(m.document).name: (m.source, m.miss_reason) for m in answer.modules if m.document}  # type: ignore[attr-defined]


def test_two_questions_at_once_keep_their_own_answers(tmp_path, pages):
    """In two tabs of one conversation; the answers end in the other order."""
    with small_desk(tmp_path / "desk", pages=pages, answer_mode="quote", answer_tokens=90) as desk:
        conversation = finish(desk, "Hello").conversation_id
        streams = [desk.ask(one, conversation_id=conversation) for one in ("Returns?", "Gift cards?")]
        said = ["".join(stream) for stream in reversed(streams)][::-1]
        assert said[0] != said[1]
        [(first, second, _), _] = desk._answering.questions._turns(desk.history.past(conversation), (), "And now?")
        assert [(turn.question, turn.answer) for turn in (first, second)] == [
            ("Returns?", said[0]),
            ("Gift cards?", said[1]),
        ]


def test_while_the_engine_loads_other_parts_are_opened(tmp_path):
    """Was wrong once: all parts waited for each other, one of two cores was idle."""
    opened = threading.Event()

    def load() -> LanguageModel:
        assert opened.wait(20)
        return build()

    with tiny_desk(tmp_path / "desk", load) as desk:
        desk.prepare(opened.set)
        assert desk.is_ready()
        assert finish(desk, "Hello").answer


def test_a_model_that_cannot_be_loaded_is_said(tmp_path):
    def load() -> LanguageModel:
        raise ModelError("there is no such model")

    with tiny_desk(tmp_path / "desk", load) as desk, pytest.raises(ModelError, match="no such model"):
        desk.prepare()


def test_everything_is_there_after_a_restart(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages, seed=1) as desk:
        before = finish(desk, "Can gift cards be returned?")
    with small_desk(tmp_path / "desk", seed=1) as desk:
        (summary,) = desk.conversations()
        question, reply = desk.turns(summary.id)
        assert question.text == "Can gift cards be returned?"
        assert reply.answer == before
        after = finish(desk, "Can gift cards be returned?")
        assert {source for source, _ in use_of(after).values()} == {"disk"}
        assert after.answer == before.answer
        again = finish(desk, "And how long do they last?", conversation_id=summary.id)
        assert again.usage.module > 0


def test_questions_that_cannot_be_asked(tmp_path):
    with small_desk(tmp_path / "desk") as desk:
        for question, conversation, code in (
            ("  \n", None, "question-empty"),
            ("x" * 20_000, None, "question-too-long"),
            ("Hello?", "nope", "conversation-unknown"),
        ):
            with one_line(code):
                desk.ask(question, conversation_id=conversation)
        assert desk.conversations() == []
        assert not desk.is_open("engine"), "said before anything is loaded"


def test_a_reader_who_leaves_keeps_what_was_said(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages, answer_tokens=60) as desk:
        stream = desk.ask("Can gift cards be returned?")
        pieces = iter(stream)
        next(pieces)
        pieces.close()  # type: ignore[attr-defined]
        (summary,) = desk.conversations()
        question, reply = desk.turns(summary.id)
        assert question.text == "Can gift cards be returned?"
        assert reply.answer is not None


def test_a_question_whose_answer_nobody_reads_has_none(tmp_path, pages):
    """Was wrong once: it counted as being answered until the desk was stopped."""
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        stream = desk.ask("How long do returns take?")
        stream.cancel()
        (conversation,) = desk.conversations()
        assert desk.turns(conversation.id)[0].unanswered is None
        del stream
        gc.collect()
        assert desk.turns(conversation.id)[0].unanswered == "failed"


def test_a_long_conversation_drops_its_oldest_turns_and_says_so(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages, device_memory=32 << 20) as desk:
        answer = finish(desk, "x" * 1500 + "?")
        for _ in range(3):
            answer = finish(desk, "y" * 1500 + "?", conversation_id=answer.conversation_id)
    assert answer.notice is not None
    assert "oldest" in answer.notice


def test_a_prepared_desk_has_answered_before_anybody_asks(tmp_path, pages):
    searched, computed = list[str](), list[int]()
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        find, submit = desk.finder.find, desk.engine.submit
        desk.finder.find = lambda question, **options: (searched.append(question), find(question, **options))[1]  # type: ignore[method-assign]
        desk.engine.submit = lambda request: (computed.append(len(request.plan.spans)), submit(request))[1]  # type: ignore[method-assign]
        before = desk.overview()
        desk.prepare()
        assert desk.is_ready()
        assert (len(searched), len(computed)) == (1, 1)
        assert desk.conversations() == []
        assert desk.overview() == before, "nothing is recorded or kept"


def test_threads_that_need_a_part_at_the_same_time_open_it_once(tmp_path):
    opened: list[int] = []

    def slowly(settings: Settings) -> HashEmbedder:
        opened.append(1)
        time.sleep(0.05)
        return HashEmbedder()

    with Service(Settings(data_dir=tmp_path), embedder=slowly) as desk, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: desk.search, range(8)))
    assert len(opened) == 1
    assert len(set(map(id, found))) == 1
