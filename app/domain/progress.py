"""How long work tells how far it is."""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with a stage ("reading", "embedding" or "encoding"), how much of it is done, and how much there is."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Reports nothing."""
