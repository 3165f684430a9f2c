"""Passes that are captured and replayed, on a processor: a graph is replaced by what runs the captured function again
on the same memory.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from fake_stream import FakeStream
from hypothesis import given, settings
from recording import Recorder, answer, running
from test_cache_engine import plan_of
from tiny import CONFIGS, UNPLACEABLE, build, make_segment, oracle_logits, stock
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cache.attention.forward_pass import PassGivenUp
from cache.attention.items import Chunk, KVView, ScoredChunk
from cache.gpu.graphs import BUCKETS, Bucket
from cache.memory.arena import Arena, Copies, Extent
from cache.model import language_model
from cache.model.language_model import LanguageModel

pytest.importorskip("triton", reason="needs pip install -e '.[kernels]'")

from test_cache_triton import SLOTS, TOLERANCE, passes

from cache.gpu import tiled_pass
from cache.gpu.tiled_pass import TiledPass

CPU = torch.device("cpu")
SMALL = (Bucket(8, 16), Bucket(2, 8))


class Graphs:
    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, compute: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1
        compute()

        def replay() -> None:
            self.replayed += 1
            compute()

        return replay


def graphed(family: str, graphs: Any, buckets: Sequence[Bucket] = SMALL, layers: int = 1) -> LanguageModel:
    return build(family, layers=layers, kind=TiledPass, capture=graphs, buckets=buckets)


def arena_of(model: LanguageModel) -> Arena:
    """Keys and values that are nowhere a number, but for extents that are read."""
    arena = Arena(model.info.kv, SLOTS, model.device)
    random = torch.Generator().manual_seed(1)
    for layer in (*arena.keys, *arena.values):
        layer.fill_(float("nan"))
        layer[:84] = torch.randn(84, *layer.shape[1:], generator=random)
        layer[100:300] = torch.randn(200, *layer.shape[1:], generator=random)
    arena.positions[:300] = torch.arange(300) * 2
    return arena


class Pair(NamedTuple):
    """A model with captured graphs and the same one without, each with an arena."""

    graphs: Graphs
    model: LanguageModel
    arena: Arena
    plain: LanguageModel
    plain_arena: Arena


@pytest.fixture(scope="module")
def pair():
    graphs = Graphs()
    model, plain = graphed("multi-query", graphs), build("multi-query", layers=1)
    arena, plain_arena = arena_of(model), arena_of(plain)
    model.prepare(arena)
    for mine, theirs in zip((*arena.keys, *arena.values), (*plain_arena.keys, *plain_arena.values), strict=True):
        mine.copy_(theirs)
    return Pair(graphs, model, arena, plain, plain_arena)


def memory_of(model: LanguageModel) -> list[int]:
    found = model._graphed
    assert found is not None
    return [found._logits.data_ptr(), *(graph.tables.data_ptr() for graph in found._graphs)]


@settings(max_examples=4, deadline=None)
@given(chunks=passes(longest=6))
def test_replayed_passes_equal_the_plain_kernel(pair, chunks):
    """Passes of all sizes, one after another, through the same graphs; rows that no pass needs are nowhere read."""
    rows = sum(len(chunk.tokens) for chunk in chunks)
    outputs = sorted({0, rows // 2, rows - 1})
    before, replayed = memory_of(pair.model), pair.graphs.replayed
    logits = pair.model.forward(chunks, pair.arena, outputs)
    assert torch.isfinite(logits).all()
    expected = pair.plain.forward(chunks, pair.plain_arena, outputs)
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert memory_of(pair.model) == before
    assert pair.graphs.captured == len(SMALL)
    assert (pair.graphs.replayed > replayed) <= (rows <= SMALL[0].rows)


SYSTEM = make_segment("system", "S:")
A = make_segment("a", "Yes.", SYSTEM)
B = make_segment("b", "No.", SYSTEM)
PLAN = plan_of(SYSTEM, B, A, "Q?")


def test_answers_equal_one_forward_with_the_block_mask():
    graphs = Graphs()
    model = graphed("multi-query", graphs, [Bucket(2, 8)], layers=2)
    recorder = Recorder(model)
    with running(model) as engine:
        answer(engine, PLAN, 2)
    assert graphs.replayed == 3  # a short module, the question, and a token, which does not fill the graph
    assert (recorder.logits[-2] - oracle_logits(stock("multi-query", layers=2), PLAN)).abs().max() < TOLERANCE


class OnDevice(TorchDispatchMode):
    """Refuses every operation with a tensor of another device, as copies from and to the host have."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, out)):
            assert not isinstance(tensor, Tensor) or tensor.device.type == "meta", func
        return out


@pytest.mark.parametrize("family", CONFIGS | UNPLACEABLE)
def test_what_is_captured_reads_no_value(family, monkeypatch, caplog):
    """On a device whose tensors have none. Only one kind of model does, and runs without graphs."""
    monkeypatch.setattr(tiled_pass, "attend_tiles", lambda plan, q, *_, **__: torch.empty_like(q))

    def capture(compute: Callable[[], None]) -> Callable[[], None]:
        with OnDevice():
            compute()
        return compute

    model = LanguageModel(
        stock(family).to("meta"),
        None,
        name=family,
        fingerprint="",
        kind=TiledPass,
        capture=capture,
        buckets=SMALL,
    )
    model.prepare(Arena(model.info.kv, SLOTS, model.device))
    assert [record.getMessage().split(" failed")[0] for record in caplog.records] == (
        ["passes on meta run without CUDA graphs, because capture"] if family == "dynamic-rope" else []
    )


def chunk_of(rows: int) -> Chunk:
    return Chunk([1] * rows, list(range(1000, 1000 + rows)), 0, [Extent(120, rows)], [KVView(Extent(0, 40), 5)])


@pytest.mark.parametrize("case", ["too many rows", "too many partial results", "scored", "another arena"])
def test_other_passes_are_not_replayed(case, pair):
    chunks, scored, arena, replayed = [chunk_of(1)], [], pair.arena, pair.graphs.replayed
    if case == "too many rows":
        chunks = [chunk_of(SMALL[0].rows + 1)]
    elif case == "too many partial results":
        chunks = [Chunk([1], [1000], 0, [Extent(120, 1)], [KVView(Extent(at, 1)) for at in range(20)])]
    elif case == "scored":
        scored = [ScoredChunk(0, 1, {})]
    else:
        arena = arena_of(pair.model)
    logits = pair.model.forward(chunks, arena, [0], scored=scored)
    assert logits.shape == (0 if scored else 1, pair.model.info.vocabulary)
    assert pair.graphs.replayed == replayed


def test_a_replay_starts_after_all_copies(monkeypatch):
    graphs = Graphs()
    model = graphed("multi-query", graphs, layers=2)
    late, there = arena_of(model), arena_of(model)
    model.prepare(late)
    rows = torch.randn(2, 40, model.info.kv.kv_heads, model.info.kv.head_dim)
    late.copies = Copies(FakeStream(), model.info.kv.layers)
    late.copies.add(lambda layer: late.write_layer(layer, Extent(0, 40), rows), 40)
    for layer in range(model.info.kv.layers):
        there.write_layer(layer, Extent(0, 40), rows)
    logits = model.forward([chunk_of(2)], late, [1])
    assert (graphs.replayed, late.has_copies) == (1, False)
    torch.testing.assert_close(logits, model.forward([chunk_of(2)], there, [1]), atol=TOLERANCE, rtol=TOLERANCE)


def test_each_pool_has_its_own_capture(monkeypatch):
    """PyTorch refuses another capture into the memory of graphs that are gone."""
    made: list[Graphs] = []
    monkeypatch.setattr(language_model, "capture_for", lambda _: made.append(Graphs()) or made[-1])
    model = graphed("multi-query", None)
    for _ in range(2):
        model.prepare(arena_of(model))
    assert [one.captured for one in made] == [len(SMALL)] * 2


def test_whether_a_pass_is_given_up_is_asked_before_it_is_replayed(pair):
    asked: list[int] = []
    pair.model.forward([chunk_of(2)], pair.arena, [1], lambda: bool(asked.append(1)))
    assert asked == [1]
    replayed = pair.graphs.replayed
    with pytest.raises(PassGivenUp):
        pair.model.forward([chunk_of(2)], pair.arena, [1], lambda: True)
    assert pair.graphs.replayed == replayed


def test_where_capturing_fails_passes_run_without_graphs(caplog):
    def failing(compute: Callable[[], None]) -> Callable[[], None]:
        if failed:
            raise RuntimeError("operation not permitted")
        failed.append(True)
        return compute

    failed: list[bool] = []
    model = graphed("multi-query", failing)
    arena = arena_of(model)
    with caplog.at_level(logging.INFO):
        model.prepare(arena)
    (record,) = caplog.records
    assert record.getMessage() == (
        "passes on cpu run without CUDA graphs, because capture failed: operation not permitted"
    )
    assert torch.isfinite(model.forward([chunk_of(2)], arena, [1])).all()


def test_an_engine_that_has_closed_leaves_no_graphs():
    model = graphed("multi-query", Graphs(), [Bucket(1, 1)])
    with running(model):
        assert model._graphed is not None
    assert model._graphed is None


def test_graphs_come_with_room_for_all_that_is_smaller():
    """Each with at least a partial result for each row, and the largest first."""
    assert [*BUCKETS] == sorted(BUCKETS, reverse=True)
    assert all(bucket.partials >= bucket.rows for bucket in BUCKETS)
