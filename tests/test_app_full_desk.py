"""A desk that is asked more than it can answer says so, in words for whoever asked."""

from typing import Any

import pytest
from desks import finish, small_desk, write_pages

from app.domain.answers import PlainOptions, Said
from app.domain.callers import LATE, REPEATED
from app.domain.errors import DeskError
from app.web.rendering import error_words
from cache.engine.request import FinishReason
from cache.engine.running import Running


def test_one_more_than_may_be_answered_is_told_so(tmp_path):
    with small_desk(
        tmp_path / "desk",
        pages=write_pages(tmp_path / "pages"),
        questions_at_once=1,
        questions_waiting=0,
        answer_tokens=40,
    ) as desk:
        first, second = (desk.ask("How long do returns take?") for _ in range(2))
        with pytest.raises(DeskError, match="the server is busy") as error:
            list(second)
        assert error.value.code == "engine-full"
        assert "Many customers are asking" in error_words(error.value)
        assert "".join(first)


def end_late(patch: pytest.MonkeyPatch) -> None:
    """An answer goes on for three tokens, and is then as late as can be."""
    advance = Running.advance

    def late(self: Running, *given: Any) -> FinishReason | None:
        reason = advance(self, *given)
        if len(self.answer) == 3:
            self.admitted.submitted -= 1e6
        return reason

    patch.setattr(Running, "advance", late)


def end_in_a_loop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("cache.engine.running.loop_length", lambda tokens: len(tokens) // 3)


@pytest.mark.parametrize(("ended", "notice"), [(end_late, LATE), (end_in_a_loop, REPEATED)])
def test_an_answer_that_took_too_long_or_repeated_itself_is_cut_for_readers_and_programs(
    tmp_path, monkeypatch, ended, notice
):
    """Was wrong once: programs were told that it was complete. The model alone may repeat itself."""
    ended(monkeypatch)
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages"), answer_tokens=40) as desk:
        answer = finish(desk, "How long do returns take?")
        assert (answer.is_cut, answer.notice) == (True, notice)
        assert desk.turns(answer.conversation_id)[-1].answer == answer
        if ended is end_in_a_loop:
            assert answer.usage.completion_tokens == 3
            plain = desk.complete([Said("user", "Zeros, please.")], PlainOptions(max_tokens=6), owner="k-1")
            assert list(plain)
            assert plain.answer.usage.completion_tokens == 6
