"""Answers kept to a set of choices: what can be said, and what decides it."""

import math
from collections.abc import Iterator
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import running
from test_cache_sampling import choose
from tiny import build

from cache.decoding.constraints import Choice, Choices
from cache.decoding.sampling import Sampler, Sampling
from cache.engine.request import Request
from cache.prompt.plan import Plan, Span

STOP = 9
VOCABULARY = 10
FLAT = torch.zeros(VOCABULARY)
tokens = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)


@st.composite
def sets_of_choices(draw: st.DrawFn) -> Choices:
    """A few choices of few different tokens, so that beginnings, joins and choices are often the same."""
    first = draw(st.lists(tokens, min_size=1, max_size=5, unique=True))
    behind = draw(st.lists(tokens, min_size=len(first), max_size=len(first), unique=True))
    return Choices(
        choices=tuple(
            Choice(tokens=one, behind=other, prior=draw(st.floats(-4, 4)))
            for one, other in zip(first, behind, strict=True)
        ),
        stop=STOP,
        most=draw(st.integers(1, 3)),
    )


def answers(choices: Choices) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every answer, its stop token included, with the log-weight of the process `Choices.allowed` describes, by
    drawing choices one after another; an answer that can be read in two ways comes twice.
    """
    everything = max(choice.prior for choice in choices.choices)
    for number in range(1, choices.most + 1):
        for said in permutations(choices.choices, number):
            is_last = number in (choices.most, len(choices.choices))
            first, *others = said
            text = first.tokens + tuple(t for c in others for t in c.behind or c.tokens) + (STOP,)
            ending = 0.0 if is_last else max(choice.prior for choice in said) - everything
            yield text, sum(choice.prior - everything for choice in said) + ending


def said(choices: Choices, logits: Iterator[torch.Tensor], **options: float) -> tuple[int, ...]:
    sampler, answer = Sampler(Sampling(choices=choices, seed=0, **options)), list[int]()  # type: ignore[arg-type]
    while not answer or answer[-1] != STOP:
        answer.append(choose(sampler, next(logits), answer))
        assert len(answer) <= choices.longest
    return tuple(answer)


def always(logits: torch.Tensor) -> Iterator[torch.Tensor]:
    while True:
        yield logits


def random_logits(seed: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(VOCABULARY, generator=generator) * 30


@settings(max_examples=100, deadline=None)
@given(sets_of_choices(), st.integers(0, 2**32), st.sampled_from([0.0, 1.0]))
def test_an_answer_is_whole_choices_without_repeat_whatever_the_logits(choices, seed, temperature):
    answer = said(choices, random_logits(seed), temperature=temperature, repetition_penalty=2.0)
    assert answer in {text for text, _ in answers(choices)}


@settings(max_examples=100, deadline=None)
@given(sets_of_choices())
def test_weights_are_those_of_the_whole_set_of_answers(choices):
    every = list(answers(choices))
    assert max(len(text) for text, _ in every) <= choices.longest
    for begun in {text[:length] for text, _ in every for length in range(len(text))}:
        expected: dict[int, list[float]] = {}
        for text, weight in every:
            if text[: len(begun)] == begun:
                expected.setdefault(text[len(begun)], []).append(weight)
        best = max(weight for weights in expected.values() for weight in weights)
        assert choices.allowed(begun) == pytest.approx({t: max(w) - best for t, w in expected.items()}, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(sets_of_choices(), st.integers(0, 99))
def test_forced_tokens_are_those_without_alternative(choices, seed):
    whole = said(choices, random_logits(seed))
    for length in range(len(whole)):
        expected = []
        for end in range(length, len(whole)):
            if len(choices.allowed(whole[:end])) > 1:
                break
            expected.append(whole[end])
        assert list(choices.forced(whole[:length])) == expected


def test_a_choice_may_begin_another_one():
    short, long = Choice(tokens=(1, 2)), Choice(tokens=(1, 2, 3), behind=(5, 1, 2, 3))
    choices = Choices(choices=(short, long), stop=STOP)
    assert set(choices.allowed([1, 2])) == {STOP, 3, 5}
    assert set(choices.allowed([1, 2, 3])) == {STOP, 1}
    assert set(choices.allowed([1, 2, 5, 1, 2])) == {3}
    assert choices.allowed([1, 2, 5, 1, 2, 3]) == {STOP: 0.0}
    choices = Choices(choices=(Choice(tokens=(1, 2)),), stop=STOP)
    assert choices.allowed([2]) == choices.allowed([1, 2, 1]) == {STOP: 0.0}


def test_priors_alone_decide_where_the_logits_are_flat():
    """The best choice shares no word; those that share one would weigh more together."""
    choices = (Choice(tokens=(1, 2), prior=1.0), Choice(tokens=(3, 4), prior=0.9), Choice(tokens=(3, 5), prior=0.8))
    assert said(Choices(choices=choices, stop=STOP, most=1), always(FLAT)) == (1, 2, STOP)


@pytest.mark.parametrize("wanted", [(1, 2), (1, 3), (4, 2)])
def test_the_model_decides_where_the_priors_are_flat(wanted):
    """Also against the likeliest token of all, which no choice has here."""
    choices = Choices(choices=tuple(Choice(tokens=t) for t in [(1, 2), (1, 3), (4, 2)]), stop=STOP, most=1)
    logits = FLAT.clone()
    logits[list(wanted)] = 1.0
    logits[7] = 50.0
    assert said(choices, always(logits)) == (*wanted, STOP)


def test_a_token_without_alternative_takes_no_random_number():
    choices = Choices(choices=(Choice(tokens=(1,) * 20 + (2,)), Choice(tokens=(1,) * 20 + (3,))), stop=STOP, most=1)
    one, other = (Sampler(Sampling(choices=choices, temperature=1, seed=5)) for _ in range(2))
    for length in range(20):
        assert choose(one, FLAT, [1] * length) == 1
    draws = [[choose(sampler, FLAT, [1] * 20) for _ in range(20)] for sampler in (one, other)]
    assert draws[0] == draws[1]


def test_a_second_choice_must_be_worth_more_than_to_say_the_first_again():
    choices = tuple(Choice(tokens=(number,), prior=-float(number)) for number in (1, 2, 3))
    weights = Choices(choices=choices, stop=STOP).allowed([1])
    assert weights == {2: -1.0, 3: -2.0, STOP: 0.0}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Choice(tokens=()), "a choice has no tokens"),
        (lambda: Choice(tokens=(1,), behind=()), "no tokens"),
        (lambda: Choice(tokens=(1,), prior=math.inf), "prior is inf"),
        (lambda: Choice(tokens=(1,), prior=math.nan), "prior is nan"),
        (lambda: Choices(choices=(), stop=STOP), "no choices"),
        (lambda: Choices(choices=(Choice(tokens=(1,)),), stop=STOP, most=0), "most is 0"),
        (lambda: Choices(choices=(Choice(tokens=(1, STOP)),), stop=STOP), "holds the stop token 9"),
        (lambda: Choices(choices=(Choice(tokens=(1,), behind=(STOP,)),), stop=STOP), "holds the stop token 9"),
        (lambda: Choices(choices=(Choice(tokens=(1,)), Choice(tokens=(1,), behind=(2,))), stop=STOP), "0 and 1"),
        (lambda: Choices(choices=(Choice(tokens=(1,)), Choice(tokens=(2,), behind=(1,))), stop=STOP), "0 and 1"),
    ],
)
def test_what_makes_no_answers_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


SENTENCES = [
    "Returns take 30 days from delivery for all orders.",
    "Returns take 30 days from delivery for all gift cards.",
    "Shipping costs 4.95 within the country and 14.95 abroad.",
]


def by_bytes(texts: list[str]) -> Choices:
    return Choices(
        choices=tuple(Choice(tokens=tuple(text.encode()), behind=tuple(b" " + text.encode())) for text in texts),
        stop=299,
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_engine_says_choices_only(temperature):
    choices = by_bytes(SENTENCES)
    possible = {*SENTENCES, *(" ".join(pair) for pair in permutations(SENTENCES, 2))}
    plan = Plan(spans=(Span(start=0, tokens=tuple(b"How long do returns take?")),))
    with running(build()) as engine:
        for seed in range(4):
            sampling = Sampling(
                max_tokens=choices.longest, temperature=temperature, repetition_penalty=1.5, seed=seed, choices=choices
            )
            completion = engine.submit(Request(plan=plan, sampling=sampling)).completion
            assert completion.finish_reason == "stop"
            assert completion.text in possible


@pytest.mark.parametrize(("enough", "said"), [(-9.0, 3), (-1.5, 2), (9.0, 1)])
def test_an_answer_goes_on_as_long_as_there_is_something_worth_it(enough, said):
    """Three choices of priors 0, -1 and -2: the next one is said if it weighs more than saying no more."""
    choices = Choices(
        choices=tuple(Choice(tokens=(n + 1,), prior=-float(n)) for n in range(3)), stop=0, most=3, enough=enough
    )
    answer: list[int] = []
    while not answer or answer[-1]:
        allowed = choices.allowed(answer)
        answer.append(max(allowed, key=lambda token: allowed[token]))
    assert answer == [*range(1, said + 1), 0]
