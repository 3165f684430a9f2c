"""A packed pass with ALiBi slopes or sliding windows, against every row written out on its own."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import KERNELS, make_chunk, slots_of
from torch import Tensor

from cache.attention.forward_pass import Pass
from cache.attention.items import Chunk, KVView
from cache.memory.arena import Arena, Extent
from cache.memory.kv_shape import KVShape

HEADS, GROUP, SIZE, SCALE = 3, 2, 4, 0.4
CPU = torch.device("cpu")
SHARED = [Extent(0, 5), Extent(5, 1), Extent(6, 9)]


@dataclass
class Scene:
    """Sequences that share extents: chunks to run, and the ids of every slot of the arena."""

    chunks: list[Chunk]
    positions: list[int]

    @property
    def packed(self) -> list[int]:
        return [slot for chunk in self.chunks for slot in chunk.slots]


@st.composite
def scenes(draw: st.DrawFn, most_offset: int) -> Scene:
    """Ids ascend within an extent, with jumps, and every own row stands behind what its sequence reads."""
    positions = [0] * 100
    jumps = st.integers(1, 4)
    for extent in SHARED:
        at = draw(st.integers(0, 5))
        for slot in range(extent.start, extent.end):
            positions[slot] = at = at + draw(jumps)
    chunks: list[Chunk] = []
    for i in range(draw(st.integers(1, 3))):
        length = draw(st.integers(1, 8))
        own = Extent(20 + 20 * i, length)
        first = draw(st.integers(0, length - 1))
        last = draw(st.integers(first + 1, length))
        view = st.builds(KVView, st.sampled_from(SHARED), st.integers(0, most_offset), st.integers(0, 4))
        views = draw(st.lists(view, max_size=3, unique_by=lambda v: v.extent))
        at = max((positions[v.extent.end - 1] + v.offset for v in views), default=0)
        for slot in range(own.start, own.end):
            positions[slot] = at = at + draw(jumps)
        chunks.append(make_chunk(first, last, own, views, positions[own.start + first : own.start + last]))
    return Scene(chunks, positions)


def arena_of(scene: Scene, kv_heads: int) -> Arena:
    arena = Arena(KVShape(layers=1, kv_heads=kv_heads, head_dim=SIZE, dtype="float32"), 100, CPU)
    for rows in (arena.keys[0], arena.values[0]):
        rows.normal_(generator=torch.Generator().manual_seed(len(scene.packed)))
    arena.positions[:100] = torch.tensor(scene.positions)
    arena.positions[scene.packed] = -1000
    return arena


def written_out(scene: Scene, arena: Arena, q: Tensor, slopes: Tensor | None, window: int | None) -> Tensor:
    """Attention row by row in float64, after the pass has written its keys: `[1, T, heads, D]`."""
    keys, values = arena.keys[0].double(), arena.values[0].double()
    group = q.shape[1] // keys.shape[1]
    out = torch.zeros(1, q.shape[2], q.shape[1], SIZE, dtype=torch.float64)
    packed = 0
    for chunk in scene.chunks:
        for row in range(chunk.first, chunk.last):
            seen = [(slot, 0) for slot in slots_of(chunk.own)[: row + 1]]
            for view in chunk.views:
                if row >= view.first_row:
                    seen += [(slot, view.offset) for slot in range(view.extent.start, view.extent.end)]
            at = scene.positions[slots_of(chunk.own)[row]]
            distances = {slot: at - scene.positions[slot] - offset for slot, offset in seen}
            slots = [slot for slot in distances if window is None or distances[slot] < window]
            for head in range(q.shape[1]):
                scores = keys[slots, head // group] @ q[0, head, packed].double() * SCALE
                if slopes is not None:
                    scores -= slopes[head] * torch.tensor([distances[slot] for slot in slots])
                out[0, packed, head] = scores.softmax(0) @ values[slots, head // group]
            packed += 1
    return out


def run(scene: Scene, kernel: str, group: int, slopes: Tensor | None, window: int | None) -> tuple[Tensor, Tensor]:
    arena = arena_of(scene, HEADS)
    random = torch.Generator().manual_seed(0)
    rows = len(scene.packed)
    q = torch.randn(1, HEADS * group, rows, SIZE, generator=random)
    k, v = torch.randn(2, 1, HEADS, rows, SIZE, generator=random)
    running = Pass(scene.chunks, arena, KERNELS[kernel], CPU, slopes=slopes)
    out = running.attend(0, q, k, v, SCALE, window)
    assert arena.positions[:100].tolist() == scene.positions
    return out.double(), written_out(scene, arena, q, slopes, window)


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=25, deadline=None)
@given(scene=scenes(most_offset=9), steepest=st.sampled_from([0.1, 1.0, 8.0]))
def test_alibi_falls_with_the_distance_at_which_extents_are_placed(kernel, scene, steepest):
    slopes = steepest / 2 ** torch.arange(HEADS, dtype=torch.float32)
    out, expected = run(scene, kernel, 1, slopes, None)
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=25, deadline=None)
@given(scene=scenes(most_offset=0), window=st.integers(1, 60))
def test_a_window_hides_what_is_further_away(kernel, scene, window):
    out, expected = run(scene, kernel, GROUP, None, window)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_a_window_that_hides_nothing_costs_nothing():
    """Layers whose window is longer than the prompt run the calls of layers without one; others read fewer keys."""
    arena = Arena(KVShape(layers=1, kv_heads=1, head_dim=SIZE, dtype="float32"), 100, CPU)
    arena.positions[:100] = torch.arange(100)
    chunks = [make_chunk(0, 1, Extent(50, 4), [KVView(Extent(0, 30)), KVView(Extent(30, 20))], [50])]
    running = Pass(chunks, arena, KERNELS["matmul"], CPU)
    q = torch.ones(1, 2, 1, SIZE)
    for window in (51, 50, 10):
        running.attend(0, q, q[:, :1], q[:, :1], SCALE, window)
    assert running.calls[51] is running.calls[None]
    assert running.calls[50][0].length == 29, "the first of 51 keys is 50 ids behind"
    assert [(call.start, call.length, call.bias) for call in running.calls[10]] == [
        (30, 0, None),
        (41, 9, None),
        (50, 1, None),
    ]
