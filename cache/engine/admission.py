"""From a request to a running sequence: find its modules, match its exact prefix, reserve its rows; and back.

Everything a running request holds (pinned modules, a pinned prefix, its own rows) is taken here and given back
here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from cache.engine.encoder import Encoder
from cache.engine.recomputation import EXACT, RowSelector
from cache.engine.request import Completion, FinishReason, Generation, ModuleUse, Request, Timings, Usage
from cache.engine.sampling import Decoder, Sampler, TextStream
from cache.engine.sequence import Sequence
from cache.engine.sequence_builder import build, steps_of
from cache.memory.allocator import Extent
from cache.memory.prefix_tree import Node, Step
from cache.memory.store import CacheEntry, Found, MissReason, Store
from cache.model.language_model import Model
from cache.prompt.plan import Plan, Segment


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that is not running yet, with the segments found for it so far (pinned).

    places_modules: whether the model can reuse modules at all.
    """

    request: Request
    generation: Generation
    submitted: float
    places_modules: bool = True
    picked_up: float = 0.0
    loading: float = 0.0
    recomputed_plan: Plan | None = None
    found: dict[Segment, Found] = field(default_factory=dict)
    misses: dict[Segment, MissReason | None] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """What will be run: where modules are not reused, ordinary causal attention."""
        if self.recomputed_plan is not None:
            return self.recomputed_plan
        if self.request.reuse != "on" or not self.places_modules:
            return self.request.plan.without_segments()
        return self.request.plan.exact_part() if self.request.recomputation == EXACT else self.request.plan

    def find_modules(self, encoder: Encoder) -> bool:
        """Look for what is missing; True when every module of the plan is in the arena and pinned."""
        started = time.perf_counter()
        self.picked_up = self.picked_up or started
        complete = True
        for segment in self.plan.segments():
            if segment in self.found:
                continue
            found = encoder.find(segment, self.request.tenant)
            if found.entry is not None:
                self.found[segment] = found
            else:
                self.misses.setdefault(segment, found.reason)
                complete = False
        self.loading += time.perf_counter() - started
        return complete

    def select_rows(self, row_selector: RowSelector, store: Store, model: Model) -> None:
        """Decide which rows of the modules found are computed again. Raises CapacityError."""
        if self.recomputed_plan is None:
            score_attention = partial(
                row_scores, entries=self.entries, tenant=self.request.tenant, store=store, model=model
            )
            self.recomputed_plan = row_selector.select(
                self.plan, self.request.recomputation, self.request.session, score_attention
            )

    @property
    def entries(self) -> dict[Segment, CacheEntry]:
        """The modules found."""
        return {segment: found.entry for segment, found in self.found.items() if found.entry is not None}

    def give_up(self, store: Store) -> None:
        """Unpin what was found; the request may be tried again later."""
        for found in self.found.values():
            assert found.entry is not None
            store.release(found.entry)
        self.found.clear()


@dataclass(slots=True, eq=False)
class Running:
    """A request being answered, and what it holds."""

    request: Request
    plan: Plan
    generation: Generation
    sequence: Sequence
    fresh: list[tuple[Step, int]]
    """Computed steps behind the matched prefix, each with its first own row; modules between them with row -1."""
    prefix: Node | None
    entries: list[CacheEntry]
    usage: Usage
    modules: tuple[ModuleUse, ...]
    timings: Timings
    submitted: float
    sampler: Sampler
    stream: TextStream
    answer: list[int] = field(default_factory=list)
    forced_logits: list[Tensor] = field(default_factory=list)
    """Logits that predict the tokens of an answer that was given."""

    @property
    def wanted(self) -> int:
        """Rows at the sequence's end whose logits are wanted."""
        return max(1, len(self.request.teacher_forced))

    def finish(self, store: Store, reason: FinishReason) -> Completion:
        """Give everything back, hand the computed rows to the prefix tree, and close the books."""
        self._keep_rows(store)
        for entry in self.entries:
            store.release(entry)
        self.timings.total = milliseconds(self.submitted)
        self.usage.completion_tokens = len(self.answer)
        return Completion(
            text=self.stream.text,
            tokens=None if self.stream.stopped else tuple(self.answer),
            finish_reason=reason,
            usage=self.usage,
            modules=self.modules,
            timings=self.timings,
            exact=self.plan.is_exact,
            logits=torch.cat(self.forced_logits) if self.forced_logits else None,
        )

    def _keep_rows(self, store: Store) -> None:
        """own[0:computed] goes to the tree (or is freed with reuse off), own[computed:] is free again."""
        own, computed = self.sequence.own, self.sequence.computed
        store.allocator.free(own.part(computed, own.length))
        if self.prefix is None:
            store.allocator.free(own.part(0, computed))
            return
        steps = list(self._computed_steps())
        last, surplus = store.prefixes.insert(self.prefix, steps, self.request.session)
        for extent in surplus:
            store.allocator.free(extent)
        store.touch(last, is_use=False)
        store.prefixes.unpin(self.prefix)

    def _computed_steps(self) -> Iterator[tuple[Step, Extent]]:
        sequence = self.sequence
        for index, (step, row) in enumerate(self.fresh):
            if step.key is not None:
                if any(r >= 0 and r < sequence.computed for _, r in self.fresh[index + 1 :]):
                    yield step, Extent(0, 0)
                continue
            last = row + len(step.tokens)
            if index == len(self.fresh) - 1:  # generated tokens continue the last step
                last = sequence.computed
            last = min(last, sequence.computed)
            if last > row:
                tokens = tuple(sequence.tokens[row:last])
                yield Step(start=step.start, tokens=tokens), sequence.own.part(row, last)


def row_scores(
    plan: Plan,
    indices: Many[int],
    *,
    entries: Mapping[Segment, CacheEntry],
    tenant: str,
    store: Store,
    model: Model,
) -> list[Tensor]:
    """How much the rows of a plan's last span look at some of its spans: float32 `[rows]` each.

    What is computed for it is thrown away again: these rows have not seen what will be computed for them. Raises
    CapacityError if there is no room for them now.
    """
    steps = steps_of(plan.spans, entries)
    last = plan.spans[-1]
    prefix = store.prefixes.match(tenant, [*steps[:-1]])
    sequence, _ = build(plan.spans, steps, entries, prefix)
    store.prefixes.pin(prefix)
    try:
        sequence.own = store.reserve(len(sequence.tokens))
    finally:
        store.prefixes.unpin(prefix)
    try:
        views = [view.extent for view in sequence.views]
        found = model.score_attention(
            sequence.tokens,
            sequence.positions,
            sequence.chunk(sequence.pending),
            store.arena,
            len(last.tokens),
            views,
        )
    finally:
        store.allocator.free(sequence.own)
    scores: list[Tensor] = []
    for span in (plan.spans[i] for i in indices):
        assert span.segment is not None
        extent = entries[span.segment].extent.part(span.row, span.row + len(span.tokens))
        view, score = next((v, s) for v, s in zip(views, found, strict=True) if v.start <= extent.start < v.end)
        scores.append(score[extent.start - view.start : extent.end - view.start])
    return scores


def admit(waiting: Waiting, store: Store, decoder: Decoder, max_positions: int) -> Running:
    """Make a request runnable whose modules are all found. Raises CapacityError if its own rows do not fit now."""
    request, plan = waiting.request, waiting.plan
    entries = waiting.entries
    steps = steps_of(plan.spans, entries)
    prefix = None
    if request.reuse != "off":
        last = steps[-1]  # its last token is computed in any case: generation starts from its logits
        prefix = store.prefixes.match(request.tenant, [*steps[:-1], last.cut(0, len(last.tokens) - 1)])
    sequence, fresh = build(plan.spans, steps, entries, prefix)
    room = max(1, min(request.sampling.max_tokens, max_positions - plan.next_position))
    for token in request.teacher_forced[:-1]:
        sequence.tokens.append(token)
        sequence.positions.append(sequence.positions[-1] + 1)
    if prefix is not None:
        store.prefixes.pin(prefix)
    try:
        sequence.own = store.reserve(len(sequence.tokens) + room - 1)
    except Exception:
        if prefix is not None:
            store.prefixes.unpin(prefix)
        raise
    if prefix is not None:
        store.touch(prefix)
    return Running(
        request=request,
        plan=plan,
        generation=waiting.generation,
        sequence=sequence,
        fresh=fresh,
        prefix=prefix,
        entries=list(entries.values()),
        usage=account(plan, waiting, prefix, len(sequence.tokens) - max(0, len(request.teacher_forced) - 1)),
        modules=tuple(module_uses(waiting)),
        timings=Timings(queue=(waiting.picked_up - waiting.submitted) * 1e3, load=waiting.loading * 1e3),
        submitted=waiting.submitted,
        sampler=Sampler(request.sampling),
        stream=TextStream(decoder, request.sampling.stop),
    )


def account(plan: Plan, waiting: Waiting, prefix: Node | None, computed: int) -> Usage:
    """Where the prompt's tokens come from; a module encoded for this request counts as computed."""
    usage = Usage(prompt_tokens=plan.num_tokens, computed=computed)
    if waiting.request.reuse == "on" and waiting.places_modules:
        usage.recomputed = supplied(waiting.request.plan) - supplied(plan)
    session = waiting.request.session
    for node in () if prefix is None else prefix.path():
        if node.step.key is None and session is not None and node.owner == session:
            usage.session += len(node.step.tokens)
        elif node.step.key is None:
            usage.prefix += len(node.step.tokens)
    built: dict[str, Segment] = {}  # segments of equal content share one encoding
    for span in plan.spans:
        if span.segment is None:
            continue
        found = waiting.found[span.segment].entry
        assert found is not None
        if span.segment in waiting.misses and built.setdefault(found.header.key, span.segment) == span.segment:
            usage.computed += len(span.tokens)
        else:
            usage.module += len(span.tokens)
    assert usage.prompt_tokens == usage.computed + usage.cached_tokens, usage
    return usage


def supplied(plan: Plan) -> int:
    """Tokens of a plan that modules supply."""
    return sum(len(span.tokens) for span in plan.spans if span.segment is not None)


def module_uses(waiting: Waiting) -> Iterator[ModuleUse]:
    """Every segment of the prompt and how it was come by. A model that cannot place modules computed them; others
    bypassed those that reuse was off for, or that the policy computed as a whole.
    """
    plan = waiting.request.plan
    cannot_place = waiting.request.reuse == "on" and not waiting.places_modules
    why_bypassed: MissReason = "placement" if cannot_place else "bypassed"
    for segment in plan.segments():
        spans = [span for span in plan.spans if span.segment == segment]
        found = waiting.found.get(segment)
        bypassed = found is None or found.entry is None
        missed = segment in waiting.misses
        yield ModuleUse(
            key="" if found is None or found.entry is None else found.entry.header.key,
            name=segment.name,
            tokens=sum(len(span.tokens) for span in spans),
            position=spans[0].start,
            source="computed" if found is None or missed else found.source,
            miss_reason=why_bypassed if found is None or bypassed else waiting.misses.get(segment, found.reason),
        )


def milliseconds(since: float) -> float:
    """Milliseconds since a moment of `time.perf_counter`."""
    return (time.perf_counter() - since) * 1e3
