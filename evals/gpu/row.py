"""What is measured becomes rows: a value beside its goal, the baseline of the same run and the floor of the card."""

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a value is held against. faster: times as good as the baseline, at least. of_floor: times the floor, at
    most. at_most: of the value itself. words: what stands in a table instead of these.
    """

    faster: float | None = None
    of_floor: float | None = None
    at_most: float | None = None
    words: str = ""

    def __str__(self) -> str:
        if self.words:
            return self.words
        parts = [
            None if self.faster is None else f"at least {self.faster:g}x the baseline",
            None if self.of_floor is None else f"within {self.of_floor:g}x of the floor",
            None if self.at_most is None else f"at most {self.at_most:g}",
        ]
        return "; ".join(part for part in parts if part is not None)

    def is_met(self, row: "GpuRow") -> bool | None:
        """None where a number that it needs was not measured, unless another one is missed already."""
        checks: list[bool | None] = []
        if self.faster is not None:
            checks.append(None if row.ratio is None else row.ratio >= self.faster)
        if self.of_floor is not None:
            checks.append(None if row.of_floor is None else row.of_floor <= self.of_floor)
        if self.at_most is not None:
            checks.append(None if row.value is None else row.value <= self.at_most)
        if False in checks:
            return False
        return None if None in checks or not checks else True


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One value. row: what `--rows` calls it. value: the median of `runs`, best: the best of them; None where it was
    not measured, and `note` says why. p95: 95 % stay within it. baseline: the median of another program in the same
    unit. floor: what the card allows. ratio, of_floor: how many times as good as the baseline, as bad as the floor.
    met: whether the goal is met; None on a processor, and where something is missing.
    """

    row: str
    what: str
    shape: str
    unit: str = ""
    value: float | None = None
    best: float | None = None
    p95: float | None = None
    runs: int = 0
    baseline: float | None = None
    baseline_name: str = ""
    floor: float | None = None
    goal: str = ""
    met: bool | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times as good as the baseline."""
        return self._times_better(self.baseline)

    @property
    def of_floor(self) -> float | None:
        """How many times as bad as the floor."""
        better = self._times_better(self.floor)
        return 1 / better if better else None

    def _times_better(self, other: float | None) -> float | None:
        if not other or not self.value:
            return None
        return self.value / other if self.unit.endswith("/s") else other / self.value

    def judged(self, goal: Goal | None) -> "GpuRow":
        """The same row with whether it meets a goal."""
        return self if goal is None else replace(self, goal=str(goal), met=goal.is_met(self))

    def as_json(self) -> dict[str, Any]:
        """With the ratios, numbers rounded to what they are worth."""
        numbers = {"ratio": self.ratio, "of_floor": self.of_floor}
        rounded = {name: rounded_to_four(value) for name, value in (asdict(self) | numbers).items()}
        order = ("row", "what", "shape", "value", "best", "p95", "unit", "runs", "baseline", "baseline_name", "ratio")
        return {name: rounded[name] for name in (*order, "floor", "of_floor", "goal", "met", "note")}


def reason_of(error: BaseException) -> str:
    """An error in one line."""
    line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def rounded_to_four(value: Any) -> Any:
    """Floating-point numbers with four digits that count."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
