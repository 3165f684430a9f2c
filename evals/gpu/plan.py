"""The rows to measure, most important first, each with subject, goal and share of ten minutes; and their results.

A result is a value next to its goal, the baseline of the same run and the lower bound of the GPU.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from operator import ge, le
from typing import Any, NamedTuple

from evals.gpu.session import NAMES, Session, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The goal of a value. faster: minimum ratio to the baseline. of_floor: maximum ratio to the lower bound. at_most:
    maximum value. words: text for tables instead of the numbers.
    """

    faster: float | None = None
    of_floor: float | None = None
    at_most: float | None = None
    words: str = ""

    def __str__(self) -> str:
        parts = {
            "at least {:g}x the baseline": self.faster,
            "within {:g}x of the floor": self.of_floor,
            "at most {:g}": self.at_most,
        }
        return self.words or "; ".join(text.format(goal) for text, goal in parts.items() if goal is not None)

    def is_met(self, row: "GpuRow") -> bool | None:
        values = ((self.faster, row.ratio, ge), (self.of_floor, row.of_floor, le), (self.at_most, row.value, le))
        checks = [
            None if value is None else is_good(value, goal) for goal, value, is_good in values if goal is not None
        ]
        if False in checks:
            return False
        return None if None in checks or not checks else True


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One value. row: its name in `--rows`. value: the median of `runs`; best: the best run; None if not measured, with
    the reason in `note`. p95: 95th percentile. baseline: the median of another program in the same unit. floor: the
    lower bound of the GPU. ratio: how many times better than the baseline. of_floor: how many times worse than the
    lower bound. met: whether the goal is met; None on a CPU, and if a number is missing.
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
        return self._times_better(self.baseline)

    @property
    def of_floor(self) -> float | None:
        better = self._times_better(self.floor)
        return 1 / better if better else None

    def _times_better(self, other: float | None) -> float | None:
        if not other or not self.value:
            return None
        return self.value / other if self.unit.endswith("/s") else other / self.value

    def judged(self, goal: Goal | None) -> "GpuRow":
        return self if goal is None else replace(self, goal=str(goal), met=goal.is_met(self))

    def as_json(self) -> dict[str, Any]:
        numbers = {"ratio": self.ratio, "of_floor": self.of_floor}
        rounded = {
            name: float(f"{value:.4g}") if isinstance(value, float) else value
            for name, value in (asdict(self) | numbers).items()
        }
        order = ("row", "what", "shape", "value", "best", "p95", "unit", "runs", "baseline", "baseline_name", "ratio")
        return {name: rounded[name] for name in (*order, "floor", "of_floor", "goal", "met", "note")}


def reason_of(error: BaseException) -> str:
    line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


MINUTES = 10  # time for the seconds of all rows and the start
NO_TIME = "not measured: no time left"
TRIAL = "trial run, sizes are tiny"


WHAT = {
    "card": "measured limits of the GPU",
    "attention": "largest difference of each attention kernel from a float64 reference with a block mask",
    **dict.fromkeys(
        ("ttft-8b", "ttft-0.5b", "ttft-4b", "ttft-bundled"),
        "first token, 4,096 cached and 32 fresh tokens, 8 modules on the device",
    ),
    "decode-64-8b": "64 answers at the same time that share 16 modules of 512 tokens",
    "kv-memory-8b": "their KV memory, as a multiple of one copy of the modules and the private tokens",
    "decode-1-8b": "one answer after 4,096 cached tokens",
    "ttft-host-8b": "first token, the same modules in host memory; the floor is the time to copy them",
    "ttft-disk-8b": "first token, the same modules on disk",
    "memory-8b": "device memory that 18 more rounds of questions leave in use, MiB",
    "weights-8b": "one answer after 4,096 cached tokens, 8-bit weights",
    "logits": "largest difference of logits from one forward pass of transformers with the same block mask",
    "many-modules": "20,000 modules on device, in host memory and on disk, requested by Zipf",
}


class RowPlan(NamedTuple):
    """The plan of one row, or of rows from the same run. name: for `--rows`. shape: of the model, None for no model.
    seconds: share of the time. where: the file in this folder and its function that measure the row.
    """

    name: str
    shape: Shape | None
    seconds: float
    where: str
    goal: Goal | None = None

    @property
    def what(self) -> str:
        return WHAT[self.name]

    def empty(self, note: str) -> GpuRow:
        return GpuRow(
            row=self.name,
            what=self.what,
            shape=NAMES[self.shape] if self.shape else "",
            goal="" if self.goal is None else str(self.goal),
            note=note,
        )

    def line(self, session: Session, **fields: Any) -> GpuRow:
        """Make a row with a result. fields: of `GpuRow`. Sizes in `what` are the sizes of a full run."""
        shape = session.name_of(self.shape) if self.shape else ""
        row = GpuRow(**{"row": self.name, "what": self.what, "shape": shape} | fields)
        return replace(row, what=f"{row.what} ({TRIAL})") if session.is_tiny else row


Measure = Callable[[Session, RowPlan], Iterator[GpuRow]]
"""Measures a row. A later row replaces an earlier one of the same name and `what`."""

SOONER = Goal(faster=15, of_floor=1.5)
EXACT = Goal(words="float32: at most 0.0001; bfloat16: at most 0.02")
AS_EXACT = Goal(words="float32: at most 0.001; bfloat16: at most twice that of transformers")

PLANS = (
    RowPlan("card", None, 15, "decoding.measure_limits"),
    RowPlan("attention", None, 40, "correctness.measure_attention", EXACT),
    RowPlan("ttft-8b", "8b", 50, "first_token.measure_first_token", SOONER),
    RowPlan("decode-64-8b", "8b", 80, "decoding.measure_shared", Goal(faster=2, of_floor=1.6)),
    RowPlan("kv-memory-8b", "8b", 20, "decoding.measure_kv_memory", Goal(at_most=1.2)),
    RowPlan("decode-1-8b", "8b", 25, "decoding.measure_alone", Goal(of_floor=1.3)),
    RowPlan("ttft-host-8b", "8b", 25, "first_token.measure_from_host", Goal(of_floor=1.3)),
    RowPlan("ttft-disk-8b", "8b", 30, "first_token.measure_from_disk", Goal(faster=1)),
    RowPlan("memory-8b", "8b", 25, "decoding.measure_memory", Goal(at_most=1.0)),
    RowPlan("weights-8b", "8b", 25, "decoding.measure_weights"),
    RowPlan("logits", "0.5b", 40, "correctness.measure_logits", AS_EXACT),
    RowPlan("ttft-0.5b", "0.5b", 20, "first_token.measure_first_token", SOONER),
    RowPlan("many-modules", "0.5b", 90, "first_token.measure_many"),
    RowPlan("ttft-4b", "4b", 35, "first_token.measure_first_token", SOONER),
    RowPlan("ttft-bundled", "bundled", 35, "first_token.measure_first_token", SOONER),
)
