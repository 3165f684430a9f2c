"""Which rows exist, the most important first: the subject, goal and share of ten minutes of each; and their results.

A result is a value next to its goal, the baseline of the same run and the lower bound of the GPU.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from evals.gpu.session import NAMES, Session, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The goal of a value. faster: minimum ratio to the baseline. of_floor: maximum ratio to the lower bound. at_most:
    maximum value. words: text for tables instead of these.
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
    """One value. row: its name in `--rows`. value: the median of `runs`, best: the best of them; None if not measured,
    with the reason in `note`. p95: 95th percentile. baseline: the median of another program in the same unit. floor:
    the lower bound of the GPU. ratio, of_floor: how many times better than the baseline, worse than the lower bound.
    met: whether the goal is met; None on a CPU, and if something is missing.
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
        """Times better than the baseline."""
        return self._times_better(self.baseline)

    @property
    def of_floor(self) -> float | None:
        """Times worse than the lower bound."""
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


MINUTES = 10
"""Time for the seconds of all rows and the start."""
NO_TIME = "not measured: no time left"
TRIAL = "trial run, sizes are tiny"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """A row, or several from the same run. name: for `--rows`. shape: of the model, None for no model. seconds: its
    share. where: the file of this folder that measures it, and the function there.
    """

    name: str
    what: str
    shape: Shape | None
    goal: Goal | None = None
    seconds: float
    where: str

    def empty(self, note: str) -> GpuRow:
        return GpuRow(
            row=self.name,
            what=self.what,
            shape=NAMES[self.shape] if self.shape else "",
            goal="" if self.goal is None else str(self.goal),
            note=note,
        )

    def line(self, session: Session, **fields: Any) -> GpuRow:
        """Make a row with a result. fields: of `GpuRow`. Sizes in `what` are those of a full run."""
        shape = session.name_of(self.shape) if self.shape else ""
        row = GpuRow(**{"row": self.name, "what": self.what, "shape": shape} | fields)
        return replace(row, what=f"{row.what} ({TRIAL})") if session.is_tiny else row


Measure = Callable[[Session, RowPlan], Iterator[GpuRow]]
"""Measures a row. A later row replaces an earlier one of the same name and `what`."""

SOONER = Goal(faster=15, of_floor=1.5)
FIRST_TOKEN = "first token, 4,096 cached and 32 fresh tokens, 8 modules on the device"


def _first_token(shape: Shape, seconds: float) -> RowPlan:
    what, where = FIRST_TOKEN, "first_token.measure_first_token"
    return RowPlan(name=f"ttft-{shape}", what=what, shape=shape, goal=SOONER, seconds=seconds, where=where)


PLANS = (
    RowPlan(name="card", what="what the GPU reaches", shape=None, seconds=15, where="decoding.measure_limits"),
    RowPlan(
        name="attention",
        what="largest difference of each attention kernel from a float64 reference with a block mask",
        shape=None,
        goal=Goal(words="float32: at most 0.0001; bfloat16: at most 0.02"),
        seconds=40,
        where="correctness.measure_attention",
    ),
    _first_token("8b", 50),
    RowPlan(
        name="decode-64-8b",
        what="64 answers at the same time that share 16 modules of 512 tokens",
        shape="8b",
        goal=Goal(faster=2, of_floor=1.6),
        seconds=80,
        where="decoding.measure_shared",
    ),
    RowPlan(
        name="kv-memory-8b",
        what="their KV memory, as a multiple of one copy of the modules and the private tokens",
        shape="8b",
        goal=Goal(at_most=1.2),
        seconds=20,
        where="decoding.measure_kv_memory",
    ),
    RowPlan(
        name="decode-1-8b",
        what="one answer after 4,096 cached tokens",
        shape="8b",
        goal=Goal(of_floor=1.3),
        seconds=25,
        where="decoding.measure_alone",
    ),
    RowPlan(
        name="ttft-host-8b",
        what="first token, the same modules in host memory; the floor is the time to copy them",
        shape="8b",
        goal=Goal(of_floor=1.3),
        seconds=25,
        where="first_token.measure_from_host",
    ),
    RowPlan(
        name="ttft-disk-8b",
        what="first token, the same modules on disk",
        shape="8b",
        goal=Goal(faster=1),
        seconds=30,
        where="first_token.measure_from_disk",
    ),
    RowPlan(
        name="memory-8b",
        what="device memory that 18 more rounds of questions leave in use, MiB",
        shape="8b",
        goal=Goal(at_most=1.0),
        seconds=25,
        where="decoding.measure_memory",
    ),
    RowPlan(
        name="weights-8b",
        what="one answer after 4,096 cached tokens, 8-bit weights",
        shape="8b",
        seconds=25,
        where="decoding.measure_weights",
    ),
    RowPlan(
        name="logits",
        what="largest difference of logits from one forward pass of transformers with the same block mask",
        shape="0.5b",
        goal=Goal(words="float32: at most 0.001; bfloat16: at most twice that of transformers"),
        seconds=40,
        where="correctness.measure_logits",
    ),
    _first_token("0.5b", 20),
    RowPlan(
        name="many-modules",
        what="20,000 modules on device, in host memory and on disk, requested by Zipf",
        shape="0.5b",
        seconds=90,
        where="first_token.measure_many",
    ),
    _first_token("4b", 35),
    _first_token("bundled", 35),
)
