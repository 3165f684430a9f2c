"""A request that is not running yet: its modules are found and pinned, then its rows to recompute are selected.

For a selection by the question, its attention to rows of the modules is computed as a sequence in the shared forward
passes. These keys and values are dropped, because they have not seen the recomputed rows. Out of scope: the selection
by scores (`recomputation`).
"""

import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cache.attention.items import Placed, ScoredChunk
from cache.engine.encoder import Encoder, keys_of
from cache.engine.recomputation import EXACT, RowSelection, RowSelector
from cache.engine.request import Completion, Generation, Request, Timings, Usage
from cache.engine.scheduler import build_sequence, path_of
from cache.memory.arena import Extent
from cache.memory.device import CacheEntry
from cache.memory.disk import MissReason
from cache.memory.keys import Source
from cache.memory.store import Store
from cache.model.info import ModelInfo
from cache.prompt.plan import Plan, Segment, Span


class RowScoring:
    """Computes the scores that a selection needs. sequence: rows to compute for them; when it has no pending rows, the
    scores are complete. It holds slots and a pinned prefix until `release`.
    """

    def __init__(
        self, selection: RowSelection, entries: Mapping[Segment, CacheEntry], tenant: str, store: Store, num_layers: int
    ) -> None:
        """entries: the plan's modules, pinned until `release`. num_layers: scored layers. Raises CapacityError."""
        self.selection, self._entries = selection, entries
        self._plan, self._spans = selection.scored_spans()
        path = path_of(self._plan.spans, entries)
        self._prefix = store.device.pin_prefix(tenant, path[:-1])  # reserving memory may evict
        self.sequence, _ = build_sequence(self._plan.spans, path, entries, self._prefix)
        self._placed = [self._placed_of(self._plan.spans[i]) for i in self._spans]
        device = store.arena.device
        try:
            self._squares = {one: torch.zeros(num_layers, one[0].length, device=device) for one in self._placed}
            self._of_pass: dict[Placed, Tensor] = {}
            self.sequence.own = store.device.reserve_rows(len(self.sequence.tokens))
        except Exception:
            store.device.release_prefix(self._prefix)
            raise

    def scored(self, index: int, rows: int) -> ScoredChunk:
        """Return the scoring of the next `rows` rows, as chunk `index` of a pass. Only the question's rows score."""
        behind = self.sequence.pending - rows
        self._of_pass = {placed: torch.zeros_like(squares) for placed, squares in self._squares.items()}
        return ScoredChunk(index, max(0, min(rows, len(self._plan.spans[-1].tokens) - behind)), self._of_pass)

    def add_pass(self) -> None:
        """Add the scores of the last pass. Call it only if the pass succeeded: a failed pass may lack some layers."""
        for placed, squares in self._of_pass.items():
            self._squares[placed] += squares

    def scores(self) -> list[Tensor]:
        """Return the question's attention to each candidate of the selection: float32 `[rows]`, on the host."""
        scores = [self._squares[placed].sqrt().mean(0).cpu() for placed in self._placed]
        slots = [self._slots_of(self._plan.spans[i]) for i in self._spans]
        return [
            score[rows.start - extent.start : rows.end - extent.start]
            for score, (extent, _), rows in zip(scores, self._placed, slots, strict=True)
        ]

    def release(self, store: Store) -> None:
        store.device.free(self.sequence.own)
        store.device.release_prefix(self._prefix)

    def _slots_of(self, span: Span) -> Extent:
        assert span.segment is not None
        return self._entries[span.segment].extent.part(span.row, span.row + len(span.tokens))

    def _placed_of(self, span: Span) -> Placed:
        rows, views = self._slots_of(span), self.sequence.views
        views = [view for view in views if view.offset == span.offset]
        return next((v.extent, v.offset) for v in views if v.extent.start <= rows.start < v.extent.end)


@dataclass(slots=True, eq=False)
class Waiting:
    """A waiting request and its modules found so far. places_modules: the model can reuse modules. has_exact_modules:
    modules are stored without rounding. picked_up: time of the first look-up. loading: seconds spent on look-ups and
    loads. load_began: time when it started to wait for loads, or 0. entries: modules found, pinned until the answer
    ends. sources: tier where each was found first. misses: reasons of modules that had to be computed.
    """

    request: Request
    generation: Generation
    submitted: float
    places_modules: bool = True
    has_exact_modules: bool = True
    picked_up: float = 0.0
    loading: float = 0.0
    load_began: float = 0.0
    recomputed_plan: Plan | None = None
    entries: dict[Segment, CacheEntry] = field(default_factory=dict)
    sources: dict[Segment, Source] = field(default_factory=dict)
    misses: dict[Segment, MissReason | None] = field(default_factory=dict)
    scoring: RowScoring | None = None

    @property
    def plan(self) -> Plan:
        """Return the plan to run. Without reuse of modules, this is ordinary causal attention."""
        if self.recomputed_plan is not None:
            return self.recomputed_plan
        if self.request.reuse != "on" or not self.places_modules:
            return self.request.plan.without_segments()
        if self.request.recomputation != EXACT:
            return self.request.plan
        return self.request.plan.exact_part() if self.has_exact_modules else self.request.plan.without_segments()

    @property
    def is_exact(self) -> bool:
        """Return whether the result equals full attention, without rounding."""
        return self.plan.is_exact and (self.has_exact_modules or not self.plan.segments())

    @property
    def found(self) -> list[CacheEntry]:
        return [entry for segment, entry in self.entries.items() if segment not in self.misses]

    def find_modules(self, encoder: Encoder) -> bool:
        """Look up missing modules. Returns True when all are in the KV pool. Raises CapacityError."""
        started = time.perf_counter()
        self.picked_up = self.picked_up or started
        complete, is_loading = True, False
        for segment in self.plan.segments():
            if segment in self.entries:
                continue
            lookup = encoder.find(segment, self.request.tenant_of_modules, frozenset({self.generation}))
            if lookup.entry is not None:
                self.entries[segment] = lookup.entry
            elif lookup.loading is None:
                self.misses.setdefault(segment, lookup.reason)
            if lookup.source != "computed":
                self.sources.setdefault(segment, lookup.source)
            complete &= lookup.entry is not None
            is_loading |= lookup.loading is not None
        now = time.perf_counter()
        self.loading += now - (self.load_began or started)
        self.load_began = now if is_loading else 0.0
        return complete

    def select_rows(self, row_selector: RowSelector, store: Store, info: ModelInfo) -> bool:
        """Return whether the rows to recompute are decided. If they must be scored first, scoring starts: call again
        after its sequence is computed. Raises CapacityError.
        """
        request = self.request
        if self.recomputed_plan is None and self.scoring is None:
            selection = row_selector.begin(self.plan, request.recomputation, request.session)
            if selection.needs_scores:
                self.scoring = RowScoring(selection, self.entries, request.tenant, store, len(info.scored_layers))
            else:
                self.recomputed_plan = row_selector.finish(selection, request.session)
        if self.scoring is not None and not self.scoring.sequence.pending:
            scores = self.scoring.scores()
            self.recomputed_plan = row_selector.finish(self.scoring.selection, request.session, scores)
            self._end_scoring(store)
        return self.recomputed_plan is not None

    def sources_of(self, first: int, end: int, store: Store) -> frozenset[str]:
        tenant, spans = self.request.tenant_of_modules, self.request.plan.spans
        segments = {s.segment for s in spans if s.segment is not None and s.start < end and s.end > first}
        return frozenset(store.key(segment, tenant) for segment in segments)

    def uses(self, keys: Set[str], store: Store) -> bool:
        """Return whether any of these modules is in the prompt, or is a conditioning prefix of one that is."""
        tenant, plan = self.request.tenant_of_modules, self.request.plan
        return any(not keys.isdisjoint(keys_of(segment, tenant, store)) for segment in plan.segments())

    def release(self, store: Store) -> None:
        """Unpin the request's modules and drop its scoring. It may be retried later."""
        self._end_scoring(store)
        for entry in self.entries.values():
            store.device.release(entry)
        self.entries.clear()

    def end_cancelled(self) -> None:
        waited = (time.perf_counter() - self.submitted) * 1e3
        timings, usage = Timings(queue=waited, total=waited), Usage(prompt_tokens=0)
        self.generation.deliver(Completion(text="", tokens=(), finish_reason="cancelled", usage=usage, timings=timings))

    def _end_scoring(self, store: Store) -> None:
        if self.scoring is not None:
            self.scoring.release(store)
            self.scoring = None
