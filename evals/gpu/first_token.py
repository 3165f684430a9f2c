"""Time to the first token behind modules that are on the device, in host memory, or on disk.

Floors: a pass reads all weights and the keys and values of what it sees once, and multiplies its rows with the weights
and its queries with the keys: the longer of the two (`ModelCost.first_token_ms`). Modules in host memory must be copied
as well, which may go on meanwhile: the longer of that pass and of the copy.
"""

from collections import Counter
from collections.abc import Iterator

from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Completion, Request
from cache.memory.disk import DiskTier
from cache.prompt.plan import Plan, Segment, Span
from evals.gpu.plan import RowPlan
from evals.gpu.row import GpuRow
from evals.gpu.session import OpenedModel, Session, running
from evals.gpu.timing import Times, repeated
from evals.random_prompts import token_ids

FULL = "transformers, whole prompt (sdpa)"


def measure_first_token(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    """Modules on the device, beside transformers with and without its prefix cache."""
    assert plan.shape is not None
    subject = session.opened(plan.shape)
    with running(subject, room_of(session)) as engine:
        engine.encode(subject.documents.modules).result()
        ours = repeated(
            lambda: session.first_token(engine, session.prompt(subject))[0], session.sizes.repeats, session.share
        )
        floor = 1e-3 * pass_floor_ms(session, subject)
        yield line(session, plan, ours, floor=floor)
        full = session.full_prefill(subject)
        yield line(session, plan, ours, floor=floor, baseline=full)
        peer = repeated(
            lambda: subject.peer.first_token(token_ids(session.prompt(subject, in_order=True)), keep=True),
            session.sizes.repeats,
            session.share,
        )
        subject.peer.drop_cache()
        yield line(session, plan, peer, what="the same by transformers, with a cache of documents in the same order")


def measure_from_host(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    """Modules in host memory."""
    assert plan.shape is not None
    subject = session.opened(plan.shape)
    copied = session.floor.copy_seconds(session.sizes.cached * subject.token_bytes)
    floor = max(copied, 1e-3 * pass_floor_ms(session, subject))
    with running(subject, room_of(session), host_memory=4 * session.sizes.cached * subject.token_bytes) as engine:
        times, note = from_tier(session, subject, engine)
    yield line(session, plan, times, floor=floor, baseline=session.full_prefill(subject), note=note)


def measure_from_disk(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    """Modules on disk, as the operating system has it: files may be in its memory."""
    assert plan.shape is not None
    subject = session.opened(plan.shape)
    tier = DiskTier(session.folder / "modules", 4 * session.sizes.cached * subject.token_bytes)
    with running(subject, room_of(session), disk=tier) as engine:
        times, note = from_tier(session, subject, engine)
    yield line(session, plan, times, baseline=session.full_prefill(subject), note=note)


def from_tier(session: Session, subject: OpenedModel, engine: Engine) -> tuple[Times, str]:
    """First tokens after the modules left the device each time, and where they came from."""
    engine.encode(subject.documents.modules).result()
    engine.settle()
    sources: Counter[str] = Counter()

    def run() -> float:
        leave_device(engine, subject.documents.modules)
        seconds, completion = session.first_token(engine, session.prompt(subject))
        sources.update(sources_of(completion))
        return seconds

    times = repeated(run, session.sizes.repeats, session.share)
    return times, "modules came from: " + ", ".join(f"{source} {count}" for source, count in sources.most_common())


def leave_device(engine: Engine, modules: tuple[Segment, ...]) -> None:
    """Evict modules from device memory. A short pass behind it, so that no copy of them waits for the next one."""
    keys = [engine.key(module) for module in modules]
    engine.call(lambda store: [store.device.evict(key) for key in keys])
    engine.settle()
    short = Request(plan=Plan(spans=(Span(start=0, tokens=(1, 2, 3)),)), sampling=Sampling(max_tokens=1), reuse="off")
    _ = engine.submit(short).completion


def sources_of(completion: Completion) -> list[str]:
    """Where the modules of an answer were, without the system text."""
    return [use.source for use in completion.modules if use.name != "system"]


def room_of(session: Session) -> int:
    """Tokens of KV memory for the modules and what all repeats compute."""
    return 2 * session.sizes.cached + (session.sizes.repeats + 4) * (session.sizes.question + 8)


def pass_floor_ms(session: Session, subject: OpenedModel) -> float:
    """Of the pass that computes the question."""
    sizes = session.sizes
    return subject.cost.first_token_ms(session.floor.own, computed=sizes.question, placed=sizes.cached)


def line(
    session: Session,
    plan: RowPlan,
    times: Times,
    *,
    what: str = "",
    floor: float | None = None,
    baseline: Times | None = None,
    note: str = "",
) -> GpuRow:
    """A row of times in seconds. what: of a row beside the one that is planned, which has no goal."""
    row = plan.line(
        session,
        what=what or plan.what,
        value=1e3 * times.median,
        best=1e3 * times.least,
        unit="ms",
        runs=len(times.values),
        baseline=None if baseline is None else 1e3 * baseline.median,
        baseline_name="" if baseline is None else FULL,
        floor=None if floor is None else 1e3 * floor,
        note=note,
    )
    return row if what else row.judged(plan.goal)
