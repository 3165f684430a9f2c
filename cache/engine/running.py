"""A request being answered. All it holds (pinned modules, a pinned prefix, its own rows) is given back in `finish`."""

import time
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cache.engine.accounting import count_usage, module_uses
from cache.engine.request import Completion, FinishReason, Timings, Usage
from cache.engine.sampling import Sampler, TextStream, loop_length
from cache.engine.sequence import Sequence, build_sequence, path_of
from cache.engine.waiting import Waiting
from cache.errors import CacheError
from cache.memory.allocator import NO_ROWS, Extent
from cache.memory.prefix_tree import PathStep, PrefixNode
from cache.memory.store import Store
from cache.model.language_model import Model


@dataclass(slots=True, eq=False)
class Running:
    """A request being answered. admitted: with its pinned modules. fresh: steps behind the pinned prefix, computed ones
    with their first own row, modules between them with row -1. forced_logits: they predict a teacher-forced answer.
    """

    admitted: Waiting
    sequence: Sequence
    fresh: list[tuple[PathStep, int]]
    prefix: PrefixNode
    usage: Usage
    timings: Timings
    stop_tokens: Set[int]
    sampler: Sampler
    stream: TextStream
    answer: list[int] = field(default_factory=list)
    forced_logits: list[Tensor] = field(default_factory=list)

    def advance(self, logits: Tensor) -> FinishReason | None:
        """Use the logits `[rows, vocabulary]` of a pass: sample the next token and deliver its text, or keep them if
        the answer is teacher-forced. Returns why the answer ends here, if it does.
        """
        if self.admitted.request.teacher_forced:
            self.forced_logits.append(logits.cpu())
            if self.sequence.pending:
                return None
        if not self.answer:
            self.timings.ttft = self._elapsed()
            self.timings.prefill = self.timings.ttft - self.timings.queue - self.timings.load
        if self.admitted.request.teacher_forced:
            return "scored"
        reason = self._append(self.sampler.choose(logits[0], self.answer))
        for token in self.sampler.forced(self.answer):  # these need no passes of their own
            if reason is not None:
                break
            reason = self._append(token)
        self._deliver_text(final=reason is not None)
        return "stop" if self.stream.stopped else reason

    def finish(self, store: Store, reason: FinishReason) -> None:
        """Give everything back, hand the computed rows to the prefix tree, deliver the completion."""
        if reason == "cancelled":
            self._deliver_text(final=True)
        modules = tuple(module_uses(self.admitted))
        self._give_rows(store)
        self.admitted.release(store)
        self.timings.total = self._elapsed()
        self.usage.completion_tokens = len(self.answer)
        completion = Completion(
            text=self.stream.text,
            tokens=None if self.stream.stopped else tuple(self.answer),
            finish_reason=reason,
            usage=self.usage,
            modules=modules,
            timings=self.timings,
            exact=self.admitted.plan.is_exact,
            logits=torch.cat(self.forced_logits) if self.forced_logits else None,
        )
        self.admitted.generation.deliver(completion)

    def fail(self, store: Store, error: CacheError) -> None:
        """Give everything back and deliver an error; what was computed is not kept."""
        store.allocator.free(self.sequence.own)
        store.prefixes.unpin(self.prefix)
        self.admitted.release(store)
        self.admitted.generation.deliver(error)

    def _elapsed(self) -> float:
        """Milliseconds since submission."""
        return (time.perf_counter() - self.admitted.submitted) * 1e3

    def _append(self, token: int) -> FinishReason | None:
        if token in self.stop_tokens:
            return "stop"
        self.answer.append(token)
        if self.admitted.request.sampling.choices is None and loop_length(self.answer):
            return "repeated"
        if self.sequence.is_full:
            return "length"
        self.sequence.append(token)
        return None

    def _deliver_text(self, *, final: bool) -> None:
        if piece := self.stream.update(self.answer, final=final):
            self.admitted.generation.deliver(piece)

    def _give_rows(self, store: Store) -> None:
        """own[0:computed] goes to the tree (or is freed with reuse off), own[computed:] is freed."""
        own, computed = self.sequence.own, self.sequence.computed
        store.allocator.free(own.part(computed, own.length))
        if self.admitted.request.reuse == "off":
            store.allocator.free(own.part(0, computed))
            return
        last, surplus = store.prefixes.insert(self.prefix, self._computed_steps(), self.admitted.request.session)
        for extent in surplus:
            store.allocator.free(extent)
        store.touch(last, is_use=False)
        store.prefixes.unpin(self.prefix)

    def _computed_steps(self) -> Iterator[tuple[PathStep, Extent]]:
        """The computed part of `fresh`, with its rows; modules only where computed rows follow them."""
        sequence = self.sequence
        for index, (step, row) in enumerate(self.fresh):
            if step.key is not None:
                if any(0 <= r < sequence.computed for _, r in self.fresh[index + 1 :]):
                    yield step, NO_ROWS
                continue
            is_last = index == len(self.fresh) - 1  # generated tokens continue the last step
            end = sequence.computed if is_last else min(row + len(step.tokens), sequence.computed)
            if end > row:
                yield PathStep(start=step.start, tokens=tuple(sequence.tokens[row:end])), sequence.own.part(row, end)


def admit(waiting: Waiting, store: Store, model: Model) -> Running:
    """Start a request whose modules are all found. Raises CapacityError if its own rows do not fit now."""
    request, plan = waiting.request, waiting.plan
    path = path_of(plan.spans, waiting.entries)
    last = path[-1]  # its last token is computed in any case: generation starts from its logits
    reusable = [] if request.reuse == "off" else [*path[:-1], last.cut(0, len(last.tokens) - 1)]
    prefix = store.prefixes.match(request.tenant, reusable)
    sequence, fresh = build_sequence(plan.spans, path, waiting.entries, prefix)
    usage = count_usage(waiting, prefix, len(sequence.tokens))
    num_new = max(1, min(request.sampling.max_tokens, model.info.max_positions - plan.next_position))
    given = request.teacher_forced[:-1]
    sampler, stream = Sampler(request.sampling), TextStream(model.tokenizer, request.sampling.stop)
    store.prefixes.pin(prefix)
    try:
        sequence.own = store.reserve(len(sequence.tokens) + len(given) + num_new - 1)
    except Exception:
        store.prefixes.unpin(prefix)
        raise
    store.touch(prefix)
    store.count_use(waiting.found)
    for token in given:
        sequence.append(token)
    timings = Timings(queue=(waiting.picked_up - waiting.submitted) * 1e3, load=waiting.loading * 1e3)
    return Running(waiting, sequence, fresh, prefix, usage, timings, model.info.stop_tokens, sampler, stream)
