"""Which rows there are, the most important first: what each is about, its goal, and its share of ten minutes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evals.gpu.row import Goal, GpuRow
from evals.gpu.shapes import NAMES, Shape

if TYPE_CHECKING:
    from evals.gpu.session import Session

MINUTES = 10
"""That the seconds of all rows fit into, with what starting takes."""
NO_TIME = "not measured: no time left"
TRIAL = "trial run, sizes are tiny"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """A row, or several that come of the same run. name: for `--rows`. shape: of the model; None: of no model. seconds:
    its share. where: file of this folder that measures it, and the function there.
    """

    name: str
    what: str
    shape: Shape | None
    goal: Goal | None = None
    seconds: float
    where: str

    def empty(self, note: str) -> GpuRow:
        """The row without a value, and why."""
        return GpuRow(
            row=self.name,
            what=self.what,
            shape=NAMES[self.shape] if self.shape else "",
            goal="" if self.goal is None else str(self.goal),
            note=note,
        )

    def line(self, session: "Session", **fields: Any) -> GpuRow:
        """A row with what was measured. fields: of `GpuRow`. Sizes in `what` are those of a run in full."""
        shape = session.name_of(self.shape) if self.shape else ""
        row = GpuRow(**{"row": self.name, "what": self.what, "shape": shape} | fields)
        return replace(row, what=f"{row.what} ({TRIAL})") if session.is_tiny else row


Measure = Callable[["Session", RowPlan], Iterator[GpuRow]]
"""Measures a row. A later row of the same name and `what` takes the place of an earlier one."""

SOONER = Goal(faster=15, of_floor=1.5)
FIRST_TOKEN = "first token, 4,096 cached and 32 fresh tokens, 8 modules on the device"
PLANS = (
    RowPlan(name="card", what="what the card reaches", shape=None, seconds=15, where="limits.measure_limits"),
    RowPlan(
        name="attention",
        what="largest difference of each attention kernel from a float64 reference with a block mask",
        shape=None,
        goal=Goal(words="float32: at most 0.0001; bfloat16: at most 0.02"),
        seconds=40,
        where="correctness.measure_attention",
    ),
    RowPlan(
        name="ttft-8b", what=FIRST_TOKEN, shape="8b", goal=SOONER, seconds=50, where="first_token.measure_first_token"
    ),
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
        what="one answer behind 4,096 cached tokens",
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
        where="memory.measure_memory",
    ),
    RowPlan(
        name="weights-8b",
        what="one answer behind 4,096 cached tokens, weights of 8 bits",
        shape="8b",
        seconds=25,
        where="weights.measure_weights",
    ),
    RowPlan(
        name="logits",
        what="largest difference of logits from one forward pass of transformers with the same block mask",
        shape="0.5b",
        goal=Goal(words="float32: at most 0.001; bfloat16: at most twice that of transformers"),
        seconds=40,
        where="correctness.measure_logits",
    ),
    RowPlan(
        name="ttft-0.5b",
        what=FIRST_TOKEN,
        shape="0.5b",
        goal=SOONER,
        seconds=20,
        where="first_token.measure_first_token",
    ),
    RowPlan(
        name="many-modules",
        what="20,000 modules on device, in host memory and on disk, asked for by Zipf",
        shape="0.5b",
        seconds=90,
        where="many.measure_many",
    ),
    RowPlan(
        name="ttft-4b", what=FIRST_TOKEN, shape="4b", goal=SOONER, seconds=35, where="first_token.measure_first_token"
    ),
    RowPlan(
        name="ttft-bundled",
        what=FIRST_TOKEN,
        shape="bundled",
        goal=SOONER,
        seconds=35,
        where="first_token.measure_first_token",
    ),
)
