"""A request that is not running yet: its modules are looked up and pinned, then its rows to recompute are selected."""

import time
from collections.abc import Set
from dataclasses import dataclass, field

from cache.engine.encoder import Encoder, keys_of
from cache.engine.recomputation import EXACT, RowSelector
from cache.engine.request import Completion, Generation, Request, Timings, Usage
from cache.engine.row_scoring import RowScoring
from cache.memory.device import CacheEntry
from cache.memory.module_header import MissReason
from cache.memory.store import Source, Store
from cache.model.language_model import ModelInfo
from cache.prompt.plan import Plan, Segment


@dataclass(slots=True, eq=False)
class Waiting:
    """A request with what was found for it so far. places_modules: whether the model can reuse modules at all.
    has_exact_modules: whether they are kept as the model computes them.
    picked_up: when its modules were first looked up. loading: seconds spent on looking them up, and on waiting for
    those that are being loaded. load_began: when it began to wait for these, or 0. entries: modules found, pinned until
    the request has been answered. sources: where each was first found. misses: modules that had to be computed, and
    why. scoring: under way, see `select_rows`.
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
        """What will be run. Where no modules are reused, ordinary causal attention."""
        if self.recomputed_plan is not None:
            return self.recomputed_plan
        if self.request.reuse != "on" or not self.places_modules:
            return self.request.plan.without_segments()
        if self.request.recomputation != EXACT:
            return self.request.plan
        return self.request.plan.exact_part() if self.has_exact_modules else self.request.plan.without_segments()

    @property
    def is_exact(self) -> bool:
        """Whether every token sees what full attention shows, in numbers that were not rounded."""
        return self.plan.is_exact and (self.has_exact_modules or not self.plan.segments())

    @property
    def found(self) -> list[CacheEntry]:
        """The modules that were in some tier."""
        return [entry for segment, entry in self.entries.items() if segment not in self.misses]

    def find_modules(self, encoder: Encoder) -> bool:
        """Look up the modules still missing; True when all of the plan are in the arena. Raises CapacityError."""
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
        """Whether it is settled which rows of the modules are computed again. If they must be scored first, the scoring
        begins, and it is settled once its sequence has been computed: ask again. Raises CapacityError.
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
        """The modules of the request whose text stands at position ids `first` .. `end`-1."""
        tenant, spans = self.request.tenant_of_modules, self.request.plan.spans
        segments = {s.segment for s in spans if s.segment is not None and s.start < end and s.end > first}
        return frozenset(store.key(segment, tenant) for segment in segments)

    def uses(self, keys: Set[str], store: Store) -> bool:
        """Whether any of these modules is in the prompt, or a conditioning prefix of one that is."""
        tenant, plan = self.request.tenant_of_modules, self.request.plan
        return any(not keys.isdisjoint(keys_of(segment, tenant, store)) for segment in plan.segments())

    @property
    def is_holding(self) -> bool:
        """Whether it holds memory that others could have."""
        return bool(self.entries)

    def release(self, store: Store) -> None:
        """Unpin the modules found, and give up their scoring; the request may be tried again later."""
        self._end_scoring(store)
        for entry in self.entries.values():
            store.device.release(entry)
        self.entries.clear()

    def end_cancelled(self) -> None:
        """Deliver its end, where nobody waits for it any more before anything was computed."""
        waited = (time.perf_counter() - self.submitted) * 1e3
        self.generation.deliver(
            Completion(
                text="",
                tokens=(),
                finish_reason="cancelled",
                usage=Usage(prompt_tokens=0),
                modules=(),
                timings=Timings(queue=waited, total=waited),
                exact=True,
            )
        )

    def _end_scoring(self, store: Store) -> None:
        if self.scoring is not None:
            self.scoring.release(store)
            self.scoring = None
