"""Choose the next tokens of answers by their logits.

The next tokens of all answers of a forward pass are chosen together, on the device, with one copy to the host. They are
sampled by the inverse of the cumulative distribution, with one random number per request, so other requests of the
batch have no influence. Given tokens (`Sampling.given`) are used as they are.

Shape letters: N answers, V tokens of the vocabulary, K most likely of them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cache.decoding.sampling import Sampler, Sampling

FEW_TOKENS = (256, 4096)
"""Numbers of top tokens that usually, and nearly always, contain the sampled share. Sorting a whole vocabulary takes as
long as a forward pass of a small model, so the top few are tried first.
"""

BLOCK = 256  # tokens

UNSURE = -1  # instead of a token: more of the top tokens must be considered
ToHost = Callable[[Tensor], Tensor]  # copies results from the device, and waits until they are complete


@dataclass(frozen=True, slots=True)
class Draw:
    """An answer whose next token is chosen. row: its row of the logits. number: random, at least 0 and less than 1."""

    row: int
    sampling: Sampling
    answer: Sequence[int]
    number: float


def choose_tokens(
    logits: Tensor, samplers: Sequence[Sampler], answers: Sequence[Sequence[int]], to_host: ToHost = Tensor.cpu
) -> list[int]:
    """Return the next token of each answer. logits: float32 `[N, V]`, not changed. answers: their tokens so far."""
    chosen = [0] * len(samplers)
    draws: list[Draw] = []
    for row, (sampler, answer) in enumerate(zip(samplers, answers, strict=True)):
        if (given := next(sampler.given(answer), None)) is not None:
            chosen[row] = given
        else:
            number = sampler.draw() if sampler.sampling.temperature else 0.0
            draws.append(Draw(row, sampler.sampling, answer, number))
    for most in (*FEW_TOKENS, logits.shape[1]):
        if draws:
            ordered, found = find_tokens(logits, draws, most)
            tokens = dict(zip((draw.row for draw in ordered), to_host(found).tolist(), strict=True))
            draws = [draw for draw in draws if tokens[draw.row] == UNSURE]
            for row, token in tokens.items():
                chosen[row] = token
    return chosen


def find_tokens(logits: Tensor, draws: Sequence[Draw], most: int) -> tuple[list[Draw], Tensor]:
    """Return the draws in another order, and the token of each draw or UNSURE, int64 `[N]` on the device, without
    waiting for the values. most: number of top tokens to consider, for answers without `top_k`.
    """
    ordered: list[Draw] = []
    found: list[Tensor] = []
    for choose in (pick_likeliest, sample_all, sample_likeliest):
        if alike := [draw for draw in draws if way_of(draw.sampling) is choose]:
            found.append(choose(adjusted(rows_of(logits, [draw.row for draw in alike]), alike), alike, most))
        ordered += alike
    return ordered, torch.cat(found)


def rows_of(x: Tensor, rows: list[int]) -> Tensor:
    return x if len(rows) == len(x) else x[on_device(rows, x.device)]


def on_device(values: Sequence[object], device: torch.device) -> Tensor:
    """Return a tensor of these values on a device, without waiting for running work."""
    return torch.tensor(values).to(device, non_blocking=True)


def adjusted(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Return the logits `[N, V]` of the draws with their penalties and biases."""
    biases: list[tuple[int, int, float]] = []
    penalties: list[tuple[int, int, float]] = []
    for row, draw in enumerate(draws):
        sampling = draw.sampling
        if sampling.opening is not None and not draw.answer:
            biases.append((row, *sampling.opening))
        biases += ((row, token, value) for token, value in sampling.logit_bias)
        if sampling.presence_penalty or sampling.frequency_penalty:
            for token, count in Counter(draw.answer).items():
                biases.append((row, token, -sampling.presence_penalty - count * sampling.frequency_penalty))
        if sampling.repetition_penalty != 1:
            penalties += ((row, token, sampling.repetition_penalty) for token in set(draw.answer))
    if penalties:
        rows, tokens, values = (on_device(x, logits.device) for x in zip(*penalties, strict=True))
        scores = logits[rows, tokens]
        logits = logits.index_put((rows, tokens), torch.where(scores > 0, scores / values, scores * values))
    if biases:
        rows, tokens, values = (on_device(x, logits.device) for x in zip(*biases, strict=True))
        logits = logits.index_put((rows, tokens), values.to(logits.dtype), accumulate=True)
    return logits


def pick_likeliest(scores: Tensor, draws: Sequence[Draw], most: int) -> Tensor:
    """Return the index of the highest score of each row `[N, V]`."""
    return scores.argmax(-1)


def sample_all(scores: Tensor, draws: Sequence[Draw], most: int) -> Tensor:
    """Return an index into each row `[N, V]`, sampled from the whole row: first a block of tokens, then a token of it,
    because cumulative sums take much longer than sums.
    """
    numbers, temperatures = columns([(d.number, d.sampling.temperature) for d in draws], scores.device)
    weights = torch.nn.functional.pad(relative(scores, temperatures), (0, -scores.shape[1] % BLOCK))
    blocks = weights.view(len(weights), -1, BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    target = numbers * sums[:, -1:]
    block = place_in(sums, target)
    before = torch.nn.functional.pad(sums, (1, 0)).gather(1, block)
    inside = blocks.take_along_dim(block[..., None], 1).squeeze(1).cumsum(-1, dtype=torch.float64)
    return (block * BLOCK + place_in(inside, target - before)).squeeze(1).clamp(max=scores.shape[1] - 1)


def sample_likeliest(scores: Tensor, draws: Sequence[Draw], most: int) -> Tensor:
    """Return an index into each row `[N, V]`, sampled from the `top_k` most likely tokens that reach `min_p`, limited
    to the fewest that make up `top_p` of their probability; UNSURE if more than `most` may be needed.
    """
    size = scores.shape[1]
    limits = [min(draw.sampling.top_k or size, size) for draw in draws]
    is_any_open = size in limits  # without `top_k`, the number of tokens to consider is unknown
    count = max([limit for limit in limits if limit < size] + [min(most, size)] * is_any_open)
    values = [
        (d.number, d.sampling.temperature, k, d.sampling.top_p, d.sampling.min_p)
        for d, k in zip(draws, limits, strict=True)
    ]
    numbers, temperatures, top_k, top_p, min_p = columns(values, scores.device)
    likely, ids = scores.topk(count)
    weights = relative(likely.double(), temperatures)
    weights = weights * (torch.arange(count, device=scores.device) < top_k) * (weights >= min_p)
    mass = weights.sum(-1, keepdim=True)
    if is_any_open:
        whole = relative(scores, temperatures)
        mass = mass.where(top_k < size, (whole * (whole >= min_p)).sum(-1, keepdim=True, dtype=torch.float64))
    probabilities = weights / mass
    before = probabilities.cumsum(-1) - probabilities
    sums = (probabilities * (before < top_p)).cumsum(-1)
    index = ids.gather(1, place_in(sums, numbers * sums[:, -1:]))
    if is_any_open and count < size:
        is_sure = (top_k < size) | (before[:, -1:] >= top_p) | (weights[:, -1:] == 0)
        index = index.where(is_sure, UNSURE)
    return index.squeeze(1)


def relative(scores: Tensor, temperatures: Tensor) -> Tensor:
    """Return each probability divided by the highest of its row `[N, V]`, in the data type of the scores."""
    return ((scores - scores.amax(-1, keepdim=True)) / temperatures.to(scores.dtype)).exp()


def place_in(sums: Tensor, targets: Tensor) -> Tensor:
    """Return the index `[N, 1]` of each target `[N, 1]` in cumulative weights `[N, K]`."""
    return (sums <= targets).sum(-1, keepdim=True).clamp(max=sums.shape[1] - 1)


def columns(values: Sequence[tuple[float, ...]], device: torch.device) -> tuple[Tensor, ...]:
    """Return each column of a table, given as rows of values, as one tensor, float64 `[N, 1]`."""
    table = torch.tensor(values, dtype=torch.float64).to(device, non_blocking=True)
    return tuple(table[:, i : i + 1] for i in range(table.shape[1]))


def way_of(sampling: Sampling) -> object:
    if not sampling.temperature:
        return pick_likeliest
    return sample_likeliest if sampling.top_k or sampling.top_p < 1 or sampling.min_p else sample_all
