"""Measure the time to the first token with modules on the device, in host memory, on disk, or spread over these tiers.

Lower bounds: a pass reads all weights and the keys and values that it sees once, and multiplies its rows with the
weights and its queries with the keys; the longer time counts (`ModelCost.first_token_ms`). Modules in host memory must
also be copied, which can overlap with the pass, so the longer of pass and copy counts.

The largest set of modules exceeds device and host memory together. Its files are written beforehand, all with the same
keys and values, because reading them takes as long as reading real ones. One client asks one question after another.
The time to a first token counts for the slowest tier of its modules.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import torch

from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Completion, Request
from cache.memory.disk import DiskTier, ModuleHeader, file_name, save_module
from cache.memory.keys import PUBLIC_TENANT
from cache.prompt.plan import Plan, Segment, Span
from evals.gpu.plan import NO_TIME, GpuRow, RowPlan
from evals.gpu.session import OpenedModel, Session, Times, repeated
from evals.peers.random_prompts import SYSTEM_TOKENS, RandomDocuments, Zipf, token_ids, tokens
from evals.report import percentile
from evals.speed.models import warm_engine

FULL = "transformers, whole prompt (sdpa)"


def measure_first_token(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    """Measure with modules on the device, compared with transformers with and without its prefix cache."""
    subject = session.opened(plan.shape)
    with warm_engine(subject.model, room_of(session), subject.documents.modules) as engine:
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
        subject.peer.cached = None
        yield line(session, plan, peer, what="the same by transformers, with a cache of documents in the same order")


def measure_from_host(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    subject = session.opened(plan.shape)
    copied = session.sizes.cached * subject.token_bytes / session.floor.host_bytes_per_s
    floor = max(copied, 1e-3 * pass_floor_ms(session, subject))
    room, host = room_of(session), 4 * session.sizes.cached * subject.token_bytes
    with warm_engine(subject.model, room, subject.documents.modules, host_memory=host) as engine:
        times, note = from_tier(session, subject, engine)
    yield line(session, plan, times, floor=floor, baseline=session.full_prefill(subject), note=note)


def measure_from_disk(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    subject = session.opened(plan.shape)
    tier = DiskTier(session.folder / "modules", 4 * session.sizes.cached * subject.token_bytes)
    with warm_engine(subject.model, room_of(session), subject.documents.modules, disk=tier) as engine:
        times, note = from_tier(session, subject, engine)
    yield line(session, plan, times, baseline=session.full_prefill(subject), note=note)


def from_tier(session: Session, subject: OpenedModel, engine: Engine) -> tuple[Times, str]:
    """Evict the modules from the device before each run, and measure. Returns the times, and the tiers as text."""
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
    """Evict modules from device memory, then run a short pass, so that the next one does not wait for their copies."""
    keys = [engine.key(module) for module in modules]
    engine.call(lambda store: [store.device.evict(key) for key in keys])
    engine.settle()
    short = Request(plan=Plan(spans=(Span(start=0, tokens=(1, 2, 3)),)), sampling=Sampling(max_tokens=1), reuse="off")
    _ = engine.submit(short).completion


def sources_of(completion: Completion) -> list[str]:
    return [use.source for use in completion.modules if use.name != "system"]


def room_of(session: Session) -> int:
    return 2 * session.sizes.cached + (session.sizes.repeats + 4) * (session.sizes.question + 8)


def pass_floor_ms(session: Session, subject: OpenedModel) -> float:
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
    """Make a row of times in seconds. what: description of an additional row without a goal."""
    row = plan.line(
        session,
        what=what or plan.what,
        value=1e3 * median(times),
        best=1e3 * min(times),
        unit="ms",
        runs=len(times),
        baseline=None if baseline is None else 1e3 * median(baseline),
        baseline_name="" if baseline is None else FULL,
        floor=None if floor is None else 1e3 * floor,
        note=note,
    )
    return row if what else row.judged(plan.goal)


PLACES = ("device", "host", "disk", "computed")  # by speed, the slowest last
EXPONENT = 1.0
WRITERS = 8


def measure_many(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    """Measure hit rates by memory size, and times to the first token by tier with the middle size."""
    subject, sizes = session.opened(plan.shape), session.sizes
    size = sizes.many * sizes.many_tokens
    documents = RandomDocuments.make(size, subject.vocabulary, random.Random(4), sizes.many_tokens)
    folder = session.folder / "many"
    write_modules(folder, subject, documents)
    middle = sizes.budgets[len(sizes.budgets) // 2]
    for budget in (middle, *(one for one in sizes.budgets if one != middle)):
        times, hits = ask_by_zipf(session, subject, documents, folder, budget)
        total, (device, host) = hits.total(), budget
        what = (
            f"{sizes.many:,} modules: found on the device, with room for {device:,} there and {host:,} in host memory"
        )
        if not total:
            yield plan.line(session, what=what, note=NO_TIME)
            continue
        note = ", ".join(f"{place} {hits[place] / total:.1%}" for place in PLACES)
        yield plan.line(session, what=what, value=100 * hits["device"] / total, unit="%", runs=total, note=note)
        for place in PLACES if budget == middle else ():
            if found := times[place]:
                yield plan.line(
                    session,
                    what=f"{sizes.many:,} modules: first token, {sizes.drawn} modules, the slowest from: {place}",
                    value=percentile(found, 50),
                    best=min(found),
                    p95=percentile(found, 95),
                    unit="ms",
                    runs=len(found),
                )


def ask_by_zipf(
    session: Session, subject: OpenedModel, documents: RandomDocuments, folder: Path, budget: tuple[int, int]
) -> tuple[dict[str, list[float]], Counter[str]]:
    """Return milliseconds to the first token by tier, and counts of tiers, for the second half of the questions."""
    sizes, rng = session.sizes, random.Random(5)
    popularity = Zipf(EXPONENT, rng.sample(documents.modules, len(documents.modules)))
    device, host = (modules * sizes.many_tokens for modules in budget)
    room = device + SYSTEM_TOKENS + 4 * sizes.question
    disk = DiskTier(folder, 1 << 50)
    times, hits = defaultdict[str, list[float]](list), Counter[str]()
    with warm_engine(subject.model, room, host_memory=host * subject.token_bytes, disk=disk) as engine:
        for number in range(2 * sizes.asked):
            if session.share.is_over:
                break
            question = tokens(sizes.question, subject.vocabulary, rng)
            prompt = documents.plan(question, popularity.draw_different(sizes.drawn, rng))
            seconds, completion = session.first_token(engine, prompt)
            if number >= sizes.asked:
                places = sources_of(completion)
                hits.update(places)
                times[max(places, key=PLACES.index)].append(1e3 * seconds)
    return times, hits


def write_modules(folder: Path, subject: OpenedModel, documents: RandomDocuments) -> None:
    """Write the files of all modules, several at a time because checksums take longest."""
    folder.mkdir(parents=True, exist_ok=True)
    info = subject.model.info

    def write(module: Segment) -> None:
        header = ModuleHeader.of(module, fingerprint=info.fingerprint, tenant=PUBLIC_TENANT)
        size = (2, info.kv.layers, header.num_tokens, info.kv.kv_heads, info.kv.head_dim)
        save_module(folder / file_name(header.key), header, torch.full(size, 0.01, dtype=getattr(torch, info.kv.dtype)))

    with ThreadPoolExecutor(WRITERS) as writers:
        for _ in writers.map(write, documents.modules):
            pass
