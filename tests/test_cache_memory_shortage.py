"""Device memory that runs out in a pass: the pass is tried again in smaller ones, and answers stay as they are."""

import gc
import logging
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
import torch
from test_cache_engine import QUESTION, SYSTEM, A, B, plan_of
from test_cache_failed_passes import POISON, still_serves
from test_cache_priority import a_core, ask
from tiny import build, make_segment
from torch import Tensor

from cache.decoding.choosing import choose_tokens
from cache.decoding.sampling import Sampler, Sampling
from cache.engine.device_memory import PATIENCE, RowLimit
from cache.engine.engine import Engine
from cache.engine.recomputation import SelectiveRecomputation
from cache.engine.request import Completion, Generation, Request
from cache.engine.scheduler import MOST_ROWS
from cache.engine.scheduler import Sequence as Run
from cache.engine.waiting import RowScoring
from cache.errors import CapacityError, is_shortage

CPU = torch.device("cpu")
PAGES = [make_segment(f"page {n}", f"Page {n}: " + "returns wait. " * n, SYSTEM) for n in range(4)]


def short_of_memory(model: Any, monkeypatch: pytest.MonkeyPatch, fails: Callable[[list[int]], bool]) -> None:
    forward, layers = model.forward, model.info.kv.layers

    def forward_short(chunks: Any, arena: Any, outputs: Any, give_up: Callable[[], bool], scored: Any) -> Tensor:
        is_short, asked = fails([token for chunk in chunks for token in chunk.tokens]), count(1)

        def at_layer() -> bool:
            if is_short and next(asked) == layers:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
            return give_up()

        logits: Tensor = forward(chunks, arena, outputs, at_layer, scored)
        if is_short:  # it was computed for its scores alone, and ended before
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return logits

    monkeypatch.setattr(model, "forward", forward_short)


def ask_all(engine: Engine, **sampling: Any) -> list[Generation]:
    """Questions behind modules that are there, and those that are not, one of them recomputed where it is looked at."""
    requests = [
        Request(plan=plan_of(SYSTEM, page, A, f"{n}. {QUESTION}"), sampling=Sampling(max_tokens=6, **sampling))
        for n, page in enumerate(PAGES)
    ]
    looked_at = Request(
        plan=plan_of(SYSTEM, A, B, QUESTION),
        recomputation=SelectiveRecomputation(share=0.3),
        sampling=Sampling(max_tokens=9, **sampling),
    )
    return [engine.submit(request) for request in (*requests, looked_at)]


def ends(asked: list[Generation]) -> list[tuple[object, ...]]:
    return [(one.completion.tokens, one.completion.text, one.completion.finish_reason) for one in asked]


@pytest.fixture(scope="module")
def expected():
    engine = Engine(build(), memory=4 << 20).start()
    found = ends(ask_all(engine))
    engine.close()
    return found


@pytest.mark.parametrize("most", [1, 40])
def test_answers_are_the_same_in_passes_that_fit(most, engine, expected, monkeypatch, caplog):
    short_of_memory(engine.model, monkeypatch, lambda tokens: len(tokens) > most)
    with caplog.at_level(logging.WARNING):
        assert ends(ask_all(engine)) == expected
    assert engine.num_shortages == len([r for r in caplog.records if "device memory ran out" in r.message]) > 0
    assert engine.num_restarts == 0
    monkeypatch.undo()
    still_serves(engine)


def test_what_fails_alone_ends_with_the_cure(engine, monkeypatch):
    short_of_memory(engine.model, monkeypatch, lambda tokens: ord(POISON) in tokens)
    bad = engine.submit(Request(plan=plan_of(SYSTEM, A, f"What is {POISON}?")))
    module = engine.encode([make_segment("bad", f"This is {POISON}.", SYSTEM), B])
    good = ask_all(engine)
    with pytest.raises(CapacityError, match=r"^the device has no memory left for passes, .* lower device_memory"):
        _ = bad.completion
    assert [str(error) for error in module.result(timeout=20).failed.values()] == [str(bad._end)]
    assert all(isinstance(one.completion, Completion) for one in good)
    monkeypatch.undo()
    still_serves(engine)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "top_k": 9, "seed": 3}])
@pytest.mark.parametrize("has_drawn", [False, True])
def test_tokens_are_chosen_in_parts(sampling, has_drawn, engine, monkeypatch):
    """The same random numbers choose them, whether they were drawn before memory ran out or not."""
    without = ends(ask_all(engine, **sampling))
    choose = choose_tokens

    def choose_few(logits: Tensor, samplers: Sequence[Sampler], *others: Any) -> list[int]:
        if len(samplers) > 1:
            for sampler in samplers:
                if has_drawn and sampler.sampling.temperature:
                    sampler.draw()
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return choose(logits, samplers, *others)

    monkeypatch.setattr("cache.engine.running.choose_tokens", choose_few)
    assert ends(ask_all(engine, **sampling)) == without
    assert engine.num_shortages > 0


def test_a_scored_pass_that_failed_halfway_adds_nothing(monkeypatch):
    """Its squares of some layers were added already."""
    found: list[list[Tensor]] = []
    scores = RowScoring.scores

    def noted(scoring: RowScoring) -> list[Tensor]:
        found.append(scores(scoring))
        return found[-1]

    monkeypatch.setattr(RowScoring, "scores", noted)
    for most in (MOST_ROWS, 9):
        core = a_core()
        writing = ask(core, A, B, tokens=60)
        while not core._running:
            core.step()
        with monkeypatch.context() as patched:
            short_of_memory(core.model, patched, lambda tokens: len(tokens) > most)  # noqa: B023
            ask(core, A, B, tokens=2, question=QUESTION, recomputation=SelectiveRecomputation(share=0.3))
            while core.has_work:
                core.step()
        assert writing.completion.tokens
        assert (core._row_limit.num_shortages > 0) == (most == 9)
    one, other = found
    assert all(torch.allclose(a, b, rtol=1e-4) for a, b in zip(one, other, strict=True))


def test_scores_that_find_no_memory_end_their_answer_alone(engine, monkeypatch):
    """Was wrong once: it kept the rows and the prefix that it had taken."""
    ends(ask_all(engine))
    zeros = torch.zeros

    def full(*shape: Any, **named: Any) -> Tensor:
        if len(shape) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return zeros(*shape, **named)

    monkeypatch.setattr("cache.engine.waiting.torch.zeros", full)
    *others, looked_at = ask_all(engine)
    with pytest.raises(CapacityError, match="the device has no memory left"):
        _ = looked_at.completion
    assert all(one.completion.text for one in others)
    monkeypatch.undo()
    still_serves(engine)


def runs(number: int, tokens: int = 1) -> list[Run]:
    return [Run([0] * tokens, [*range(tokens)]) for _ in range(number)]


def test_nobody_is_left_out_for_long():
    limit, many = RowLimit(CPU), runs(7)
    limit.note_shortage(6, "")
    passes = [[*limit.fit(dict.fromkeys(many, 1))] for _ in range(9)]
    for three in zip(passes, passes[1:], passes[2:], strict=False):
        assert {one for fitting in three for one in fitting} == {*many}
    assert all(fitting == [one for one in many if one in fitting] for fitting in passes), "in the order of scheduling"


def test_a_prompt_is_cut_to_what_fits():
    limit, (prompt, answer) = RowLimit(CPU), runs(2, 100)
    assert limit.fit({answer: 1, prompt: 99}) == {answer: 1, prompt: 99}
    limit.note_shortage(100, "")
    assert limit.fit({answer: 1, prompt: 99}) == {answer: 1, prompt: 49}
    assert limit.fit({answer: 1, prompt: 50}) == {answer: 1, prompt: 49}


def test_passes_grow_again_slowly_when_all_they_may_have_went_well():
    limit = RowLimit(CPU)
    limit.note_shortage(16, "")
    for _ in range(PATIENCE - 1):
        limit.attempt(8, lambda: 1)
        limit.attempt(7, lambda: 1)
    assert limit.most == 8
    assert limit.attempt(8, lambda: 1) == 1
    assert limit.most == 10
    limit.note_shortage(10, "")
    assert limit.most == 5
    for _ in range(100 * PATIENCE):
        limit.attempt(limit.most, lambda: 1)
    assert limit.most == MOST_ROWS
    limit.note_shortage(1, "")
    assert limit.most == 1


def test_the_memory_of_the_pass_is_free_before_smaller_ones_begin(monkeypatch):
    """The error holds the frames of the pass, and with them what they allocated: nothing could be given back."""

    class Activations:
        """Memory of a pass."""

    alive: list[weakref.ref[Activations]] = []
    emptied: list[object] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(alive[-1]()))

    def compute() -> None:
        activations = Activations()
        alive.append(weakref.ref(activations))
        raise torch.OutOfMemoryError

    gc.disable()
    try:
        assert RowLimit(torch.device("cuda:0")).attempt(2, compute) is None
    finally:
        gc.enable()
    assert emptied == [None]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of range"), False),
    ],
)
def test_what_says_that_memory_has_run_out(error, expected):
    assert is_shortage(error) == expected
