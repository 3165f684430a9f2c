"""Choosing the next tokens of all answers of a pass together, on the device, with one copy back.

Tokens are drawn by the inverse of the cumulative distribution, with one random number of each request, so that what
else is in the batch changes nothing. Where only some tokens are allowed, these are a small vocabulary of their own.
Not covered: which tokens are allowed (`cache.decoding.constraints`).

Shape letters: N answers, V tokens of the vocabulary, K likeliest of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cache.decoding.sampling import Sampler, Sampling

FEW_TOKENS = (256, 4096)
"""Tokens that mostly, and nearly always, hold the share that is sampled from. Sorting all of a vocabulary takes as long
as a pass through a small model, so the first few are tried first.
"""

UNSURE = -1
"""In place of a token: which one it is depends on more of the likeliest tokens."""
ToHost = Callable[[Tensor], Tensor]
"""How results are copied from the device, which waits until they are there."""


@dataclass(frozen=True, slots=True)
class Draw:
    """An answer whose next token is chosen. row: of the logits. number: a random one, at least 0 and less than 1.
    allowed: see `Sampler.allowed`.
    """

    row: int
    sampling: Sampling
    answer: Sequence[int]
    allowed: Mapping[int, float] | None
    number: float


def choose_tokens(
    logits: Tensor, samplers: Sequence[Sampler], answers: Sequence[Sequence[int]], to_host: ToHost = Tensor.cpu
) -> list[int]:
    """The next token of each answer. logits: float32 `[N, V]`, not changed. answers: their tokens so far."""
    chosen = [0] * len(samplers)
    draws: list[Draw] = []
    for row, (sampler, answer) in enumerate(zip(samplers, answers, strict=True)):
        allowed = sampler.allowed(answer)
        if allowed is not None and len(allowed) == 1:
            (chosen[row],) = allowed
        else:
            number = sampler.draw() if sampler.sampling.temperature else 0.0
            draws.append(Draw(row, sampler.sampling, answer, allowed, number))
    for most in (*FEW_TOKENS, logits.shape[1]):
        if draws:
            ordered, found = find_tokens(logits, draws, most)
            tokens = dict(zip((draw.row for draw in ordered), to_host(found).tolist(), strict=True))
            draws = [draw for draw in draws if tokens[draw.row] == UNSURE]
            for row, token in tokens.items():
                chosen[row] = token
    return chosen


def find_tokens(logits: Tensor, draws: Sequence[Draw], most: int) -> tuple[list[Draw], Tensor]:
    """The draws in another order, and the token of each or UNSURE, int64 `[N]` on the device. Reads no value of it.
    most: how many likeliest tokens are looked at, where that is not known before.
    """
    ordered: list[Draw] = []
    found: list[Tensor] = []
    for choose in (pick_likeliest, sample_all, sample_likeliest):
        alike = [draw for draw in draws if way_of(draw.sampling) is choose]
        free, bound = ([d for d in alike if (d.allowed is None) is is_free] for is_free in (True, False))
        if free:
            found.append(choose(adjusted(rows_of(logits, [d.row for d in free]), free), free, most))
        if bound:
            tokens, weights = padded([draw.allowed or {} for draw in bound], logits.device)
            scores = rows_of(logits, [draw.row for draw in bound]).gather(1, tokens) + weights
            index = choose(scores, bound, tokens.shape[1])
            found.append(tokens.gather(1, index.unsqueeze(1)).squeeze(1))
        ordered += free + bound
    return ordered, torch.cat(found)


def rows_of(x: Tensor, rows: list[int]) -> Tensor:
    """Some rows of a tensor, ascending; no copy if these are all."""
    return x if len(rows) == len(x) else x[on_device(rows, x.device)]


def on_device(values: Sequence[object], device: torch.device) -> Tensor:
    """A tensor of these values on a device, without waiting for what runs there."""
    return torch.tensor(values).to(device, non_blocking=True)


def padded(allowed: Sequence[Mapping[int, float]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Allowed tokens and their weights, `[N, most]` each; where an answer has fewer, the weight is minus infinity."""
    most = max(len(some) for some in allowed)
    tokens = [[*some, *[0] * (most - len(some))] for some in allowed]
    weights = [[*some.values(), *[float("-inf")] * (most - len(some))] for some in allowed]
    return on_device(tokens, device), on_device(weights, device)


def adjusted(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Logits `[N, V]` of the draws with the biases of openings and the penalties for what was said already."""
    biases: list[tuple[int, int, float]] = []
    penalties: list[tuple[int, int, float]] = []
    for row, draw in enumerate(draws):
        sampling = draw.sampling
        if sampling.opening is not None and not draw.answer:
            biases.append((row, *sampling.opening))
        if sampling.repetition_penalty != 1:
            penalties += ((row, token, sampling.repetition_penalty) for token in set(draw.answer))
    if biases:
        rows, tokens, values = (on_device(x, logits.device) for x in zip(*biases, strict=True))
        logits = logits.index_put((rows, tokens), values.to(logits.dtype), accumulate=True)
    if penalties:
        rows, tokens, values = (on_device(x, logits.device) for x in zip(*penalties, strict=True))
        scores = logits[rows, tokens]
        logits = logits.index_put((rows, tokens), torch.where(scores > 0, scores / values, scores * values))
    return logits


def pick_likeliest(scores: Tensor, draws: Sequence[Draw], most: int) -> Tensor:
    """The index of the highest of each row `[N, V]`."""
    return scores.argmax(-1)


def sample_all(scores: Tensor, draws: Sequence[Draw], most: int) -> Tensor:
    """An index into each row `[N, V]`, sampled from all."""
    numbers, temperatures = columns([(d.number, d.sampling.temperature) for d in draws], scores.device)
    sums = (scores.double() / temperatures).softmax(-1).cumsum(-1)
    return place_in(sums, numbers).squeeze(1)


def sample_likeliest(scores: Tensor, draws: Sequence[Draw], most: int) -> Tensor:
    """An index into each row `[N, V]`, sampled from the `top_k` likeliest, and of these from the fewest that make up
    `top_p`; UNSURE where these may be more than `most`.
    """
    size = scores.shape[1]
    limits = [min(draw.sampling.top_k or size, size) for draw in draws]
    is_any_open = size in limits  # how many tokens make up a share of all is not known before
    count = max([limit for limit in limits if limit < size] + [min(most, size)] * is_any_open)
    values = [(d.number, d.sampling.temperature, k, d.sampling.top_p) for d, k in zip(draws, limits, strict=True)]
    numbers, temperatures, top_k, top_p = columns(values, scores.device)
    likely, ids = scores.topk(count)
    scaled = likely.double() / temperatures
    scaled = scaled.where(torch.arange(count, device=scores.device) < top_k, -torch.inf)
    mass = scaled.logsumexp(-1, keepdim=True)
    if is_any_open:
        mass = mass.where(top_k < size, (scores.double() / temperatures).logsumexp(-1, keepdim=True))
    probabilities = (scaled - mass).exp()
    before = probabilities.cumsum(-1) - probabilities
    sums = (probabilities * (before < top_p)).cumsum(-1)
    index = ids.gather(1, place_in(sums, numbers))
    if is_any_open and count < size:
        index = index.where((top_k < size) | (before[:, -1:] >= top_p), UNSURE)
    return index.squeeze(1)


def place_in(sums: Tensor, numbers: Tensor) -> Tensor:
    """Where numbers `[N, 1]` of at least 0 and less than 1 fall in cumulative weights `[N, K]`: `[N, 1]`."""
    return (sums <= numbers * sums[:, -1:]).sum(-1, keepdim=True).clamp(max=sums.shape[1] - 1)


def columns(values: Sequence[tuple[float, ...]], device: torch.device) -> tuple[Tensor, ...]:
    """Numbers of each answer, float64 `[N, 1]` each."""
    table = torch.tensor(values, dtype=torch.float64).to(device, non_blocking=True)
    return tuple(table[:, i : i + 1] for i in range(table.shape[1]))


def way_of(sampling: Sampling) -> object:
    """Which of the functions above chooses."""
    if not sampling.temperature:
        return pick_likeliest
    return sample_likeliest if sampling.top_k or sampling.top_p < 1 else sample_all
