"""A set of modules far larger than device memory and host memory together, asked for by Zipf.

Their files are written beforehand, all with the same keys and values, because reading them takes the same time as those
of text would. One client asks one question after another. A first token counts for the slowest place that one of its
modules came from.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from cache.memory.disk import DiskTier, ModuleHeader, file_name, save_module
from cache.memory.keys import PUBLIC_TENANT
from cache.prompt.plan import Segment
from evals.gpu.first_token import sources_of
from evals.gpu.plan import NO_TIME, RowPlan
from evals.gpu.row import GpuRow
from evals.gpu.session import OpenedModel, Session, running
from evals.random_prompts import SYSTEM_TOKENS, RandomDocuments, Zipf, tokens
from evals.throughput import percentile

PLACES = ("device", "host", "disk", "computed")
"""The slowest last."""
EXPONENT = 1.0
WRITERS = 8


def measure_many(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    """Hit rates by the room there is, and first tokens by place with the room in the middle."""
    assert plan.shape is not None
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
        yield plan.line(
            session,
            what=what,
            value=100 * hits["device"] / total,
            unit="%",
            runs=total,
            note=note,
        )
        for place in PLACES if budget == middle else ():
            if found := times[place]:
                yield plan.line(
                    session,
                    what=f"{sizes.many:,} modules: first token, {sizes.drawn} modules, the slowest from: {place}",
                    value=percentile(found, 0.5),
                    best=min(found),
                    p95=percentile(found, 0.95),
                    unit="ms",
                    runs=len(found),
                )


def ask_by_zipf(
    session: Session, subject: OpenedModel, documents: RandomDocuments, folder: Path, budget: tuple[int, int]
) -> tuple[dict[str, list[float]], Counter[str]]:
    """Milliseconds to the first token by place, and where modules were, of the second half of the questions."""
    sizes, rng = session.sizes, random.Random(5)
    popularity = Zipf(EXPONENT, rng.sample(documents.modules, len(documents.modules)))
    device, host = (modules * sizes.many_tokens for modules in budget)
    room = device + SYSTEM_TOKENS + 4 * sizes.question
    disk = DiskTier(folder, 1 << 50)
    times, hits = defaultdict[str, list[float]](list), Counter[str]()
    with running(subject, room, host_memory=host * subject.token_bytes, disk=disk) as engine:
        for number in range(2 * sizes.asked):
            if session.share.is_over:
                break
            question = tokens(sizes.question, subject.vocabulary, rng)
            prompt = documents.plan(question, popularity.draw_different(sizes.drawn, rng))
            seconds, completion = session.first_token(engine, prompt)
            if number >= sizes.asked:
                places = sources_of(completion)
                hits.update(places)
                times[slowest(places)].append(1e3 * seconds)
    return times, hits


def slowest(places: Sequence[str]) -> str:
    """The last of the places by speed."""
    return max(places, key=PLACES.index)


def write_modules(folder: Path, subject: OpenedModel, documents: RandomDocuments) -> None:
    """Files of all modules, as the disk tier reads them; several at a time, as checksums take longest."""
    folder.mkdir(parents=True, exist_ok=True)
    info = subject.model.info

    def write(module: Segment) -> None:
        header = ModuleHeader.of(module, fingerprint=info.fingerprint, tenant=PUBLIC_TENANT)
        size = (2, info.kv.layers, header.num_tokens, info.kv.kv_heads, info.kv.head_dim)
        save_module(folder / file_name(header.key), header, torch.full(size, 0.01, dtype=info.kv.dtype))

    with ThreadPoolExecutor(WRITERS) as writers:
        for _ in writers.map(write, documents.modules):
            pass
