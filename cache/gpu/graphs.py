"""Passes of few rows as CUDA graphs: launches are recorded once and replayed with new tables.

A graph has a maximum of rows and partial results, and a pass uses the smallest graph that fits. Everything that differs
between passes is in one buffer on the device, filled by one copy. Unused rows write to the pool's scratch slot, unused
tiles have no readers. A replay cannot be interrupted, so cancellation is checked before it starts. It starts after all
copies: waiting for them takes less time than launching each kernel of a pass. Out of scope: scored passes, and passes
larger than any graph.

Also the choice of attention kernels on a device: missing or failing ones are detected once, before the first request.
Only this choice and the code that runs kernels import Triton, so it is optional.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cache.attention.forward_pass import PassGivenUp, RunningPass
from cache.attention.items import Chunk
from cache.gpu.tiles import Ints, Tables, TilePlan, block_size, joined, longer, make_tables, no_tables, views
from cache.memory.arena import Arena

if TYPE_CHECKING:
    from cache.gpu.tiled_pass import TiledPass
    from cache.gpu.varlen_pass import VarlenPass

    PassKind = type[TiledPass] | type[VarlenPass]

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Records a function's launches and returns a function that repeats them on the same memory."""
Compute = Callable[[RunningPass, Tensor, Tensor], Tensor]
"""(pass, tokens `[T]`, packed rows whose logits are needed `[N]`) -> logits `[N, vocabulary]`."""

log = logging.getLogger(__name__)


class Bucket(NamedTuple):
    """The size of a graph: maximum packed rows, and maximum partial results, which also limit tiles and readers."""

    rows: int
    partials: int


BUCKETS = tuple(Bucket(rows, min(rows * each, 8192)) for rows in (128, 64, 32, 16, 8, 4, 2, 1) for each in (64, 16))
"""Largest first, so that smaller ones reuse memory of the pool. Partial results need memory and longer tables, so there
are two sizes for each number of rows.
"""


class CudaCapture:
    """Captures the graphs of one `GraphedPasses`. They share a memory pool, because only one runs at a time. Other
    graphs need another pool: PyTorch cannot capture into a pool that is in use while its graphs are deleted.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._pool = device, torch.cuda.graph_pool_handle()
        with torch.cuda.device(device):
            self._aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # one: libraries keep memory per stream

    def __call__(self, compute: Callable[[], None]) -> Callable[[], None]:
        """Capture a function. It runs once before, so that kernels are compiled and libraries have their workspaces.
        Other threads may use the device.
        """
        with torch.cuda.device(self._device):
            self._aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._aside):  # also left if capture fails
                compute()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, self._pool, self._aside, capture_error_mode="thread_local"):
                    compute()
        return graph.replay


@dataclass(frozen=True, slots=True)
class Graph:
    """A captured pass. block: size of its tiles, see `Tables`. tables: consecutive int32 tables that replay reads."""

    bucket: Bucket
    block: int
    tables: Tensor
    replay: Callable[[], None]


class GraphedPasses:
    """Captured passes over one KV pool. arena: that pool; passes over other pools are not captured."""

    def __init__(
        self,
        compute: Compute,
        new_pass: Callable[[TilePlan], RunningPass],
        arena: Arena,
        capture: Capture,
        *,
        heads: int,
        vocabulary: int,
        moves: bool,
        buckets: Sequence[Bucket] = BUCKETS,
    ) -> None:
        """compute: runs a pass from its tables on the device, without reading their values. moves: modules may change
        positions. buckets: largest first. If capturing fails, all passes run without graphs.
        """
        self.arena = arena
        self._compute, self._new_pass, self._moves = compute, new_pass, moves
        self._group = heads // arena.shape.kv_heads
        most_rows = max(bucket.rows for bucket in buckets)
        self._graphs: list[Graph] = []  # smallest first
        try:
            self._logits = torch.empty(most_rows, vocabulary, dtype=arena.dtype, device=arena.device)
            for bucket in buckets:
                self._graphs.insert(0, self._captured(bucket, capture))
        except Exception as error:
            log.warning("passes on %s run without CUDA graphs, because capture failed: %s", arena.device, error)
            self._graphs.clear()

    def forward(self, chunks: Sequence[Chunk], outputs: Sequence[int], give_up: Callable[[], bool]) -> Tensor | None:
        """Run a pass as `Model.forward`; None if no graph fits. give_up: called once first; True raises PassGivenUp."""
        tokens = [token for chunk in chunks for token in chunk.tokens]
        fitting = [graph for graph in self._graphs if graph.bucket.rows >= len(tokens)]
        if not fitting:
            return None
        tables = make_tables(chunks, self._group, block=fitting[0].block)
        fitting = [g for g in fitting if g.block == tables.block and g.bucket.partials >= tables.num_partials]
        if not fitting:
            return None
        if give_up():
            raise PassGivenUp
        graph = fitting[0]
        filled = joined(self._filled_up(graph.bucket, tables, tokens, outputs))
        graph.tables.copy_(torch.from_numpy(filled), non_blocking=True)
        self.arena.await_layer(self.arena.shape.layers - 1)  # of all layers: a graph cannot wait between them
        graph.replay()
        return self._logits[: len(outputs)].to(torch.float32, copy=True)  # the next replay writes there

    def _filled_up(self, bucket: Bucket, tables: Tables, tokens: Sequence[int], outputs: Sequence[int]) -> list[Ints]:
        rows, partials = bucket
        full = tables.filled_up(rows, partials, partials if self._moves else 0, self.arena.scratch_slot)
        return [*full.arrays, *(longer(np.array(some, np.int32), rows) for some in (tokens, outputs))]

    def _captured(self, bucket: Bucket, capture: Capture) -> Graph:
        block = block_size(bucket.rows, self._group)
        nothing = self._filled_up(bucket, no_tables(block), [], [])
        together = torch.from_numpy(joined(nothing)).to(self.arena.device)
        *tables, tokens, outputs = views(together, [table.shape for table in nothing])
        plan = TilePlan(bucket.partials, block, *tables)

        def compute() -> None:
            logits = self._compute(self._new_pass(plan), tokens.long(), outputs.long())
            self._logits[: bucket.rows].copy_(logits)

        return Graph(bucket, block, together, capture(compute))


def best_kind(device: torch.device, attempt: "Callable[[PassKind], None]") -> "PassKind | None":
    """Return the best kind of pass that works on a device; None: plain kernels. attempt: runs a small pass of a kind,
    and raises its errors.
    """
    best: PassKind | None = None
    title, problems = "slower kernels", list[str]()
    for name, load in KINDS.items() if device.type == "cuda" else ():
        try:
            attempt(kind := load())
            best, title = kind, name
            break
        except Exception as error:
            what, *_ = str(error).splitlines() or [type(error).__name__]
            problems.append(f"{name}: {what}")
    if problems:
        why = "; ".join(problems)
        log.warning("attention on %s uses %s, because better kernels are not available (%s)", device, title, why)
    return best


def load_tiled() -> "type[TiledPass]":
    if find_spec("triton") is None:
        raise ImportError("not installed, pip install triton")
    from cache.gpu.tiled_pass import TiledPass

    return TiledPass


def load_varlen() -> "type[VarlenPass]":
    from cache.gpu.varlen_pass import VarlenPass

    return VarlenPass


KINDS: "dict[str, Callable[[], PassKind]]" = {"Triton": load_tiled, "varlen_attn": load_varlen}
"""Best first: Triton's kernels cover most. None was measured on a GPU yet."""


def kinds_to_compare(device: torch.device) -> "dict[str, PassKind]":
    found: dict[str, PassKind] = {}
    for name, load in KINDS.items() if device.type == "cuda" else ():
        with suppress(ImportError):
            found[name] = load()
    return found


def capture_for(device: torch.device) -> Capture | None:
    return CudaCapture(device) if device.type == "cuda" else None
