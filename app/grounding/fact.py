"""A fact that a text states, in a form in which it can be compared. `statements` finds the facts of a text."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

FactKind = Literal["number", "time", "date", "weekday", "code", "address", "name"]

DURATIONS = frozenset({"seconds", "days", "working days", "months"})


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of a text.

    value and unit are normalised, text is as written. place: the offset of its first character. is_bound: whether the
    text states the fact; "an hour" only implies 1 hour. as_written: the number of an amount before it was converted to
    its base unit.
    """

    kind: FactKind
    value: str
    unit: str
    text: str
    place: int
    is_bound: bool = True
    as_written: str = ""

    @property
    def measures(self) -> str:
        """What the fact measures. Facts that measure the same can be mistaken for each other."""
        return f"{self.kind} {'duration' if self.unit in DURATIONS else self.unit}"

    @property
    def key(self) -> str:
        """The fact as a word, equal for equal facts."""
        return f"#{self.kind} {self.value} {self.unit}".rstrip()


def without(text: str, found: Iterable[Fact]) -> str:
    """The text with the given facts blanked out, everything else in its place."""
    letters = list(text)
    for fact in found:
        letters[fact.place : fact.place + len(fact.text)] = " " * len(fact.text)
    return "".join(letters)
