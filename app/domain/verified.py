"""What came of verifying an encoded passage."""

from dataclasses import dataclass

CLOSE = 1e-3
"""The largest difference of a number that rounding explains, as a share of the largest number of the module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What came of verifying a module. largest_difference: between its stored rows and rows computed anew, as a share
    of its largest number; None if the stored rows could not be read, and why is in `problem`.
    """

    largest_difference: float | None
    problem: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether the stored rows are those that the model computes."""
        return self.largest_difference is not None and self.largest_difference <= CLOSE
