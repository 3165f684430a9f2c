"""Choosing the next token, and turning tokens into text as they come."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cache.decoding.constraints import Choices
from cache.prompt.model_tokenizer import ModelTokenizer

FEW_TOKENS = (256, 4096)
"""Tokens that mostly, and nearly always, hold the share that is sampled from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How an answer is generated. Raises ValueError for values out of range.

    temperature: 0 is greedy. top_k: 0 is no limit. top_p: 1 is no limit. seed: makes a sampled answer repeatable.
    repetition_penalty: makes tokens of the answer so far less likely (Keskar et al., 2019); 1 changes nothing. Tokens
    of the prompt are not penalised, because answers should quote it. stop: strings that end the answer.
    choices: what the answer must consist of; nothing is penalised then. opening: (token, bias): added to the token's
    logit where the answer begins, for a model that was trained to open its refusals with that token.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    choices: Choices | None = None
    opening: tuple[int, float] | None = None

    def __post_init__(self) -> None:
        for name, is_in_range, allowed in (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", self.temperature == 0 or 0.01 <= self.temperature <= 100, "0, or from 0.01 to 100"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "more than 0, at most 1"),
            ("repetition_penalty", 1 <= self.repetition_penalty <= 100, "from 1 to 100"),
            ("seed", self.seed is None or 0 <= self.seed < 2**63, "from 0 to 2**63 - 1"),
        ):
            if not is_in_range:
                raise ValueError(f"{name} is {getattr(self, name)}: {allowed}")
        if any(not stop for stop in self.stop):
            raise ValueError("an empty stop string would end every answer at once")


def loop_length(tokens: Sequence[int]) -> int:
    """How many tokens at the end, 12 to 80, repeat exactly the ones before them (a loop of greedy decoding), or 0."""
    lengths = range(12, min(80, len(tokens) // 2) + 1)
    possible = (n for n in lengths if tokens[-1 - n] == tokens[-1])  # most are ruled out by one token
    return next((n for n in possible if tokens[-n:] == tokens[-2 * n : -n]), 0)


class Sampler:
    """Picks tokens for one request, with random numbers of its own: other requests of the batch change nothing."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._random = torch.Generator()
        if sampling.seed is not None:
            self._random.manual_seed(sampling.seed)
        else:
            self._random.seed()

    def forced(self, answer: Sequence[int]) -> Iterator[int]:
        """The tokens that must follow, up to where the model has something to decide."""
        return iter(()) if self.sampling.choices is None else self.sampling.choices.forced(answer)

    def choose(self, logits: Tensor, answer: Sequence[int] = ()) -> int:
        """One token id from logits `[vocabulary]`; answer: the tokens generated so far."""
        if self.sampling.choices is None:
            return self._pick(self._penalised(logits, answer) if answer else self._biased(logits))
        allowed = self.sampling.choices.allowed(answer)
        tokens = list(allowed)
        if len(tokens) == 1:
            return tokens[0]  # without drawing a random number
        weights = torch.tensor(list(allowed.values()), dtype=logits.dtype, device=logits.device)
        return tokens[self._pick(logits[tokens] + weights)]

    def _biased(self, logits: Tensor) -> Tensor:
        if self.sampling.opening is None:
            return logits
        token, bias = self.sampling.opening
        return logits.index_add(0, torch.tensor([token], device=logits.device), logits.new_tensor([bias]))

    def _penalised(self, logits: Tensor, answer: Sequence[int]) -> Tensor:
        penalty = self.sampling.repetition_penalty
        if penalty == 1:
            return logits
        said = torch.tensor(sorted(set(answer)), device=logits.device)
        scores = logits[said]
        return logits.index_copy(0, said, torch.where(scores > 0, scores / penalty, scores * penalty))

    def _pick(self, logits: Tensor) -> int:
        """An index into logits of any length."""
        if self.sampling.temperature == 0:
            return int(logits.argmax())
        likely, ids = logits.cpu(), None
        if 0 < self.sampling.top_k < len(likely):
            likely, ids = likely.topk(self.sampling.top_k)
        probabilities = (likely / self.sampling.temperature).softmax(-1)
        if self.sampling.top_p < 1:
            probabilities, kept = likeliest(probabilities, self.sampling.top_p)
            ids = kept if ids is None else ids[kept]
        drawn = torch.multinomial(probabilities, 1, generator=self._random)
        return int(drawn if ids is None else ids[drawn])


def likeliest(probabilities: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The fewest of the highest probabilities `[n]` that make up a share, highest first, and where they stood. Sorting
    all of a vocabulary takes as long as a pass through a small model, so the first few are tried first.
    """
    for count in (*FEW_TOKENS, len(probabilities)):
        highest, ids = probabilities.topk(min(count, len(probabilities)))
        before = highest.cumsum(-1) - highest
        if count == len(probabilities) or before[-1] >= share:
            break
    return highest[before < share], ids[before < share]


class TextStream:
    """Text of a growing list of tokens. Half a character, or what may become a stop string, is held back.

    An update decodes the last few tokens, not all: how a token is written depends on the text before it (spaces of
    SentencePiece, characters of several tokens), but only on the end of it.
    """

    def __init__(self, tokenizer: ModelTokenizer, stop: tuple[str, ...]) -> None:
        self.stopped = False
        self.text = ""
        self._tokenizer, self._stop = tokenizer, stop
        self._given = 0  # characters
        # tokens up to where the text was complete the last time but one, the last time, and the text then
        self._before, self._complete, self._complete_text = 0, 0, ""

    def update(self, tokens: Sequence[int], *, final: bool = False) -> str:
        """The text that is new and certain; `stopped` is set when a stop string ended it."""
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
