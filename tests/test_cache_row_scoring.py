"""Scores of a question as scheduled work: in passes with others, in chunks, given up, failed. One step at a time."""

import random
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from test_cache_priority import a_core, ask, run
from tiny import make_segment

from cache.engine.engine_core import EngineCore, ForgetJob
from cache.engine.recomputation import SelectiveRecomputation
from cache.engine.request import Generation
from cache.engine.running import PAGE
from cache.engine.scheduler import LEAST_ROWS
from cache.engine.waiting import RowScoring, Waiting
from cache.errors import CacheError
from cache.memory.keys import PUBLIC_TENANT

FIRST, SECOND = make_segment("first", "f" * 100), make_segment("second", "Gift cards cannot be returned. " * 5)
BALANCED = SelectiveRecomputation(share=0.2)


def ask_balanced(core: EngineCore, question: str = "What now?") -> Generation:
    return ask(core, FIRST, SECOND, question=question, recomputation=BALANCED)


def warm(core: EngineCore) -> None:
    ask(core, FIRST, SECOND)
    run(core)


def passes_of(core: EngineCore) -> list[tuple[list[int], int]]:
    """Of every pass from now on: the rows of its chunks, and how many of these are scored."""
    forward, passes = core.model.forward, []

    def recording(*given: Any) -> torch.Tensor:
        passes.append(([len(chunk.tokens) for chunk in given[0]], sum(one.rows for one in given[4])))
        return forward(*given)

    core.model.forward = recording  # type: ignore[method-assign]
    return passes


def scorings(core: EngineCore) -> list[RowScoring]:
    return [*core._scorings().values()]


def test_a_question_is_scored_beside_an_answer_that_is_written():
    """Was wrong once: it was scored in a pass of its own, and every answer waited for it."""
    core = a_core(layers=3)
    warm(core)
    answer = ask(core, FIRST, tokens=20)
    core.step()
    passes = passes_of(core)
    balanced = ask_balanced(core)
    run(core)
    question = len("What now?")
    assert passes[0] == ([1, question], question)
    assert all(rows[0] == 1 for rows, _ in passes[:5]), "the answer gets a token in each of them"
    assert answer.completion.usage.completion_tokens == 20
    assert balanced.completion.usage.recomputed == round(0.2 * len(SECOND.tokens))
    core.store.check_integrity()


def test_a_long_question_is_scored_in_several_passes():
    question, selected = "Can I return a gift card? " * 8, []
    for row_seconds in (1e-6, 1.0):  # passes are as long as they get, and as short
        core = a_core(layers=3)
        warm(core)
        core.store.compute_cost.mean = row_seconds
        passes = passes_of(core)
        balanced = ask_balanced(core, question)
        waiting = core.inbox[0]
        assert isinstance(waiting, Waiting)
        run(core)
        scored = [count for _, count in passes if count]
        assert sum(scored) == len(question)
        assert max(scored) == (len(question) if row_seconds < 1 else LEAST_ROWS)
        assert balanced.completion.usage.recomputed == round(0.2 * len(SECOND.tokens))
        selected.append(waiting.plan)
    assert selected[0] == selected[1]


def test_cancelling_a_question_that_is_scored_gives_everything_back():
    core = a_core(layers=3)
    warm(core)
    balanced = ask_balanced(core)
    core.model.forward = lambda *given: pytest.fail("nothing is to be computed")  # type: ignore[method-assign, assignment]
    core._take_in()
    core._admit()
    assert len(scorings(core)) == 1
    balanced.cancel()
    core.step()
    assert not core.has_work
    core.store.check_integrity()


def test_what_is_forgotten_while_it_is_scored_is_scored_again():
    core = a_core(layers=3)
    warm(core)
    key = core.store.key(SECOND, PUBLIC_TENANT)
    job = ForgetJob(lambda store: frozenset({key}), Future())
    answer = ask(core, FIRST, tokens=3)
    core._take_in()
    core.inbox.append(job)
    core._take_in()  # it waits for the answer, not for what comes now
    balanced = ask_balanced(core)
    core._take_in()
    core._admit()
    (scoring,) = scorings(core)
    run(core)
    assert job.done.result() == 1
    assert answer.completion.usage.completion_tokens == 3
    assert balanced.completion.usage.recomputed == round(0.2 * len(SECOND.tokens))
    assert not scoring.sequence.pending or scoring not in scorings(core)
    core.store.check_integrity()


def test_a_scoring_that_fails_ends_its_question_alone():
    core = a_core(layers=3)
    warm(core)
    forward = core.model.forward

    def fragile(*given: Any) -> torch.Tensor:
        if any(one.rows for one in given[4]):
            raise RuntimeError("[enforce fail] can't allocate memory")
        return forward(*given)

    core.model.forward = fragile  # type: ignore[method-assign, assignment]
    answer, balanced = ask(core, FIRST, tokens=20), ask_balanced(core)
    run(core)
    assert answer.completion.usage.completion_tokens == 20
    with pytest.raises(CacheError, match=r"^the answer could not be computed: ask again \(the log has the cause\)$"):
        _ = balanced.completion
    core.store.check_integrity()


def test_an_answer_takes_the_memory_of_a_question_that_is_scored():
    core = a_core(layers=3, slots=100 + len(SECOND.tokens) + 350)
    warm(core)
    core.store.device.drop_prefixes(PUBLIC_TENANT)
    forward, letters = core.model.forward, random.Random(0)

    def spelling(*given: Any) -> torch.Tensor:
        logits = forward(*given)
        for row in logits:
            row[letters.randrange(97, 123)] = 1e6
        return logits

    core.model.forward = spelling  # type: ignore[method-assign]
    core.store.compute_cost.mean = 1.0  # so slow that a question takes five passes
    answer = ask(core, FIRST, SECOND, tokens=70)
    while core._running == [] or len(core._running[0].answer) < PAGE - 2:
        core.step()
    balanced = ask_balanced(core, "x" * 300)
    run(core)
    assert answer.completion.usage.completion_tokens == 70
    assert balanced.completion.usage.completion_tokens > 0
    core.store.check_integrity()
