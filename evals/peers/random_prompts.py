"""Prompts of random token ids, which take the same time as text: a system text, documents after it, a question.

Each answer has the requested number of tokens, sampled the same way by every program: end tokens are ignored, and
sampling avoids the loops of greedy decoding, which would also end an answer.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from cache.decoding.sampling import Sampling
from cache.model.info import ModelInfo
from cache.prompt.plan import Plan, Segment, Span

SYSTEM_TOKENS = 40
MODULE_TOKENS = 400
TEMPERATURE, TOP_K = 1.0, 40


@dataclass(frozen=True, slots=True)
class RandomDocuments:
    """A system text and the modules after it, as token ids."""

    system: Segment
    modules: tuple[Segment, ...]

    @classmethod
    def make(
        cls, size: int, vocabulary: int, rng: random.Random, module_tokens: int = MODULE_TOKENS
    ) -> "RandomDocuments":
        system = Segment(name="system", tokens=tokens(SYSTEM_TOKENS, vocabulary, rng))
        modules = [
            Segment(
                name=f"module-{at}",
                tokens=tokens(min(module_tokens, size - at), vocabulary, rng),
                start=SYSTEM_TOKENS,
                prefix=system,
            )
            for at in range(0, size, module_tokens)
        ]
        return cls(system, tuple(modules))

    def plan(self, question: tuple[int, ...], modules: Sequence[Segment]) -> Plan:
        spans, at = [], 0
        for segment in (self.system, *modules):
            spans.append(Span(start=at, tokens=segment.tokens, segment=segment))
            at += len(segment.tokens)
        return Plan(spans=(*spans, Span(start=at, tokens=question)))

    def shuffled(self, question: tuple[int, ...], rng: random.Random) -> Plan:
        return self.plan(question, rng.sample(self.modules, len(self.modules)))


class Zipf:
    """Samples items whose popularity is their rank to the power of -`exponent`; 0: all equal."""

    def __init__(self, exponent: float, items: Sequence[Segment]) -> None:
        self.items = items
        self._weights = [*accumulate((rank + 1) ** -exponent for rank in range(len(items)))]

    def draw(self, rng: random.Random) -> Segment:
        return rng.choices(self.items, cum_weights=self._weights)[0]

    def draw_different(self, count: int, rng: random.Random) -> tuple[Segment, ...]:
        drawn: dict[Segment, None] = {}
        while len(drawn) < min(count, len(self.items)):
            drawn[self.draw(rng)] = None
        return tuple(drawn)


def tokens(count: int, vocabulary: int, rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randrange(vocabulary // 4, vocabulary) for _ in range(count))


def token_ids(plan: Plan) -> list[int]:
    return [token for span in plan.spans for token in span.tokens]


def answer_of(num_tokens: int) -> Sampling:
    return Sampling(max_tokens=num_tokens, temperature=TEMPERATURE, top_k=TOP_K)


def no_stop_tokens(info: ModelInfo) -> ModelInfo:
    """Let a model generate until the limit, so that rates are over the same number of tokens."""
    return replace(info, stop_tokens=frozenset())
