"""Kernels for GPUs, in Triton's interpreter on a processor, against the plain kernels and the oracle; and compiled."""

import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from fake_stream import FakeStream
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import Recorder, answer, running
from test_cache_engine import plan_of
from tiny import build, make_segment, oracle_logits, stock
from torch import Tensor

from cache.attention.forward_pass import Pass, PassGivenUp, Rotation, matmul
from cache.attention.items import Chunk, KVView, ScoredChunk, VisibleRange
from cache.gpu.tiles import TilePlan, plan_tiles
from cache.memory.arena import Arena, Copies, Extent, name_of
from cache.memory.kv_shape import KVShape

pytest.importorskip("triton", reason="needs pip install -e '.[gpu]'")

from triton.runtime import interpreter

from cache.gpu import triton_kernels
from cache.gpu.tiled_pass import TiledPass
from cache.gpu.triton_kernels import attend_tiles

CPU = torch.device("cpu")
SLOTS, SCALE, TOLERANCE = 400, 0.4, 1e-4
SHARED = [Extent(0, 70), Extent(70, 1), Extent(71, 13), Extent(84, 0)]
ROTATION = Rotation(torch.tensor([1.0, 0.3, 0.05]))  # of 6 dimensions; heads have more, which stay as they are
PARTS = st.sampled_from([(), (VisibleRange(0, 4, 1), VisibleRange(6, 12, 3)), (VisibleRange(2, 5, 90),)])
"""Of what is visible of the third shared extent; the last ones are seen by no row."""


def chunk_at(first: int, last: int, own: list[Extent], views: list[KVView]) -> Chunk:
    rows = range(first, last)
    return Chunk([0] * len(rows), [1000 + row for row in rows], first, own, views)


@st.composite
def passes(draw: st.DrawFn, longest: int = 12) -> list[Chunk]:
    """Sequences that share extents, placed elsewhere than encoded, also at several places; single rows and chunks, in
    pieces.
    """
    chunks: list[Chunk] = []
    for i in range(draw(st.integers(1, 3))):
        length = draw(st.integers(1, longest))
        first = draw(st.integers(0, length - 1))
        last = draw(st.sampled_from([first + 1, length]))
        views = [
            KVView(extent, draw(st.integers(0, 9)), draw(st.integers(0, 3)), draw(PARTS) if extent.length == 13 else ())
            for extent in draw(st.lists(st.sampled_from(SHARED), max_size=3))
        ]
        ends = [0, *sorted(draw(st.sets(st.integers(1, length), max_size=2))), length + 2]
        chunks.append(chunk_at(first, last, [Extent(160 + 60 * i - b, b - a) for a, b in pairwise(ends)], views))
    return chunks


def arena_of(kv_heads: int, size: int, dtype: torch.dtype) -> Arena:
    arena = Arena(KVShape(layers=1, kv_heads=kv_heads, head_dim=size, dtype=name_of(dtype)), SLOTS, CPU)
    random = torch.Generator().manual_seed(1)
    for layer in (*arena.keys, *arena.values):
        layer.copy_(torch.randn(layer.shape, generator=random))
    arena.positions[:SLOTS] = torch.arange(SLOTS) * 2
    return arena


def both(
    chunks: list[Chunk],
    kv_heads: int = 1,
    group: int = 2,
    size: int = 10,
    dtype: torch.dtype = torch.float32,
    most_keys: int | None = None,
    slopes: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    rows = sum(len(chunk.tokens) for chunk in chunks)
    q = torch.randn(1, kv_heads * group, rows, size, generator=random).to(dtype)
    k, v = torch.randn(2, 1, kv_heads, rows, size, generator=random).to(dtype)
    ours, theirs = (arena_of(kv_heads, size, dtype) for _ in range(2))
    tiled = TiledPass.of(chunks, ours, kv_heads * group, rotation=ROTATION, slopes=slopes, most_keys=most_keys)
    plain = Pass(chunks, theirs, matmul, CPU, rotation=ROTATION, slopes=slopes)
    outs = tiled.attend(0, q, k, v, SCALE, **options), plain.attend(0, q, k, v, SCALE, **options)
    assert outs[0].dtype == dtype
    assert torch.equal(tiled.positions, plain.positions)
    for mine, other in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
        assert torch.equal(mine[0], other[0])
    assert torch.equal(ours.positions, theirs.positions)
    return outs


@settings(max_examples=9, deadline=None)
@given(
    chunks=passes(),
    most_keys=st.sampled_from([16, 40, 512]),
    heads=st.sampled_from([(1, 2, None), (2, 1, 0.01), (2, 1, 1.0)]),
)
def test_items_of_all_kinds_equal_the_plain_kernel(chunks, most_keys, heads):
    """Also those of models with ALiBi, whose scores fall with the distance."""
    kv_heads, group, steepest = heads
    slopes = None if steepest is None else steepest / 2 ** torch.arange(2, dtype=torch.float32)
    out, expected = both(chunks, kv_heads=kv_heads, group=group, most_keys=most_keys, slopes=slopes)
    torch.testing.assert_close(out, expected, atol=TOLERANCE, rtol=TOLERANCE)


VIEWS = [KVView(SHARED[0], 5), KVView(SHARED[2], 9, 1, (VisibleRange(3, 9, 2),))]
CHUNKS = [
    chunk_at(3, 9, [Extent(200, 12)], VIEWS),
    chunk_at(4, 5, [Extent(300, 12)], VIEWS[:1]),
    chunk_at(0, 40, [Extent(320, 40)], []),
]
"""With a prompt that is longer than a tile and has more rows than one."""


@pytest.mark.parametrize("shape", [(3, 80, None), (20, 10, 16), (1, 256, 3)])
def test_groups_and_sizes_of_heads_and_partial_results(shape, monkeypatch):
    group, size, most_keys = shape
    monkeypatch.setattr(triton_kernels, "MOST_PROGRAMS", 3)  # fewer than tiles
    out, expected = both(CHUNKS[:2], group=group, size=size, most_keys=most_keys)
    torch.testing.assert_close(out, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("options", [{"window": 30}, {"window": 1}, {"softcap": 0.7}], ids=str)
def test_windows_and_soft_caps(options):
    """In a narrow window most rows see no key of most extents."""
    chunks = [replace(chunk, views=[replace(view, offset=0) for view in chunk.views]) for chunk in CHUNKS]
    out, expected = both(chunks, most_keys=16, group=1, **options)
    torch.testing.assert_close(out, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype, monkeypatch):
    """The interpreter multiplies bfloat16 as whole numbers; here it is made to convert them first."""
    dot = interpreter.InterpreterBuilder.create_dot

    def in_float32(self: Any, a: Any, b: Any, *others: Any) -> Any:
        a, b = (
            self.create_fp_ext(x, interpreter.tl.float32) if x.dtype != interpreter.tl.float32 else x for x in (a, b)
        )
        return dot(self, a, b, *others)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", in_float32)
    out, expected = both(CHUNKS[:2], dtype=dtype)
    torch.testing.assert_close(out, expected, atol=2e-2, rtol=2e-2)


def test_rows_that_see_no_key_are_zero():
    plan = plan_tiles(CHUNKS[:2], 2, CPU)
    plan.readers[:, 1] = 0
    arena = arena_of(1, 10, torch.float32)
    out = attend_tiles(plan, torch.randn(7, 2, 10), arena.keys[0], arena.values[0], arena.positions, SCALE)
    assert torch.equal(out, torch.zeros(7, 2, 10))


def tables(plan: TilePlan) -> list[Tensor]:
    return [getattr(plan, field) for field in TilePlan.__slots__ if isinstance(getattr(plan, field), Tensor)]


@settings(max_examples=30, deadline=None)
@given(chunks=passes(), group=st.sampled_from([1, 4, 7, 71]), most_keys=st.sampled_from([1, 16, 512]))
def test_tiles_hold_every_row_and_key_once(chunks, group, most_keys):
    """As the whole runs do, and tables lie where Triton takes them all for aligned."""
    plan, whole = plan_tiles(chunks, group, CPU, most_keys), plan_tiles(chunks, 1, CPU, 10_000)

    def seen(of: TilePlan) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        for start, first, keys, first_reader, readers, _ in of.tiles.tolist():
            for row, length, turn in of.readers[first_reader : first_reader + readers].tolist():
                found += [(row, turn, start + key) for key in range(first, min(first + keys, length))]
        return sorted(found)

    assert seen(plan) == seen(whole)
    assert int(plan.tiles[:, 2].max()) <= most_keys
    assert int(plan.tiles[:, 4].max()) * group <= plan.block
    assert all(table.data_ptr() % 16 == 0 for table in tables(plan))
    owners = [
        row if length > first else None
        for _, first, _, at, readers, _ in plan.tiles.tolist()
        for row, length, _ in plan.readers[at : at + readers].tolist()
    ]
    assert len(owners) == plan.num_partials
    for row, (begin, end) in enumerate(pairwise(plan.first_partial.tolist())):
        assert plan.partials[begin:end].tolist() == [partial for partial, owner in enumerate(owners) if owner == row]


SYSTEM = make_segment("system", "So: ")
A = make_segment("a", "In a month.", SYSTEM)
B = make_segment("b", "Not cards.", SYSTEM)
PLAN = plan_of(SYSTEM, B, A, "Gift?")  # short texts: the interpreter takes milliseconds for each row and head


def test_answers_equal_one_forward_with_the_block_mask():
    """Of a model without rotary angles; those of others are computed by graphs (`test_cache_graphs`)."""
    model = build("bloom", layers=1, kind=TiledPass)
    recorder = Recorder(model)
    with running(model) as engine:
        answer(engine, PLAN)
    assert (recorder.logits[-1] - oracle_logits(stock("bloom", layers=1), PLAN)).abs().max() < TOLERANCE


def test_a_pass_is_given_up():
    running_pass = TiledPass.of(CHUNKS, arena_of(1, 10, torch.float32), 2, rotation=ROTATION, give_up=lambda: True)
    with pytest.raises(PassGivenUp):
        running_pass.attend(0, *(torch.zeros(1, 2, 47, 10) for _ in range(3)), SCALE)


def test_a_pass_waits_for_what_is_copied():
    rows = torch.randn(2, 13, 1, 10)
    chunks, (q, k, v) = [chunk_at(0, 2, [Extent(200, 4)], [KVView(SHARED[2])])], torch.randn(3, 1, 2, 2, 10)
    late, there = (arena_of(1, 10, torch.float32) for _ in range(2))
    late.copies = Copies(FakeStream(), 1)
    late.copies.add(lambda layer: late.write_layer(layer, SHARED[2], rows), 13)
    there.write_layer(0, SHARED[2], rows)
    out, expected = (TiledPass.of(chunks, arena, 2).attend(0, q, k[:, :1], v[:, :1], SCALE) for arena in (late, there))
    assert torch.equal(out, expected)


def test_scoring_runs_through_plain_kernels():
    model = build(kind=TiledPass)
    arena = Arena(model.info.kv, SLOTS, CPU)
    rows = torch.randn(2, 13, model.info.kv.kv_heads, model.info.kv.head_dim)
    for layer in range(model.info.kv.layers):
        arena.write_layer(layer, SHARED[2], rows)
    squares = {(SHARED[2], 0): torch.zeros(len(model.info.scored_layers), 13)}
    chunks = [chunk_at(0, 2, [Extent(200, 4)], [KVView(SHARED[2])])]
    model.forward(chunks, arena, [], scored=[ScoredChunk(0, 2, squares)])
    assert all(one.count_nonzero() == one.numel() for one in squares.values())


COMPILE = """
import sys
sys.modules["triton"] = None  # models load where it is missing
import cache.model.language_model
del sys.modules["triton"]
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from cache.gpu.triton_kernels import attend_tile, key_block, merge_partials, num_warps
import torch

def compiled(kernel, architecture, numbers, **arguments):
    constants = {name: value for name, value in arguments.items() if not isinstance(value, str)}
    types = {name: arguments[name] if name not in constants else "constexpr" for name in kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(types.values()) if kind[0] == "*"}
    target = GPUTarget("cuda", architecture, 32)
    return compile(ASTSource(kernel, types, constants, aligned), target=target, options=numbers).metadata.shared

TABLES = dict.fromkeys(("num_tiles", "tiles", "readers", "offsets", "positions"), "*i32")
OUT = {"out": "*fp32", "lse": "*fp32"}
TURNS = {"turn_cos": "*fp32", "turn_sin": "*fp32"}
BORDERS = {"window": "i32", "softcap": "fp32", **TURNS}
MIXES = [
    (80, torch.bfloat16, 64, 7, 16, TURNS), (80, torch.bfloat16, 128, 4, 64, TURNS),
    (80, torch.float32, 64, 1, 64, {"slopes": "*fp32"}), (90, torch.bfloat16, 128, 4, 16, TURNS),
    (90, torch.bfloat16, 128, 4, 64, TURNS), (90, torch.bfloat16, 256, 2, 64, BORDERS),
]
for architecture, dtype, size, group, rows, options in MIXES:
    kind = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}[dtype]
    given = {**dict.fromkeys(("q", "keys", "values"), kind), "key_positions": "*i64", "scale": "fp32"}
    given |= {**TABLES, **OUT, **dict.fromkeys((*BORDERS, "slopes")), **options}
    how = {"num_stages": 2, "num_warps": num_warps(dtype)}
    shared = compiled(attend_tile, architecture, how, KV_HEADS=2, GROUP=group, SIZE=size, PADDED=size, ROWS=rows,
                      ROTARY=size // 2 if "turn_cos" in options else 0, KEYS=key_block(size, dtype), **given)
    assert shared <= 99 * 1024, (dtype, size, shared)
compiled(merge_partials, 80, {}, first_partial="*i32", partials="*i32", merged="*bf16", SIZE=80, PADDED=128, PARTS=8,
         **OUT)
"""
"""Every kind of model, for two kinds of GPU. A kernel needs no more memory than small GPUs have for a block, 99 KiB."""


def test_kernels_can_be_compiled_for_gpus(pytestconfig):
    """The interpreter takes what a compiler refuses, so this runs without it, in a process of its own."""
    folder = pytestconfig.cache.mkdir("triton")  # by a hash of the kernels and of Triton
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
