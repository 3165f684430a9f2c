"""Measure tokens per second of one answer and of many after cached modules, their KV memory, and 8-bit weights.

Also measures the GPU's limits, and device memory: its peak, and whether it grows with every question.

All answers have the same modules in different orders, and their prompts were computed before, so that only decoding
counts. The lower bound of a step is that of a pass with a row for each answer: one read of the weights and of the
stored keys and values, or its multiplications (`ModelCost.decode_rate`).

Memory is what PyTorch has allocated, not what it reserves. The engine's own bookkeeping is also checked: slots cover
the KV memory exactly, and no slot is held while nothing runs.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, get_args

import torch

from cache.engine.engine import Engine
from cache.engine.request import Request
from cache.memory.keys import digest
from cache.model.info import Weights
from cache.model.language_model import LanguageModel
from cache.model.loading import check_rounding, round_weights
from cache.prompt.plan import Plan
from evals.gpu.plan import GpuRow, RowPlan
from evals.gpu.session import OpenedModel, Session, Times, repeated, synchronize, twin
from evals.peers.random_prompts import SYSTEM_TOKENS, RandomDocuments, answer_of, no_stop_tokens, token_ids, tokens
from evals.speed.models import decode_rate, most_slots_used, warm_engine

RATE_REPEATS = 5
BATCHING = "transformers, continuous batching"
FREE_SHARE = 0.6  # share of the free memory for transformers' cache


def measure_shared(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    """Measure many answers that share modules. transformers gets the modules in the same order in every prompt, because
    otherwise it cannot share their memory.
    """
    subject, sizes = session.opened(plan.shape), session.sizes
    documents = shared_documents(session, subject)
    count, own = sizes.conversations, sizes.question + sizes.answer
    stored = SYSTEM_TOKENS + sizes.shared_modules * sizes.shared_tokens
    prompts = questions(session, subject, documents)
    room = 2 * stored + (RATE_REPEATS + 4) * count * own
    with warm_engine(subject.model, room, documents.modules) as engine:
        repeats = min(RATE_REPEATS, sizes.repeats)
        rates = repeated(
            lambda: decode_rate(engine, prompts, answer_of(sizes.answer)), repeats, session.share, warm_up=2
        )
    half = sizes.question + sizes.answer // 2
    floor = subject.cost.decode_rate(
        session.floor.own, conversations=count, seen=stored + half, stored=stored + count * half
    )
    row = rate_line(session, plan, rates, floor=floor, note="the rate of continuous batching was not measured")
    yield row.judged(plan.goal)
    same = [token_ids(documents.plan(prompt.spans[-1].tokens, documents.modules)) for prompt in prompts]
    room = room_for_batching(session, subject, same)
    batched = subject.peer.batch_rate(same, sizes.answer, room)
    note = f"the cache of continuous batching had room for {room:,} tokens"
    yield replace(row, baseline=batched, baseline_name=BATCHING, note=note).judged(plan.goal)


def measure_kv_memory(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    subject, sizes = session.opened(plan.shape), session.sizes
    documents = shared_documents(session, subject)
    prompts, answer = questions(session, subject, documents), max(2, sizes.answer // 4)
    shared = SYSTEM_TOKENS + sizes.shared_modules * sizes.shared_tokens
    private = len(prompts) * (sizes.question + answer)
    with warm_engine(subject.model, 2 * (shared + private), documents.modules) as engine:
        used = most_slots_used(engine, prompts, answer)
    yield plan.line(
        session,
        value=used / (shared + private),
        unit="times",
        runs=1,
        note=f"{used:,} tokens used, of {subject.token_bytes:,} bytes; one copy {shared:,}, private {private:,}",
    ).judged(plan.goal)


def measure_alone(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    subject = session.opened(plan.shape)
    yield alone_row(session, plan, subject, alone_rates(session, subject)).judged(plan.goal)
    prompt, answer = token_ids(session.prompt(subject)), session.sizes.answer
    theirs = repeated(lambda: subject.peer.decode_rate(prompt, answer), 3, session.share, warm_up=1)
    yield rate_line(session, plan, theirs, what="the same by transformers, generate")


def alone_rates(session: Session, subject: OpenedModel) -> Times:
    sizes, prompt = session.sizes, session.prompt(subject)
    room = 2 * sizes.cached + (sizes.repeats + 4) * (sizes.question + sizes.answer)
    with warm_engine(subject.model, room, subject.documents.modules) as engine:
        rate = partial(decode_rate, engine, [prompt], answer_of(sizes.answer))
        return repeated(rate, sizes.repeats, session.share)


def alone_row(session: Session, plan: RowPlan, subject: OpenedModel, rates: Times) -> GpuRow:
    seen = session.sizes.cached + session.sizes.question + session.sizes.answer // 2
    floor = subject.cost.decode_rate(session.floor.own, conversations=1, seen=seen, stored=seen)
    return rate_line(session, plan, rates, floor=floor)


def rate_line(session: Session, plan: RowPlan, rates: Times, **fields: Any) -> GpuRow:
    return plan.line(session, value=median(rates), best=max(rates), unit="tokens/s", runs=len(rates), **fields)


def shared_documents(session: Session, subject: OpenedModel) -> RandomDocuments:
    sizes = session.sizes
    size = sizes.shared_modules * sizes.shared_tokens
    return RandomDocuments.make(size, subject.vocabulary, random.Random(2), sizes.shared_tokens)


def questions(session: Session, subject: OpenedModel, documents: RandomDocuments) -> list[Plan]:
    rng, sizes = random.Random(3), session.sizes
    return [
        documents.shuffled(tokens(sizes.question, subject.vocabulary, rng), rng) for _ in range(sizes.conversations)
    ]


def room_for_batching(session: Session, subject: OpenedModel, prompts: Sequence[Sequence[int]]) -> int:
    """Return the size of transformers' cache in tokens: enough for all prompts and answers, if memory allows."""
    wanted = sum(len(prompt) + session.sizes.answer + 256 for prompt in prompts)
    if not session.is_gpu:
        return wanted
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(session.device)
    return min(wanted, int(FREE_SHARE * free) // subject.token_bytes)


AS_THEY_ARE = "weights as the model has them"


def measure_weights(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    subject = session.opened(plan.shape)
    plain = alone_rates(session, subject)
    for weights in get_args(Weights):
        if weights == "model":
            continue
        if session.is_gpu:
            check_rounding(weights, session.device)
        before = in_use(session)
        rounded = with_rounded_weights(subject, weights)
        taken = (in_use(session) - before) / 2**30
        row = alone_row(session, plan, rounded, alone_rates(session, rounded))
        whole = subject.cost.layer_weights * subject.cost.weight_bytes / 2**30
        yield replace(
            row,
            what=f"{row.what}: {weights}",
            baseline=median(plain),
            baseline_name=AS_THEY_ARE,
            note=f"linear layers take {taken:.2f} GiB instead of {whole:.2f}" if session.is_gpu else "",
        )


def with_rounded_weights(subject: OpenedModel, weights: Weights) -> OpenedModel:
    hf, info, cost = twin(subject.peer.hf), subject.model.info, subject.cost
    fingerprint = digest(info.fingerprint, round_weights(hf, weights))
    model = LanguageModel(hf, subject.model.tokenizer, name=info.name, fingerprint=fingerprint)
    model.info = no_stop_tokens(model.info)
    read = (cost.layer_weights + cost.head_weights * cost.weight_bytes) / (cost.layer_weights + cost.head_weights)
    return replace(subject, model=model, cost=replace(cost, weight_bytes=read))


def measure_limits(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    floor, dtype = session.floor, str(session.dtype).removeprefix("torch.")
    yield plan.line(
        session, what="memory, read and written by a large copy", value=floor.own.bytes_per_s / 1e9, unit="GB/s"
    )
    yield plan.line(session, what=f"{dtype} products", value=floor.own.flops / 1e12, unit="TFLOP/s")
    yield plan.line(session, what="copy from page-locked host memory", value=floor.host_bytes_per_s / 1e9, unit="GB/s")


SETTLED = 2  # rounds until everything that is allocated only once exists
AT_ONCE = 4


def measure_memory(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    """Ask rounds of questions with too little memory for all results, so that modules are evicted often."""
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
    synchronize(session.device)
    return torch.cuda.memory_allocated(session.device) if session.is_gpu else 0
