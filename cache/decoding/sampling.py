"""Generation of an answer: sampling settings, random numbers, the choice of tokens, and their text.

The next tokens of all answers of a forward pass are chosen together, on the device, with one copy to the host. They are
sampled by the inverse of the cumulative distribution, with one random number per request, so other requests of the
batch have no influence. Given tokens are not chosen.

Shape letters: N answers, V tokens of the vocabulary, K most likely of them.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cache.prompt.tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Settings of an answer. temperature: 0 is greedy. top_k: 0 is no limit. top_p: 1 is no limit. min_p: least
    probability, as a share of the likeliest token's. seed: makes a sampled answer repeatable. repetition_penalty: makes
    tokens of the answer so far less likely (Keskar et al., 2019), not those of the prompt, because answers should quote
    it. presence_penalty, frequency_penalty: subtracted from logits of such tokens, once and for each time (OpenAI).
    logit_bias: (token, added to its logit). stop: strings that end it. logprobs: number of likeliest tokens, see
    `TokenLogprob`; None: no log probabilities. given: its first tokens, which the model reads and does not choose; with
    a stop token at their end they are the whole answer. opening: (token, bias) for the first token of a model's
    refusals. ends_loops: see `loop_length`. Raises ValueError.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    given: tuple[int, ...] = ()
    opening: tuple[int, float] | None = None
    ends_loops: bool = False

    def is_greedy(self, *, first: bool) -> bool:
        """Return whether the next token is simply the likeliest one. first: it is the first of the answer."""
        changes = self.temperature or self.given or self.stop or self.logit_bias or (first and self.opening)
        return (
            self.logprobs is None
            and not (changes or self.presence_penalty or self.frequency_penalty)
            and self.repetition_penalty == 1
        )

    def __post_init__(self) -> None:
        for name, is_in_range, allowed in (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", self.temperature == 0 or 0.01 <= self.temperature <= 100, "0, or from 0.01 to 100"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "more than 0, at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "from 0 to 1"),
            ("repetition_penalty", 1 <= self.repetition_penalty <= 100, "from 1 to 100"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "from -2 to 2"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "from -2 to 2"),
            ("logit_bias", all(-100 <= value <= 100 for _, value in self.logit_bias), "from -100 to 100"),
            ("logprobs", self.logprobs is None or 0 <= self.logprobs <= 20, "from 0 to 20"),
            ("seed", self.seed is None or 0 <= self.seed < 2**63, "from 0 to 2**63 - 1"),
        ):
            if not is_in_range:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be {allowed}")
        if any(not stop for stop in self.stop):
            raise ValueError("an empty stop string would end every answer at once")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of an answer, the logarithm of its probability, and the likeliest tokens with theirs. Penalties, biases
    and temperature do not count.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, token: int, logits: Tensor, most: int) -> "TokenLogprob":
        """logits: `[vocabulary]`. most: length of `top`."""
        values = logits.float().log_softmax(-1)
        likeliest, ids = values.topk(most)
        return cls(token, float(values[token]), tuple(zip(ids.tolist(), likeliest.tolist(), strict=True)))


def loop_length(tokens: Sequence[int]) -> int:
    """Return the length of a sequence of 12 to 80 tokens that the end repeats three times, or 0."""
    lengths = range(12, min(80, len(tokens) // 3) + 1)
    possible = (n for n in lengths if tokens[-1 - n] == tokens[-1])  # most are ruled out by one token
    return next((n for n in possible if tokens[-2 * n :] == tokens[-3 * n : -n]), 0)


class Sampler:
    """The sampling state of one request, with its own random numbers, so that other requests of a batch have no
    influence. num_drawn: random numbers drawn so far.
    """

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.num_drawn = 0
        self._random = random.Random(sampling.seed)
        self._last, self._repeats = 0.0, False

    def draw(self) -> float:
        if not self._repeats:
            self._last = self._random.random()
        self._repeats = False
        self.num_drawn += 1
        return self._last

    def draw_again(self) -> None:
        """Return the last random number again next time, because using it failed."""
        self._repeats = True

    def skip(self, begun: int) -> None:
        """Skip the random numbers of an answer's first tokens. Given tokens need none."""
        for _ in range(begun - len(self.sampling.given) if self.sampling.temperature else 0):
            self._random.random()

    def given(self, answer: Sequence[int]) -> Iterator[int]:
        """Return the given tokens that follow an answer so far."""
        yield from self.sampling.given[len(answer) :]


class TextStream:
    """Text of a growing list of tokens. Delivered text never changes, so half a character or a possible stop string is
    held back. An update decodes the last few tokens only: a token's text depends on the end of the text before it.
    """

    def __init__(self, tokenizer: ChatTokenizer, stop: tuple[str, ...]) -> None:
        self.stopped = False
        self.text = ""
        self._tokenizer, self._stop = tokenizer, stop
        self._given = 0  # characters
        # tokens up to where the text was complete the last time but one, the last time, and the text then
        self._before, self._complete, self._complete_text = 0, 0, ""

    def update(self, tokens: Sequence[int], *, final: bool = False) -> str:
        """Return the text that is new and certain. `stopped` is set when a stop string ended it."""
        text = self._whole_text(tokens)
        found = [at for at in (text.find(stop, self._given) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            text = text[: min(found)]
        self.text = text
        certain = len(text) if final or self.stopped else len(text) - self._uncertain(text)
        piece = text[self._given : certain]
        self._given = max(self._given, certain)
        return piece

    def resume(self, tokens: Sequence[int], delivered: int) -> None:
        """Take tokens whose text was delivered before: `delivered` characters, at an end also half a character."""
        self.update(tokens)
        self._given = max(self._given, delivered)

    def _whole_text(self, tokens: Sequence[int]) -> str:
        known = self._tokenizer.decode(tokens[self._before : self._complete])
        text = self._complete_text + self._tokenizer.decode(tokens[self._before :])[len(known) :]
        if len(text) > len(self._complete_text) and not text.endswith("\ufffd"):
            self._before, self._complete, self._complete_text = self._complete, len(tokens), text
        return text

    def _uncertain(self, text: str) -> int:
        known = text.rstrip("\ufffd")  # the rest of a character is still to come
        longest = max((len(stop) for stop in self._stop), default=0)
        endings = range(min(longest - 1, len(known)), 0, -1)
        stopping = next((n for n in endings if any(stop.startswith(known[-n:]) for stop in self._stop)), 0)
        return len(text) - len(known) + stopping


FEW_TOKENS = (256, 4096)
"""Numbers of top tokens that usually, and nearly always, contain the sampled share. Sorting a whole vocabulary takes as
long as a forward pass of a small model, so the top few are tried first.
"""

UNSURE = -1  # instead of a token: the choice depends on more of the most likely tokens
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
    waiting for the values. most: number of top tokens to consider, if not known before.
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
    """Return an index into each row `[N, V]`, sampled from the whole row."""
    numbers, temperatures = columns([(d.number, d.sampling.temperature) for d in draws], scores.device)
    sums = (scores.double() / temperatures).softmax(-1).cumsum(-1)
    return place_in(sums, numbers).squeeze(1)


def sample_likeliest(scores: Tensor, draws: Sequence[Draw], most: int) -> Tensor:
    """Return an index into each row `[N, V]`, sampled from the `top_k` most likely that reach `min_p`, limited to the
    fewest that make up `top_p` of these; UNSURE if these may be more than `most`.
    """
    size = scores.shape[1]
    limits = [min(draw.sampling.top_k or size, size) for draw in draws]
    is_any_open = size in limits  # how many tokens make up a share of all is not known before
    count = max([limit for limit in limits if limit < size] + [min(most, size)] * is_any_open)
    values = [
        (d.number, d.sampling.temperature, k, d.sampling.top_p, math.log(d.sampling.min_p or math.exp(-700)))
        for d, k in zip(draws, limits, strict=True)
    ]
    numbers, temperatures, top_k, top_p, log_min_p = columns(values, scores.device)
    likely, ids = scores.topk(count)
    scaled = likely.double() / temperatures
    scaled = scaled.where(torch.arange(count, device=scores.device) < top_k, -torch.inf)
    least = scaled[:, :1] + log_min_p
    scaled = scaled.where(scaled >= least, -torch.inf)
    mass = scaled.logsumexp(-1, keepdim=True)
    if is_any_open:
        whole = scores.double() / temperatures
        mass = mass.where(top_k < size, whole.where(whole >= least, -torch.inf).logsumexp(-1, keepdim=True))
    probabilities = (scaled - mass).exp()
    before = probabilities.cumsum(-1) - probabilities
    sums = (probabilities * (before < top_p)).cumsum(-1)
    index = ids.gather(1, place_in(sums, numbers))
    if is_any_open and count < size:
        is_sure = (top_k < size) | (before[:, -1:] >= top_p) | scaled[:, -1:].isneginf()
        index = index.where(is_sure, UNSURE)
    return index.squeeze(1)


def place_in(sums: Tensor, numbers: Tensor) -> Tensor:
    """Return the index `[N, 1]` of each number `[N, 1]`, from 0 to below 1, in cumulative weights `[N, K]`."""
    return (sums <= numbers * sums[:, -1:]).sum(-1, keepdim=True).clamp(max=sums.shape[1] - 1)


def columns(values: Sequence[tuple[float, ...]], device: torch.device) -> tuple[Tensor, ...]:
    """Return each tuple of values as one tensor, float64 `[N, 1]`."""
    table = torch.tensor(values, dtype=torch.float64).to(device, non_blocking=True)
    return tuple(table[:, i : i + 1] for i in range(table.shape[1]))


def way_of(sampling: Sampling) -> object:
    if not sampling.temperature:
        return pick_likeliest
    return sample_likeliest if sampling.top_k or sampling.top_p < 1 or sampling.min_p else sample_all
