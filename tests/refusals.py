"""Mistakes that end in one clear line."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.domain.errors import DeskError


@contextmanager
def one_line(code: str, says: str = "") -> Iterator[None]:
    """The block ends in a DeskError of one line with this code. says: a pattern in it."""
    with pytest.raises(DeskError, match=says or None) as caught:
        yield
    assert caught.value.code == code, caught.value
    assert "\n" not in str(caught.value)
