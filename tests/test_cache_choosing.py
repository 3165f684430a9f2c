"""Tokens of many answers chosen together: each as if it were alone, and as a plain reference chooses it."""

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.decoding.choosing import FEW_TOKENS, UNSURE, Draw, choose_tokens, find_tokens
from cache.decoding.sampling import Sampler, Sampling

SIZE = 40
GIVEN = (1, 2, 39)


def weights_of(logits: torch.Tensor, sampling: Sampling, answer: Sequence[int]) -> torch.Tensor:
    """The distribution that a token is drawn from, float64 `[V]`, in the plainest way."""
    logits = logits.double().clone()
    if len(answer) < len(sampling.given):
        return torch.nn.functional.one_hot(torch.tensor(sampling.given[len(answer)]), len(logits)).double()
    if answer:
        for token in set(answer):
            penalty = sampling.repetition_penalty
            logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
            logits[token] -= sampling.presence_penalty + answer.count(token) * sampling.frequency_penalty
    elif sampling.opening is not None:
        logits[sampling.opening[0]] += sampling.opening[1]
    for token, value in sampling.logit_bias:
        logits[token] += value
    if sampling.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).double()
    probabilities, ids = (logits / sampling.temperature).softmax(-1).sort(descending=True, stable=True)
    if sampling.top_k:
        probabilities[sampling.top_k :] = 0
    probabilities[probabilities < sampling.min_p * probabilities[0]] = 0
    probabilities /= probabilities.sum()
    probabilities[probabilities.cumsum(-1) - probabilities >= sampling.top_p] = 0
    return torch.zeros_like(logits).scatter(0, ids, probabilities)


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 4.0]),
    top_k=st.sampled_from([0, 0, 1, 5, 39, 40, 99]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.5, 1e-6]),
    min_p=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 1.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    logit_bias=st.sampled_from([(), ((5, 9.0), (6, -100.0))]),
    seed=st.integers(0, 5),
    given=st.sampled_from([(), (), GIVEN]),
    opening=st.sampled_from([None, (3, 4.0)]),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(samplings, min_size=1, max_size=6), st.integers(0, 100))
def test_a_batch_chooses_what_each_would_alone_and_only_what_may_be_chosen(many, seed):
    rng = random.Random(seed)
    logits = torch.randn(len(many), SIZE, generator=torch.Generator().manual_seed(seed)) * 3
    before = logits.clone()
    answers = [() if rng.random() < 0.3 else tuple(rng.choices(range(SIZE), k=rng.choice([1, 3]))) for _ in many]
    chosen = choose_tokens(logits, [Sampler(one) for one in many], answers)
    for row, (sampling, answer, token) in enumerate(zip(many, answers, chosen, strict=True)):
        assert choose_tokens(logits[row : row + 1], [Sampler(sampling)], [answer]) == [token]
        assert weights_of(logits[row], sampling, answer)[token] > 0
    assert torch.equal(logits, before)


def test_tokens_come_as_often_as_they_should():
    """In each of several ways, beside answers that are chosen in the others."""
    ways = [
        Sampling(),
        *(
            Sampling(**{"temperature": 1.0, "seed": 1, **options})  # type: ignore[arg-type]
            for options in (
                {},
                {"top_k": 6},
                {"top_p": 0.8},
                {"top_k": 12, "top_p": 0.6},
                {"min_p": 0.2},
                {"min_p": 0.1, "top_p": 0.7, "logit_bias": ((3, 1.5),)},
                {"temperature": 3.0, "top_p": 0.95},
                {"given": GIVEN},
                {"opening": (3, 2.0)},
            )
        ),
    ]
    logits = torch.randn(1, SIZE, generator=torch.Generator().manual_seed(3)).expand(len(ways), SIZE)
    samplers, count = [Sampler(way) for way in ways], 1000
    found = torch.zeros(len(ways), SIZE, dtype=torch.float64)
    for _ in range(count):
        found[range(len(ways)), choose_tokens(logits, samplers, [()] * len(ways))] += 1 / count
    for way, often in zip(ways, found, strict=True):
        expected = weights_of(logits[0], way, ())
        assert (often - expected / expected.sum()).abs().max() < 0.04, way


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 9.0])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.95, 0.9999])
def test_the_likeliest_tokens_are_those_of_a_full_sort(spread, share):
    """Few of them or, where all are about as likely, many: more than are looked at first."""
    logits = torch.randn(1, 6000, generator=torch.Generator().manual_seed(0)) * spread
    weights = weights_of(logits[0], Sampling(temperature=1, top_p=share), ())
    assert spread or share < 0.5 or int((weights > 0).sum()) > FEW_TOKENS[0]
    sampler = Sampler(Sampling(temperature=1, top_p=share, seed=0))
    chosen = [choose_tokens(logits, [sampler], [()])[0] for _ in range(60)]
    least = float(weights[weights > 0].min())
    probabilities = logits[0].double().softmax(-1)
    assert all(float(probabilities[token]) >= least * 0.999999 for token in chosen)
    if int((weights > 0).sum()) > 1:
        assert len(set(chosen)) > 1


@pytest.mark.parametrize("size", [512, 700])
def test_a_token_of_the_whole_vocabulary_is_that_of_the_cumulative_distribution(size):
    logits = torch.randn(1, size, generator=torch.Generator().manual_seed(0)) * 2
    sums = logits[0].double().softmax(-1).cumsum(-1)
    numbers = [n / 101 for n in range(101)]
    draws = [Draw(0, Sampling(temperature=1), (), number) for number in numbers]
    _, found = find_tokens(logits.expand(len(draws), size), draws, 1)
    assert found.tolist() == [int((sums <= number).sum()) for number in numbers]


def test_nothing_beyond_the_last_token_is_chosen():
    for options in ({}, {"top_k": 3}, {"top_p": 0.9}):
        sampler = Sampler(Sampling(temperature=1, **options))  # type: ignore[arg-type]
        sampler.draw = lambda: 1 - 2**-53  # type: ignore[method-assign]
        assert 0 <= choose_tokens(torch.zeros(1, SIZE), [sampler], [()])[0] < SIZE


@settings(max_examples=50, deadline=None)
@given(st.lists(samplings, min_size=1, max_size=6))
def test_choosing_reads_nothing_from_the_device(many):
    """Shown on one whose tensors have no values; the result is copied back once."""
    draws = [Draw(row, one, (), 0.5) for row, one in enumerate(many)]
    ordered, found = find_tokens(torch.empty(len(many), SIZE, device="meta"), draws, 7)
    assert sorted(draw.row for draw in ordered) == [*range(len(many))]
    assert found.device.type == "meta"
    assert found.shape == (len(many),)


def test_a_token_is_unsure_only_while_the_share_may_be_larger():
    logits = torch.zeros(1, SIZE)
    sampling = Sampling(temperature=1, top_p=0.5)
    for most, is_sure in ((1, False), (19, False), (22, True), (SIZE, True)):
        _, found = find_tokens(logits, [Draw(0, sampling, (), 0.99)], most)
        assert (found.item() != UNSURE) is is_sure
