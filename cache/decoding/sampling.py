"""Generation of an answer: sampling settings, random numbers, and the text of tokens. `choosing` chooses the tokens."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cache.prompt.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Settings of an answer. temperature: 0 is greedy. top_k: 0 is no limit. top_p: 1 is no limit. min_p: minimum
    probability, as a share of the highest. seed: makes a sampled answer repeatable. repetition_penalty: lowers the
    probability of tokens that the answer already has (Keskar et al., 2019); the prompt's do not count, because answers
    should quote it. presence_penalty, frequency_penalty: subtracted from logits of such tokens, once or for each
    occurrence (OpenAI). logit_bias: (token, added to its logit). stop: strings that end the answer. logprobs: number of
    top tokens, see `TokenLogprob`; None: no log probabilities. given: its first tokens, which the model reads and does
    not choose; with a stop token at their end they are the whole answer. opening: (token, bias): the bias of the first
    token of a refusal, only at the start of the answer. ends_loops: see `loop_length`. Raises ValueError.
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
        """Return whether the next token is simply the most likely one. first: it is the first of the answer."""
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
    """A token of an answer, the logarithm of its probability, and the most likely tokens with theirs. Penalties, biases
    and temperature do not count.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, token: int, logits: "Tensor", most: int) -> "TokenLogprob":
        """Read a token's probability from logits `[vocabulary]`. most: length of `top`."""
        values = logits.float().log_softmax(-1)
        likeliest, ids = values.topk(most)
        return cls(token, float(values[token]), tuple(zip(ids.tolist(), likeliest.tolist(), strict=True)))


def loop_length(tokens: Sequence[int]) -> int:
    """Return the length of a run of 12 to 80 tokens that ends the list three times in a row; 0: none."""
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
        """Make the next `draw` return the last random number again, after a failed choice of a token."""
        self._repeats = True

    def skip(self, begun: int) -> None:
        """Skip the random numbers of an answer's first `begun` tokens. Given tokens need none."""
        for _ in range(begun - len(self.sampling.given) if self.sampling.temperature else 0):
            self._random.random()

    def given(self, answer: Sequence[int]) -> Iterator[int]:
        """Return the given tokens that follow an answer so far."""
        yield from self.sampling.given[len(answer) :]


class TextStream:
    """Converts a growing list of tokens to text. Delivered text never changes, so an incomplete character or possible
    stop string is held back. An update decodes only the last tokens: a token's text depends on the end of the text
    before it.
    """

    def __init__(self, tokenizer: ChatTokenizer, stop: tuple[str, ...]) -> None:
        self.stopped = False
        self.text = ""
        self._tokenizer, self._stop = tokenizer, stop
        self._given = 0  # characters
        # numbers of tokens when the text was complete, at the second last and the last time, and its last complete text
        self._before, self._complete, self._complete_text = 0, 0, ""

    def update(self, tokens: Sequence[int], *, final: bool = False) -> str:
        """Return the new text that cannot change any more. `stopped` is set when a stop string ended it."""
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
        """Add tokens whose text was already delivered. delivered: characters, with an incomplete one at the end."""
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
