"""What the GPU reaches, and device memory: the engine's peak, and whether it grows with every question.

Memory is what PyTorch has allocated, not what it reserves. The engine's own bookkeeping is checked as well: the slots
of its KV memory cover it exactly, and nothing is held while nothing runs.
"""

import random
from collections.abc import Iterator

import torch

from cache.engine.engine import Engine
from cache.engine.request import Request
from evals.gpu.card import synchronize
from evals.gpu.plan import GpuRow, RowPlan
from evals.gpu.session import OpenedModel, Session
from evals.peers.random_prompts import answer_of
from evals.speed.models import warm_engine


def measure_limits(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    """Measure memory, products and copies from the host: see `card`."""
    floor, dtype = session.floor, str(session.dtype).removeprefix("torch.")
    yield plan.line(
        session, what="memory, read and written by a large copy", value=floor.own.bytes_per_s / 1e9, unit="GB/s"
    )
    yield plan.line(session, what=f"{dtype} products", value=floor.own.flops / 1e12, unit="TFLOP/s")
    yield plan.line(session, what="copy from page-locked host memory", value=floor.host_bytes_per_s / 1e9, unit="GB/s")


SETTLED = 2
"""Rounds until everything that is made once exists."""
AT_ONCE = 4


def measure_memory(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    """Ask rounds of questions with too little memory for all results, so that much is evicted."""
    assert plan.shape is not None
    subject, sizes = session.opened(plan.shape), session.sizes
    before = in_use(session)
    if session.is_gpu:
        torch.cuda.reset_peak_memory_stats(session.device)
    room = sizes.cached + 2 * AT_ONCE * (sizes.question + sizes.answer) + 64
    used: list[int] = []
    with warm_engine(subject.model, room) as engine:
        for _ in range(sizes.rounds):
            ask(session, subject, engine)
            used.append(in_use(session))
            if session.share.is_over:
                break
    after = in_use(session)
    if not session.is_gpu:
        yield plan.line(session, note="the engine's bookkeeping is consistent; a CPU has no device memory to count")
        return
    mebi = 2**20
    yield plan.line(
        session,
        value=(used[-1] - used[min(SETTLED, len(used)) - 1]) / mebi,
        unit="MiB",
        runs=len(used),
        note=f"the engine's bookkeeping is consistent; {(after - before) / mebi:,.1f} MiB more in use after closing it",
    ).judged(plan.goal)
    taken = subject.weight_bytes + room * subject.token_bytes
    yield plan.line(
        session,
        what="device memory in use at most; the floor is weights and KV memory",
        value=torch.cuda.max_memory_allocated(session.device) / 2**30,
        floor=taken / 2**30,
        unit="GiB",
    )


def ask(session: Session, subject: OpenedModel, engine: Engine) -> None:
    """Answer several questions at the same time, and check the bookkeeping."""
    rng = random.Random(0)
    prompts = [session.prompt(subject) for _ in range(AT_ONCE)]
    lengths = [rng.randint(2, session.sizes.answer) for _ in prompts]
    answers = [
        engine.submit(Request(plan=prompt, sampling=answer_of(length)))
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    for answer in answers:
        _ = answer.completion
    engine.settle()
    engine.call(lambda store: store.check_integrity())


def in_use(session: Session) -> int:
    """Bytes of device memory that PyTorch has allocated; 0 on a CPU."""
    synchronize(session.device)
    return torch.cuda.memory_allocated(session.device) if session.is_gpu else 0
