"""A request being answered, and the sources of its prompt's tokens; its rows in a packed pass, and its next tokens.

When it ends, it releases everything it holds: pinned modules, a pinned prefix, its own rows. It also does so when it is
preempted because another request needs the memory. It resumes later from the computed rows that remain. Out of scope:
choosing a token (`cache.decoding.sampling`).
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor

from cache.attention.items import Chunk, ScoredChunk
from cache.decoding.choosing import ToHost, choose_tokens, rows_of
from cache.decoding.sampling import Sampler, TextStream, TokenLogprob, loop_length
from cache.engine.request import Completion, FinishReason, ModuleUse, Timings, Usage
from cache.engine.scheduler import Sequence, build_sequence, path_of
from cache.engine.text_delivery import AnswerText, TextDelivery
from cache.engine.waiting import RowScoring, Waiting
from cache.errors import CacheError, CapacityError, is_shortage
from cache.memory.arena import Extent, part_of, total_length
from cache.memory.disk import MissReason
from cache.memory.prefix_tree import PathStep, PrefixNode
from cache.memory.store import Store
from cache.model.language_model import Model
from cache.prompt.plan import Plan, Segment


def count_usage(waiting: Waiting, prefix: PrefixNode, computed: int) -> Usage:
    """Return the sources of the prompt's tokens. computed: rows after the matched prefix, without modules."""
    plan, session = waiting.plan, waiting.request.session
    usage = Usage(prompt_tokens=plan.num_tokens, computed=computed)
    if waiting.request.reuse == "on" and waiting.places_modules:
        usage.recomputed = supplied_tokens(waiting.request.plan) - supplied_tokens(plan)
    for node in prefix.path():
        if node.step.key is None and session is not None and node.owner == session:
            usage.session += len(node.step.tokens)
        elif node.step.key is None:
            usage.prefix += len(node.step.tokens)
    encoded: dict[str, Segment] = {}  # segments of equal content share one encoding: only the first is computed
    for span in plan.spans:
        if span.segment is None:
            continue
        key = waiting.entries[span.segment].header.key
        if span.segment in waiting.misses and encoded.setdefault(key, span.segment) == span.segment:
            usage.computed += len(span.tokens)
        else:
            usage.module += len(span.tokens)
    assert usage.prompt_tokens == usage.computed + usage.cached_tokens, usage
    return usage


def supplied_tokens(plan: Plan) -> int:
    return sum(len(span.tokens) for span in plan.spans if span.segment is not None)


def module_uses(waiting: Waiting) -> Iterator[ModuleUse]:
    """Return every module of the prompt and the source of its rows. A module without cache entry was computed with the
    prompt: the model cannot move it ("placement"), or the request reuses none or recomputes all ("bypassed").
    """
    plan = waiting.request.plan
    cannot_place = waiting.request.reuse == "on" and not waiting.places_modules
    why_computed: MissReason = "placement" if cannot_place else "bypassed"
    for segment in plan.segments():
        spans = [span for span in plan.spans if span.segment == segment]
        entry = waiting.entries.get(segment)
        yield ModuleUse(
            key="" if entry is None else entry.header.key,
            name=segment.name,
            tokens=sum(len(span.tokens) for span in spans),
            position=spans[0].start,
            source="computed" if entry is None or segment in waiting.misses else waiting.sources[segment],
            miss_reason=why_computed if entry is None else waiting.misses.get(segment),
        )


PAGE = 32  # slots that an answer gets at a time


@dataclass(slots=True, eq=False)
class Running:
    """A request being answered. fresh: steps after the pinned prefix, each with its first own row; modules have row -1.
    most_tokens: limit of the answer. forced_logits: logits that predict a teacher-forced answer. keeps_rows: later
    requests may reuse its rows.
    """

    admitted: Waiting
    prefix: PrefixNode
    sequence: Sequence
    fresh: list[tuple[PathStep, int]]
    usage: Usage
    modules: tuple[ModuleUse, ...]
    timings: Timings
    most_tokens: int
    stop_tokens: Set[int]
    sampler: Sampler
    text: AnswerText
    answer: list[int] = field(default_factory=list)
    forced_logits: list[Tensor] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    keeps_rows: bool = True

    @property
    def num_outputs(self) -> int:
        return max(1, len(self.admitted.request.teacher_forced))

    def extend(self, store: Store) -> None:
        """Reserve slots for tokens without one. Raises CapacityError."""
        more = min(PAGE, self.most_tokens - len(self.answer))
        store.device.extend_rows(self.sequence.own, max(more, self.sequence.missing_slots))

    def pause(self, store: Store) -> None:
        self._give_rows(store)
        self.admitted.release(store)

    def resume(self, store: Store, spare: int) -> None:
        """Continue a preempted answer, once all modules are found again. Raises the errors of `place`."""
        self.prefix, self.sequence, self.fresh = place(self.admitted, store, spare, self.answer)

    @property
    def is_read(self) -> bool:
        return bool(self.admitted.request.teacher_forced)

    def read(self, logits: Tensor, finished: Callable[[], float]) -> FinishReason | None:
        """Store the logits `[rows, vocabulary]` of a pass. Returns why the answer ends here, if it does. finished:
        returns the time when the device finished them.
        """
        self.forced_logits.append(logits.cpu())
        if self.sequence.pending:
            return None
        self._note_first_token(finished())
        return "scored"

    @property
    def most_steps(self) -> int:
        """Maximum number of tokens that the model may choose greedily in one call; 0 if the engine must choose."""
        is_greedy = self.admitted.request.sampling.is_greedy(first=not self.answer)
        if self.is_read or self.sequence.pending > 1 or not is_greedy:
            return 0
        return min(self.most_tokens - len(self.answer), self.sequence.adjacent_slots)

    def advance(self, tokens: Iterable[int] | Exception, finished: Callable[[], float]) -> FinishReason | None:
        """Add the next tokens and the given ones after them, and deliver their text. Returns why the answer ends, if it
        does. tokens: the chosen ones, or an error to raise. finished: returns the time when the device finished them.
        Raises CacheError if the text of these or earlier tokens could not be made.
        """
        if isinstance(tokens, Exception):
            raise tokens
        if not self.timings.ttft:
            self._note_first_token(finished())
        reason = self._why_over() if self.admitted.request.begun else None  # all of it may have been delivered before
        for token in chain(tokens, self.sampler.given(self.answer)):  # given ones need no passes of their own
            if reason is not None:
                break
            reason = self._append(token)
        self.sequence.computed = min(self.sequence.computed, len(self.sequence.tokens))  # not of tokens after the end
        self.text.update(self.answer, final=reason is not None)
        if self.text.failure is not None:
            raise self.text.failure
        return "stop" if self.text.stream.stopped else reason

    def finish(self, store: Store, reason: FinishReason) -> None:
        """Release everything, hand the computed rows to the prefix tree, and deliver the completion."""
        if reason in ("cancelled", "timeout"):
            self.text.update(self.answer, final=True)
        self._give_rows(store)
        self.admitted.release(store)
        self.timings.total = self._milliseconds(time.perf_counter())
        self.usage.completion_tokens = len(self.answer)
        completion = Completion(
            text="",  # `AnswerText` adds it
            tokens=None if self.text.stream.stopped else tuple(self.answer),
            finish_reason=reason,
            usage=self.usage,
            modules=self.modules,
            timings=self.timings,
            exact=self.admitted.is_exact,
            logits=torch.cat(self.forced_logits) if self.forced_logits else None,
            logprobs=tuple(self.logprobs[: len(self.answer)]),  # without the stop token's
        )
        self.text.end(completion)

    def fail(self, store: Store, error: CacheError) -> None:
        store.device.free(self.sequence.own)
        store.device.release_prefix(self.prefix)
        self.admitted.release(store)
        self.text.end(error)

    def _note_first_token(self, at: float) -> None:
        self.timings.ttft = self._milliseconds(at)
        self.timings.prefill = self.timings.ttft - self.timings.queue - self.timings.load

    def _milliseconds(self, at: float) -> float:
        return (at - self.admitted.submitted) * 1e3

    def _append(self, token: int) -> FinishReason | None:
        if token in self.stop_tokens:
            return "stop"
        self.answer.append(token)
        if (reason := self._why_over()) is None:
            self.sequence.append(token)
        return reason

    def _why_over(self) -> FinishReason | None:
        if self.sampler.sampling.ends_loops and loop_length(self.answer):
            return "repeated"
        return "length" if len(self.answer) >= self.most_tokens else None

    def _give_rows(self, store: Store) -> None:
        """Hand computed rows to the prefix tree if other requests may reuse them, and free the slots after them."""
        own, computed = self.sequence.own, self.sequence.computed
        store.device.free(part_of(own, computed, total_length(own)))
        if not self.keeps_rows:
            store.device.free(part_of(own, 0, computed))
        else:
            store.device.put_prefix(self.prefix, self._computed_steps(store), self.admitted.request.session)
        store.device.release_prefix(self.prefix)
        self.prefix, self.sequence, self.fresh = (
            store.device.prefixes.root(self.admitted.request.tenant),
            Sequence([], []),
            [],
        )

    def _computed_steps(self, store: Store) -> Iterator[tuple[PathStep, list[Extent]]]:
        """Return the computed part of `fresh`, with its rows. Modules are included only if computed rows follow."""
        sequence = self.sequence
        for index, (step, row) in enumerate(self.fresh):
            if step.key is not None:
                if any(0 <= r < sequence.computed for _, r in self.fresh[index + 1 :]):
                    yield step, []
                continue
            is_last = index == len(self.fresh) - 1  # generated tokens continue the last step
            end = sequence.computed if is_last else min(row + len(step.tokens), sequence.computed)
            if end > row:
                tokens = tuple(sequence.tokens[row:end])
                sources = self.admitted.sources_of(step.start, step.start + len(tokens), store)
                yield PathStep(start=step.start, tokens=tokens, sources=sources), part_of(sequence.own, row, end)


def admit(waiting: Waiting, store: Store, model: Model, spare: int, texts: TextDelivery) -> Running:
    """Start a request whose modules are all found. texts: makes its text, unless the answer has stop strings, which the
    engine must check before its next pass. Raises the errors of `place`.
    """
    request, plan = waiting.request, waiting.plan
    sampler, stop = Sampler(request.sampling), request.sampling.stop
    stream = TextStream(model.tokenizer, stop)
    behind, answer = (*request.begun, *request.teacher_forced[:-1]), [*request.begun]
    prefix, sequence, fresh = place(waiting, store, spare, behind=behind)
    usage = count_usage(waiting, prefix, len(sequence.tokens) - len(behind))
    if answer:
        sampler.skip(len(answer))
        stream.resume(answer, request.delivered)
    waiting.generation.tokens = request.begun
    store.device.count_prefix_use(prefix)
    store.device.count_use(waiting.found)
    return Running(
        admitted=waiting,
        prefix=prefix,
        sequence=sequence,
        fresh=fresh,
        usage=usage,
        modules=tuple(module_uses(waiting)),
        timings=Timings(queue=(waiting.picked_up - waiting.submitted) * 1e3, load=waiting.loading * 1e3),
        most_tokens=max(1, min(request.sampling.max_tokens, model.info.max_positions - plan.next_position)),
        stop_tokens=model.info.stop_tokens,
        sampler=sampler,
        text=AnswerText(stream, waiting.generation, TextDelivery() if stop else texts),
        answer=answer,
        keeps_rows=request.reuse != "off",
    )


def place(
    waiting: Waiting, store: Store, spare: int, answer: Collection[int] = (), *, behind: Collection[int] = ()
) -> tuple[PrefixNode, Sequence, list[tuple[PathStep, int]]]:
    """Return the pinned prefix of a request, its sequence with slots, and the steps of `Running.fresh`. answer:
    generated tokens of a resumed answer. behind: tokens appended after these, not searched in the cache. spare: slots
    that must remain for other requests. Raises CapacityError.
    """
    request, (*earlier, end) = waiting.request, waiting.plan.spans
    spans = [*earlier, replace(end, tokens=(*end.tokens, *answer))]
    path = path_of(spans, waiting.entries)
    last = path[-1]  # its last token is computed in any case: generation starts from its logits
    reusable = [] if request.reuse == "off" else [*path[:-1], last.cut(0, len(last.tokens) - 1)]
    prefix = store.device.pin_prefix(request.tenant, reusable)
    sequence, fresh = build_sequence(spans, path, waiting.entries, prefix)
    sequence.arrived = waiting.submitted
    for token in behind:
        sequence.append(token)
    try:
        sequence.own = store.device.reserve_rows(len(sequence.tokens), spare)
    except CapacityError:
        store.device.release_prefix(prefix)
        raise
    return prefix, sequence, fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedPass:
    """The input of a model's pass. outputs: packed rows whose logits are needed. rows_of: each sequence's slice of
    `outputs`. scored: chunks whose attention is scored.
    """

    chunks: list[Chunk]
    outputs: list[int]
    rows_of: dict[Sequence, slice]
    scored: list[ScoredChunk]
    num_rows: int


def pack_pass(
    scheduled: Mapping[Sequence, int], num_outputs: Mapping[Sequence, int], scorings: Mapping[Sequence, RowScoring]
) -> PackedPass:
    """Pack rows by sequence. num_outputs: last rows per sequence that need logits. scorings: one for each scored
    sequence.
    """
    outputs: list[int] = []
    rows_of: dict[Sequence, slice] = {}
    num_rows = 0
    for sequence, rows in scheduled.items():
        num_rows += rows
        rows_behind = sequence.pending - rows
        wanted = min(rows, num_outputs.get(sequence, 0) - rows_behind)
        if wanted > 0:
            rows_of[sequence] = slice(len(outputs), len(outputs) + wanted)
            outputs.extend(range(num_rows - wanted, num_rows))
    return PackedPass(
        chunks=[sequence.chunk(rows) for sequence, rows in scheduled.items()],
        outputs=outputs,
        rows_of=rows_of,
        scored=[scorings[s].scored(i, rows) for i, (s, rows) in enumerate(scheduled.items()) if s in scorings],
        num_rows=num_rows,
    )


def next_tokens(
    logits: Tensor, rows: Mapping[Running, int], to_host: ToHost, note_shortage: Callable[[str], object]
) -> dict[Running, list[int] | Exception]:
    """Return the next token of each answer, in a list of one, or its error. logits: float32 `[N, vocabulary]`. rows:
    each answer's row, ascending. note_shortage: called with the reason when device memory runs out; then tokens are
    chosen on the host.
    """
    if not rows:
        return {}
    samplers, answers = [one.sampler for one in rows], [one.answer for one in rows]
    drawn, shortage = [sampler.num_drawn for sampler in samplers], ""
    try:
        tokens = choose_tokens(rows_of(logits, [*rows.values()]), samplers, answers, to_host)
        for (one, row), token in zip(rows.items(), tokens, strict=True):
            if (most := one.sampler.sampling.logprobs) is not None:
                one.logprobs.append(TokenLogprob.of(token, logits[row], most))
        return {one: [token] for one, token in zip(rows, tokens, strict=True)}
    except Exception as error:
        if is_shortage(error):
            shortage = str(error)
        elif len(rows) == 1:
            return dict.fromkeys(rows, error)
    for sampler, before in zip(samplers, drawn, strict=True):
        if sampler.num_drawn > before:
            sampler.draw_again()
    if shortage:
        note_shortage(shortage)
        logits, to_host = logits.cpu(), Tensor.cpu
    alone = (next_tokens(logits, {one: row}, to_host, note_shortage) for one, row in rows.items())
    return {one: token for found in alone for one, token in found.items()}
