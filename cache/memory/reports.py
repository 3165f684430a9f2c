"""What the store says of modules and prefixes, as values."""

from dataclasses import dataclass
from typing import Literal

Source = Literal["device", "host", "disk", "computed", "elsewhere"]
"""The source of a module's rows. elsewhere: a remote model, which does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixUse:
    """A computed prefix that later requests reused. tokens: its last run; num_tokens: its whole length."""

    tokens: tuple[int, ...]
    num_tokens: int
    hits: int

    @property
    def saved(self) -> int:
        return self.hits * len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCheck:
    """A stored module compared with the model. largest_difference: relative to the largest number; None if the stored
    module cannot be read, for the reason in `problem`.
    """

    largest_difference: float | None
    problem: str = ""
