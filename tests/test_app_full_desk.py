"""A desk that is asked more than it can answer says so, in words for whoever asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from desks import small_desk, write_pages

from app.domain.errors import DeskError
from app.web.error_words import error_words


def test_one_more_than_may_be_answered_is_told_so(tmp_path: Path) -> None:
    with small_desk(tmp_path / "desk", questions_at_once=1, questions_waiting=0, answer_tokens=40) as desk:
        desk.ingest([write_pages(tmp_path / "pages")])
        first, second = (desk.ask("How long do returns take?") for _ in range(2))
        with pytest.raises(DeskError, match="the desk is busy") as error:
            list(second)
        assert error.value.code == "engine-full"
        assert "Many people ask" in error_words(error.value)
        assert "".join(first)
