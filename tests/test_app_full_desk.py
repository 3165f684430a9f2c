"""A desk that is asked more than it can answer says so, in words for whoever asked."""

from collections.abc import Callable
from pathlib import Path

import pytest
from desks import finish, small_desk, write_pages

from app.domain.answers import PlainOptions, Said
from app.domain.callers import LATE, REPEATED
from app.domain.errors import DeskError
from app.web.rendering import error_words
from cache.engine.request import FinishReason
from cache.engine.running import Running


def test_one_more_than_may_be_answered_is_told_so(tmp_path: Path) -> None:
    with small_desk(
        tmp_path / "desk",
        pages=write_pages(tmp_path / "pages"),
        questions_at_once=1,
        questions_waiting=0,
        answer_tokens=40,
    ) as desk:
        first, second = (desk.ask("How long do returns take?") for _ in range(2))
        with pytest.raises(DeskError, match="the desk is busy") as error:
            list(second)
        assert error.value.code == "engine-full"
        assert "Many customers are asking" in error_words(error.value)
        assert "".join(first)


def test_an_answer_that_took_too_long_is_cut_for_readers_and_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was wrong once: programs were told that it was complete."""
    monkeypatch.setattr(Running, "advance", end_late(Running.advance))
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages"), answer_tokens=40) as desk:
        answer = finish(desk, "How long do returns take?")
        assert answer.is_cut
        assert answer.notice == LATE
        assert desk.turns(answer.conversation_id)[-1].answer == answer


def test_an_answer_that_repeated_itself_is_cut_for_readers_and_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache.engine.running.loop_length", lambda tokens: len(tokens) // 3)
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages"), answer_tokens=40) as desk:
        answer = finish(desk, "How long do returns take?")
        assert answer.usage.completion_tokens == 3
        assert answer.is_cut
        assert answer.notice == REPEATED
        plain = desk.complete([Said("user", "Zeros, please.")], PlainOptions(max_tokens=6), owner="k-1")
        assert list(plain)
        assert plain.answer.usage.completion_tokens == 6


def end_late(advance: Callable[..., FinishReason | None]) -> Callable[..., FinishReason | None]:
    """An answer that goes on for three tokens, and is then as late as can be."""

    def late(self: Running, *given: object) -> FinishReason | None:
        reason = advance(self, *given)
        if len(self.answer) == 3:
            self.admitted.submitted -= 1e6
        return reason

    return late
