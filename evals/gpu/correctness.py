"""Check the device's results: each attention kernel over random items, and complete models.

The references share no code with what they check. The kernels' reference is one product with a block mask in float64,
which rotates keys to their place instead of rotating queries back. The models' reference is one forward pass of
transformers over all tokens, with the same block mask and position ids, in float32.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cache.attention.forward_pass import Pass, Rotation, RunningPass, default_kernel, matmul
from cache.attention.items import Chunk, KVView
from cache.engine.request import Request
from cache.gpu.graphs import kinds_to_compare
from cache.memory.arena import Arena, Extent, name_of
from cache.memory.keys import digest
from cache.memory.kv_shape import KVShape
from cache.model.language_model import LanguageModel
from cache.prompt.plan import Plan
from cache.prompt.tokenizer import ModelTokenizer
from evals.gpu.plan import Goal, GpuRow, RowPlan, reason_of
from evals.gpu.session import Session, random_model, word_tokenizer
from evals.peers.random_prompts import SYSTEM_TOKENS, RandomDocuments, tokens
from evals.speed.models import warm_engine

PassOf = Callable[[Sequence[Chunk], Arena], RunningPass]

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
LOGITS = 1e-3  # largest difference in float32
NOT_A_NUMBER = 1e30  # replaces differences that are not finite
KV_HEADS, GROUP, HEAD_DIM = 4, 4, 128
SCALE = HEAD_DIM**-0.5
SLOTS, LONGEST, TRIALS = 4096, 600, 6


def measure_attention(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    trials, longest = (1, LONGEST // 8) if session.is_tiny else (TRIALS, LONGEST)
    for dtype, tolerance in TOLERANCES.items():
        for name, pass_of in kernels(session.device).items():
            what = f"{plan.what}: {name}, {name_of(dtype)}"
            try:
                worst = max(
                    difference(pass_of, random_chunks(seed, longest), dtype, session.device) for seed in range(trials)
                )
            except Exception as error:
                yield plan.line(session, what=what, note=f"not measured: {reason_of(error)}")
                continue
            yield plan.line(session, what=what, value=worst, runs=trials).judged(Goal(at_most=tolerance))


def kernels(device: torch.device) -> dict[str, PassOf]:
    rotation = rotation_of(HEAD_DIM)
    heads = KV_HEADS * GROUP
    found: dict[str, PassOf] = {"matmul": partial(Pass, kernel=matmul, device=device, rotation=rotation)}
    if (default := default_kernel(device)) is not matmul:
        found["flash"] = partial(Pass, kernel=default, device=device, rotation=rotation)
    for name, kind in kinds_to_compare(device).items():
        found[name] = partial(kind.of, heads=heads, rotation=rotation)
    return found


def rotation_of(size: int) -> Rotation:
    return Rotation(10_000 ** -(torch.arange(0, size, 2) / size))


def random_chunks(seed: int, longest: int) -> list[Chunk]:
    """Make sequences that share modules, at other positions than encoded. Some compute one row, some many rows."""
    rng = random.Random(seed)
    modules: list[Extent] = []
    at = 0
    for _ in range(4):
        modules.append(Extent(at, rng.randint(1, longest)))
        at = modules[-1].end + rng.randint(0, 3)
    chunks = []
    for number in range(4):
        views = [KVView(one, rng.randint(0, 5000)) for one in rng.sample(modules, rng.randint(1, 4))]
        length = rng.randint(2, 40)
        first = length - 1 if number % 2 else rng.randint(0, length - 2)
        own = [Extent(at, length // 2), Extent(at + length // 2 + 1, length - length // 2)]
        at += length + 2
        rows = range(first, length)
        chunks.append(Chunk([0] * len(rows), [9000 + row for row in rows], first, own, views))
    return chunks


def difference(pass_of: PassOf, chunks: Sequence[Chunk], dtype: torch.dtype, device: torch.device) -> float:
    shape = KVShape(layers=1, kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=name_of(dtype))
    arena = Arena(shape, SLOTS, device)
    numbers = torch.Generator(device).manual_seed(0)
    for layer in (*arena.keys, *arena.values):
        layer.normal_(generator=numbers)
    rows = sum(len(chunk.tokens) for chunk in chunks)
    q = torch.randn(1, KV_HEADS * GROUP, rows, HEAD_DIM, generator=numbers, device=device).to(dtype)
    k, v = torch.randn(2, 1, KV_HEADS, rows, HEAD_DIM, generator=numbers, device=device).to(dtype)
    out = pass_of(chunks, arena).attend(0, q, k, v, SCALE)[0]
    return largest(out.double() - reference(chunks, arena, q[0].double()))


def reference(chunks: Sequence[Chunk], arena: Arena, q: Tensor) -> Tensor:
    """Compute the attention of all rows, float64 `[T, heads, D]`, over an arena with their keys and values. q `[heads,
    T, D]`.
    """
    outs, at = [], 0
    for chunk in chunks:
        views = [*((view.extent, view.offset) for view in chunk.views), *((one, 0) for one in chunk.own)]
        keys = torch.cat([turned(arena.keys[0][one.start : one.end].double(), offset) for one, offset in views])
        values = torch.cat([arena.values[0][one.start : one.end].double() for one, _ in views])
        placed = sum(view.extent.length for view in chunk.views)
        rows = torch.arange(chunk.first, chunk.last, device=q.device)
        column = torch.arange(len(keys), device=q.device) - placed
        sees = column <= rows[:, None]  # all of the modules, and its own rows up to itself
        grouped = torch.unflatten(q[:, at : at + len(rows)], 0, (KV_HEADS, GROUP))
        scores = torch.einsum("hgtd,lhd->hgtl", grouped, keys) * SCALE
        weights = scores.masked_fill(~sees, float("-inf")).softmax(-1)
        outs.append(torch.einsum("hgtl,lhd->thgd", weights, values).flatten(1, 2))
        at += len(rows)
    return torch.cat(outs)


def turned(keys: Tensor, offset: int) -> Tensor:
    angles = offset * rotation_of(HEAD_DIM).frequencies.double().to(keys.device)
    cos, sin = torch.cat((angles, angles)).cos(), torch.cat((angles, angles)).sin()
    first, second = keys.chunk(2, -1)
    return keys * cos + torch.cat((-second, first), -1) * sin


def measure_logits(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    """Compare the engine's logits after placed modules with those of transformers in float32. In bfloat16 the
    difference may be twice that of transformers in bfloat16.
    """
    assert plan.shape is not None
    session.close()
    shape, sizes = "tiny" if session.is_tiny else plan.shape, session.sizes
    half = random_model(shape, session.device, torch.bfloat16)
    whole = deepcopy(half).float()
    vocabulary, rng = half.config.vocab_size, random.Random(6)
    size = sizes.cached - SYSTEM_TOKENS
    documents = RandomDocuments.make(size, vocabulary, rng, -(-size // sizes.modules))
    prompt = documents.shuffled(tokens(sizes.question, vocabulary, rng), rng)
    right = one_pass(whole, prompt)
    theirs = largest(one_pass(half, prompt) - right)
    for hf, allowed in ((whole, LOGITS), (half, 2 * theirs)):
        dtype = hf.dtype
        yield plan.line(
            session,
            what=f"{plan.what}: {name_of(dtype)}",
            value=largest(engine_logits(hf, shape, documents, prompt) - right),
            runs=1,
            baseline=theirs if dtype == torch.bfloat16 else None,
            baseline_name="transformers in bfloat16" if dtype == torch.bfloat16 else "",
            note=f"the largest logit is {largest(right):.3g}",
        ).judged(Goal(at_most=allowed))


def engine_logits(hf: Any, shape: str, documents: RandomDocuments, prompt: Plan) -> Tensor:
    tokenizer = ModelTokenizer(word_tokenizer(hf.config.vocab_size))
    model = LanguageModel(hf, tokenizer, name=shape, fingerprint=digest("logits", shape))
    with warm_engine(model, 2 * (prompt.num_tokens + SYSTEM_TOKENS), documents.modules) as engine:
        completion = engine.submit(Request(plan=prompt, teacher_forced=(0,))).completion
    logits: Tensor = completion.logits[0]
    return logits


@torch.inference_mode()
def one_pass(hf: Any, prompt: Plan) -> Tensor:
    """Compute with transformers the logits that `engine_logits` returns, in one forward pass: each module follows a
    copy of the system text at the distance of its encoding, and sees nothing else.
    """
    system, *modules, question = prompt.spans
    ids: list[int] = []
    positions: list[int] = []
    owners: list[int] = []
    copies: list[bool] = []

    def add(tokens: Sequence[int], start: int, owner: int, *, is_copy: bool = False) -> None:
        ids.extend(tokens)
        positions.extend(range(start, start + len(tokens)))
        owners.extend([owner] * len(tokens))
        copies.extend([is_copy] * len(tokens))

    for number, span in enumerate(modules):
        add(system.tokens, span.start - len(system.tokens), number, is_copy=True)
        add(span.tokens, span.start, number)
    add(system.tokens, 0, len(modules))
    add(question.tokens, question.start, asking := len(modules) + 1)
    owner, row = torch.tensor(owners), torch.arange(len(ids))
    sees = (owner[:, None] == owner) | ((owner == asking)[:, None] & ~torch.tensor(copies))
    sees &= row[:, None] >= row
    logits: Tensor = hf(
        input_ids=torch.tensor([ids], device=hf.device),
        position_ids=torch.tensor([positions], device=hf.device),
        attention_mask=sees[None, None].to(hf.device),
        use_cache=False,
        logits_to_keep=1,
    ).logits
    return logits[0, -1].float().cpu()


def largest(tensor: Tensor) -> float:
    return float(torch.nan_to_num(tensor.abs(), nan=NOT_A_NUMBER, posinf=NOT_A_NUMBER).max())
