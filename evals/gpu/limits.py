"""The row of what the card reaches, which all floors come from."""

from collections.abc import Iterator

from evals.gpu.plan import RowPlan
from evals.gpu.row import GpuRow
from evals.gpu.session import Session


def measure_limits(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    """Memory, products, copies from the host: see `evals.gpu.card`."""
    floor, dtype = session.floor, str(session.dtype).removeprefix("torch.")
    yield plan.line(
        session, what="memory, read and written by a large copy", value=floor.own.bytes_per_s / 1e9, unit="GB/s"
    )
    yield plan.line(session, what=f"{dtype} products", value=floor.own.flops / 1e12, unit="TFLOP/s")
    yield plan.line(session, what="copy from page-locked host memory", value=floor.host_bytes_per_s / 1e9, unit="GB/s")
