"""Several tokens that compiled code chooses by itself are those of one pass for each token."""

from dataclasses import replace

import pytest
from test_cache_engine import plan_of
from test_cache_native import SYSTEM, A, B, build, compiled, weights  # noqa: F401
from test_cache_priority import ask

from cache.attention.forward_pass import never
from cache.decoding.sampling import Sampling
from cache.engine import engine_core
from cache.engine.engine_core import EngineCore
from cache.engine.request import Generation, Request
from cache.engine.running import Running
from cache.engine.waiting import Waiting
from cache.memory.arena import Arena
from cache.memory.store import Store

TOKENS = 70  # more than the slots that an answer gets at a time


def core_of(hf, folder, *, decodes, ends=()):
    """An engine, and the tokens of each call that decoded, by step."""
    model, steps = build(hf, folder), []
    model.info = replace(model.info, stop_tokens=frozenset(ends))
    decode = model.native.decode
    model.native.decode = lambda *given: (steps.append(done := decode(*given)), done)[1]
    if not decodes:
        model.decode = lambda *given: None
    return EngineCore(model, Store(Arena(model.info.kv, 4000, model.device), "m", None), never), steps


def answers(core, tokens=TOKENS):
    """Two answers at the same time, one of them from moved modules, and the next answer after both and their texts."""
    asked = [
        ask(core, SYSTEM, A, tokens=tokens),
        ask(core, SYSTEM, B, A, question="And gift cards?", tokens=tokens // 2),
    ]
    while core.has_work:
        core.step()
    found = [one.completion for one in asked]
    plan = plan_of(SYSTEM, A, "What now?")
    *before, last = plan.spans
    longer = replace(plan, spans=(*before, replace(last, tokens=(*last.tokens, *found[0].tokens, 65))))
    later = Generation()
    core.inbox.append(Waiting(Request(plan=longer, sampling=Sampling(max_tokens=8)), later, 0.0))
    while core.has_work:
        core.step()
    return [*found, later.completion]


@pytest.fixture(scope="module")
def hf():
    return weights("llama")


@pytest.fixture(scope="module")
def one_by_one(hf, compiled):  # noqa: F811
    return answers(core_of(hf, compiled, decodes=False)[0])


@pytest.mark.parametrize("most", [2, 16])
def test_the_tokens_are_those_of_single_passes(hf, compiled, one_by_one, monkeypatch, most):  # noqa: F811
    monkeypatch.setattr(engine_core, "MOST_STEPS", most)
    monkeypatch.setattr(engine_core, "STEPS_S", 60.0)
    core, steps = core_of(hf, compiled, decodes=True)
    found = answers(core)
    assert [one.tokens for one in found] == [one.tokens for one in one_by_one]
    assert [one.usage for one in found] == [one.usage for one in one_by_one]
    assert found[2].usage.prefix >= TOKENS, "the rows of the answer were computed"
    assert max(map(len, steps)) == most


def test_a_stop_token_ends_an_answer_and_not_the_other(hf, compiled, one_by_one):  # noqa: F811
    end = next(token for token in one_by_one[0].tokens[5:] if token not in one_by_one[1].tokens)
    core, calls = core_of(hf, compiled, decodes=True, ends=[end])
    first, second, _ = answers(core)
    assert all(end not in tokens for steps in calls for tokens in steps[:-1]), "no step follows it"
    assert first.finish_reason == "stop"
    assert first.tokens == one_by_one[0].tokens[: one_by_one[0].tokens.index(end)]
    assert second.tokens == one_by_one[1].tokens


def test_tokens_after_the_end_of_a_loop_are_dropped(hf, compiled, monkeypatch):  # noqa: F811
    monkeypatch.setattr(engine_core, "STEPS_S", 60.0)
    why_over = Running._why_over
    monkeypatch.setattr(Running, "_why_over", lambda self: "repeated" if len(self.answer) == 30 else why_over(self))
    single, several = (answers(core_of(hf, compiled, decodes=decodes)[0]) for decodes in (False, True))
    assert several[0].finish_reason == "repeated"
    assert [(one.tokens, one.usage) for one in several] == [(one.tokens, one.usage) for one in single]


def test_it_ends_when_a_question_may_wait_no_longer(hf, compiled, one_by_one, monkeypatch):  # noqa: F811
    monkeypatch.setattr(engine_core, "STEPS_S", 0.0)
    core, steps = core_of(hf, compiled, decodes=True)
    assert [one.tokens for one in answers(core)] == [one.tokens for one in one_by_one]
    assert {*map(len, steps)} == {1}


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "seed": 1},
        {"logit_bias": ((1, 1.0),)},
        {"presence_penalty": 1.0},
        {"stop": ("zz",)},
        {"opening": (65, 1.0)},
    ],
)
def test_choices_of_the_engine_stay_its_own(sampling):
    assert not Sampling(**sampling).is_greedy(first=True)
    assert Sampling().is_greedy(first=True)
    assert Sampling(opening=(65, 1.0)).is_greedy(first=False)
