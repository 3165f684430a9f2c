"""Constrained answers: a trie over the token ids of the allowed texts, with a prior for each text.

An answer is one or more whole choices, none twice, then the stop token. At every step only tokens are allowed that
continue such an answer (GENRE, De Cao et al. 2021, arXiv 2010.00904, but without beam search). Each token's logit gets
the prior of the best choice that continues with it. Where choices do not differ the token is forced, so that long
choices have no disadvantage. There is no lookahead: the token at which two choices differ decides between them.
"""

import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One allowed text. behind: its tokens after another choice, with the separator; None: the same tokens. prior:
    log-weight, not normalised. Raises ValueError.
    """

    tokens: tuple[int, ...]
    behind: tuple[int, ...] | None = None
    prior: float = 0.0

    def __post_init__(self) -> None:
        if not self.tokens or self.behind == ():
            raise ValueError("a choice has no tokens")
        if not math.isfinite(self.prior):
            raise ValueError(f"prior is {self.prior}: it must be a finite number")


@dataclass(slots=True)
class TrieNode:
    """A node of the trie. below: numbers of the choices that pass or end here. ends: the one that ends here."""

    children: "dict[int, TrieNode]" = field(default_factory=dict)
    below: set[int] = field(default_factory=set)
    ends: int | None = None

    def insert(self, tokens: tuple[int, ...], number: int) -> None:
        """Add a choice. Raises ValueError if another choice has the same tokens."""
        node = self
        node.below.add(number)
        for token in tokens:
            node = node.children.setdefault(token, TrieNode())
            node.below.add(number)
        if node.ends is not None:
            raise ValueError(f"choices {node.ends} and {number} have the same tokens")
        node.ends = number


@dataclass(frozen=True, slots=True)
class Parse:
    """One parse of an answer so far: numbers of its choices, in order, and the position in the next one."""

    said: tuple[int, ...]
    node: TrieNode


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The allowed texts of an answer. stop: the token that ends it. most: maximum choices in one answer. enough:
    log-weight of ending before a possible next choice; None: the weight of the best choice so far. The state of an
    answer is derived from its tokens every time. Raises ValueError.
    """

    choices: tuple[Choice, ...]
    stop: int
    most: int = 2
    enough: float | None = None

    def __post_init__(self) -> None:
        if not self.choices:
            raise ValueError("there are no choices: an answer needs one")
        if self.most < 1:
            raise ValueError(f"most is {self.most}: it must be at least 1")
        for number, choice in enumerate(self.choices):
            if self.stop in choice.tokens or self.stop in (choice.behind or ()):
                raise ValueError(f"choice {number} holds the stop token {self.stop}")
        assert self._tries  # raises here

    @cached_property
    def _tries(self) -> tuple[TrieNode, TrieNode]:
        first, behind = TrieNode(), TrieNode()
        for number, choice in enumerate(self.choices):
            first.insert(choice.tokens, number)
            behind.insert(choice.behind or choice.tokens, number)
        return first, behind

    @property
    def longest(self) -> int:
        """Tokens of the longest possible answer with its stop token: the minimum of `Sampling.max_tokens`."""
        lengths = sorted((max(len(c.tokens), len(c.behind or ())) for c in self.choices), reverse=True)
        return sum(lengths[: self.most]) + 1

    def allowed(self, answer: Sequence[int]) -> dict[int, float]:
        """Return every token that may come next, with the log-weight to add to its logit. Choices are sampled by their
        priors until one repeats, or `most` are sampled. A token's weight is the weight of its best continuation (a sum
        would favour words with which many choices begin), minus the highest of these weights. After an invalid answer
        only the stop token is allowed.
        """
        return self._weights(self._parses(answer))

    def forced(self, answer: Sequence[int]) -> Iterator[int]:
        """Return the tokens that must follow an answer, up to the next choice or the stop token."""
        parses = self._parses(answer)
        while len(weights := self._weights(parses)) == 1:
            (token,) = weights
            yield token
            if token == self.stop:
                return
            parses = self._longer(parses, token)

    def _weights(self, parses: Sequence[Parse]) -> dict[int, float]:
        weights: dict[int, float] = {}
        for parse in parses:
            for token, weight in self._continuations(parse):
                weights[token] = max(weight, weights.get(token, weight))
        if not weights:
            return {self.stop: 0.0}
        best = max(weights.values())
        return {token: weight - best for token, weight in weights.items()}

    def _parses(self, answer: Sequence[int]) -> list[Parse]:
        """Return all parses of an answer: several if a choice is a prefix of another one, or of two joined. A parse
        that contains a choice twice has no continuation.
        """
        parses = [Parse((), self._tries[0])]
        for token in answer:
            parses = self._longer(parses, token)
        return parses

    def _longer(self, parses: Sequence[Parse], token: int) -> list[Parse]:
        longer = [Parse(p.said, child) for p in parses if (child := p.node.children.get(token))]
        return longer + [Parse(said, self._tries[1]) for said in self._ended(longer) if not self._is_last(said)]

    def _continuations(self, parse: Parse) -> Iterator[tuple[int, float]]:
        """Return next tokens, each with the best joint log-weight of its continuations."""
        for token, child in parse.node.children.items():
            if possible := child.below.difference(parse.said):
                yield token, self._drawn(parse.said) + self._mass(possible)
        for said in self._ended([parse]):
            yield self.stop, self._drawn(said) + self._ending(said)

    def _ended(self, parses: list[Parse]) -> Iterator[tuple[int, ...]]:
        return ((*p.said, p.node.ends) for p in parses if p.node.ends is not None and p.node.ends not in p.said)

    def _is_last(self, said: tuple[int, ...]) -> bool:
        return len(said) == min(self.most, len(self.choices))

    def _ending(self, said: tuple[int, ...]) -> float:
        if self._is_last(said):
            return self._mass(self._tries[0].below)
        return self._mass(set(said)) if self.enough is None else self.enough

    def _drawn(self, said: tuple[int, ...]) -> float:
        return sum(self.choices[number].prior - self._mass(self._tries[0].below) for number in said)

    def _mass(self, numbers: Set[int]) -> float:
        return max(self.choices[number].prior for number in numbers)
