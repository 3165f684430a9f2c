"""Choosing the next tokens of all answers of a pass together: few operations on the device, little copied back.

Tokens are drawn by the inverse of the cumulative distribution, with one random number of each request, so that what
else is in the batch changes nothing. Where only some tokens are allowed, these are a small vocabulary of their own.
Not covered: which tokens are allowed (`cache.decoding.constraints`).

Shape letters: N answers, V tokens of the vocabulary, K likeliest of them.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache.decoding.sampling import Sampler, Sampling

FEW_TOKENS = (256, 4096)
"""Tokens that mostly, and nearly always, hold the share that is sampled from. Sorting all of a vocabulary takes as long
as a pass through a small model, so the first few are tried first.
"""
Numbers = NDArray[np.float64]


def choose_tokens(logits: Tensor, samplers: Sequence[Sampler], answers: Sequence[Sequence[int]]) -> list[int]:
    """The next token of each answer. logits: float32 `[N, V]`, not changed. answers: their tokens so far."""
    allowed = [sampler.allowed(answer) for sampler, answer in zip(samplers, answers, strict=True)]
    chosen = [0] * len(samplers)
    free = [i for i, some in enumerate(allowed) if some is None]
    if free:
        scores = adjusted(rows_of(logits, free), [samplers[i] for i in free], [answers[i] for i in free])
        for i, token in zip(free, pick(scores, [samplers[i] for i in free]), strict=True):
            chosen[i] = token
    bound: list[int] = []
    for i, some in enumerate(allowed):
        if some is not None and len(some) == 1:
            (chosen[i],) = some  # without drawing a random number
        elif some is not None:
            bound.append(i)
    if bound:
        tokens, weights = padded([allowed[i] or {} for i in bound], logits.device)
        scores = rows_of(logits, bound).gather(1, tokens) + weights
        for i, index in zip(bound, pick(scores.cpu(), [samplers[i] for i in bound]), strict=True):
            chosen[i] = [*(allowed[i] or {})][index]
    return chosen


def rows_of(x: Tensor, rows: list[int]) -> Tensor:
    """Some rows of a tensor, ascending; no copy if these are all."""
    return x if len(rows) == len(x) else x[rows]


def padded(allowed: Sequence[Mapping[int, float]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Allowed tokens and their weights, `[N, most]` each; where an answer has fewer, the weight is minus infinity."""
    most = max(len(some) for some in allowed)
    tokens = [[*some, *[0] * (most - len(some))] for some in allowed]
    weights = [[*some.values(), *[float("-inf")] * (most - len(some))] for some in allowed]
    return torch.tensor(tokens, device=device), torch.tensor(weights, device=device)


def adjusted(logits: Tensor, samplers: Sequence[Sampler], answers: Sequence[Sequence[int]]) -> Tensor:
    """Logits `[N, V]` with the biases of openings and the penalties for what was said already."""
    biases: list[tuple[int, int, float]] = []
    penalties: list[tuple[int, int, float]] = []
    for row, (sampler, answer) in enumerate(zip(samplers, answers, strict=True)):
        sampling = sampler.sampling
        if sampling.opening is not None and not answer:
            biases.append((row, *sampling.opening))
        if sampling.repetition_penalty != 1:
            penalties += ((row, token, sampling.repetition_penalty) for token in set(answer))
    if biases:
        rows, tokens, values = (torch.tensor(x, device=logits.device) for x in zip(*biases, strict=True))
        logits = logits.index_put((rows, tokens), values.to(logits.dtype), accumulate=True)
    if penalties:
        rows, tokens, values = (torch.tensor(x, device=logits.device) for x in zip(*penalties, strict=True))
        scores = logits[rows, tokens]
        logits = logits.index_put((rows, tokens), torch.where(scores > 0, scores / values, scores * values))
    return logits


def pick(scores: Tensor, samplers: Sequence[Sampler]) -> list[int]:
    """An index into each row of scores `[N, V]`."""
    picked = [0] * len(samplers)
    for choose in (pick_likeliest, sample_all, sample_likeliest):
        rows = [i for i, one in enumerate(samplers) if way_of(one.sampling) is choose]
        if rows:
            found = choose(rows_of(scores, rows), [samplers[i] for i in rows])
            for row, index in zip(rows, found, strict=True):
                picked[row] = index
    return picked


def pick_likeliest(scores: Tensor, samplers: Sequence[Sampler]) -> list[int]:
    """The index of the highest of each row `[N, V]`."""
    found: list[int] = scores.argmax(-1).tolist()
    return found


def sample_all(scores: Tensor, samplers: Sequence[Sampler]) -> list[int]:
    """An index into each row `[N, V]`, sampled from all."""
    draws, temperature = (torch.from_numpy(x).to(scores.device) for x in (drawn(samplers), temperatures(samplers)))
    sums = (scores.double() / temperature).softmax(-1).cumsum(-1)
    found: list[int] = (sums <= draws * sums[:, -1:]).sum(-1).clamp(max=scores.shape[1] - 1).tolist()
    return found


def sample_likeliest(scores: Tensor, samplers: Sequence[Sampler]) -> list[int]:
    """An index into each row `[N, V]`, sampled from the `top_k` likeliest, and of these from the fewest that make up
    `top_p`.
    """
    size, temperature = scores.shape[1], temperatures(samplers)
    top_k = np.array([[min(one.sampling.top_k or size, size)] for one in samplers])
    top_p = np.array([[one.sampling.top_p] for one in samplers])
    is_open = top_k == size  # how many tokens make up a share of all is not known before
    most = max((int(k) for k in top_k.flat if k < size), default=1)
    whole = np.zeros_like(temperature)
    if is_open.any():
        whole = (
            (scores.double() / torch.from_numpy(temperature).to(scores.device))
            .logsumexp(-1, keepdim=True)
            .cpu()
            .numpy()
        )
    for count in (*(max(few, most) for few in FEW_TOKENS), size) if is_open.any() else (most,):
        likely, ids = (x.cpu().numpy() for x in scores.topk(min(count, size)))
        scaled = np.where(np.arange(likely.shape[1]) < top_k, likely / temperature, -np.inf)  # [N, K]
        highest = scaled[:, :1]
        mass = highest + np.log(np.exp(scaled - highest).sum(-1, keepdims=True))
        probabilities = np.exp(scaled - np.where(is_open, whole, mass))
        before = probabilities.cumsum(-1) - probabilities
        if count >= size or (before[:, -1:] >= top_p)[is_open].all():
            break
    sums = (probabilities * (before < top_p)).cumsum(-1)
    places = (sums <= drawn(samplers) * sums[:, -1:]).sum(-1, keepdims=True).clip(max=sums.shape[1] - 1)
    found: list[int] = np.take_along_axis(ids, places, 1)[:, 0].tolist()
    return found


def way_of(sampling: Sampling) -> object:
    """Which of the functions above chooses."""
    if not sampling.temperature:
        return pick_likeliest
    return sample_likeliest if sampling.top_k or sampling.top_p < 1 else sample_all


def drawn(samplers: Sequence[Sampler]) -> Numbers:
    """A random number for each answer, `[N, 1]`."""
    return np.array([[one.draw()] for one in samplers])


def temperatures(samplers: Sequence[Sampler]) -> Numbers:
    """`[N, 1]`."""
    return np.array([[one.sampling.temperature] for one in samplers])
