"""From text to token ids: the interface of a tokenizer, and how a run of text pieces is tokenised.

A run is tokenised in one call, so that the ids are those of the joined text; within it control tokens are recognised in
structural pieces only, so that a document or a user who writes `<|im_end|>` gets ordinary characters.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import Protocol

from cache.prompt.chat_template import ChatTemplate
from cache.prompt.parts import Text


class Tokenizer(Protocol):
    """What placing a prompt needs of a tokenizer.

    filler: the token that fills the unused rest of a parameter's slot while its module is encoded.
    sink_prefix: tokens of the short constant text that a module is encoded behind; may be empty.
    """

    filler: int
    sink_prefix: tuple[int, ...]

    def encode(self, run: Sequence[Text]) -> list[int]:
        """Token ids of a run of pieces without known tokens, nothing added."""


class ChatTokenizer(Tokenizer, Protocol):
    """What a conversation needs besides. template: the strings between its messages."""

    template: ChatTemplate

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""


class WordTokenizer:
    """One id per word: a tokenizer for checking schemas without a model. Markers have no ids of their own."""

    filler = 0
    sink_prefix: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def encode(self, run: Sequence[Text]) -> list[int]:
        """Ids in order of first appearance, from 1; 0 is the filler."""
        words = "".join(piece.text for piece in run).split()
        return [self._ids.setdefault(word, len(self._ids) + 1) for word in words]


class CachingTokenizer:
    """A tokenizer that remembers what it tokenised last, because a conversation's passages and the passages each was
    encoded behind come back with every turn. Safe to use from any thread.

    runs: how many runs are remembered. longest: characters of the longest one that is.
    """

    def __init__(self, tokenizer: Tokenizer, runs: int, longest: int) -> None:
        self.filler, self.sink_prefix = tokenizer.filler, tokenizer.sink_prefix
        self._tokenizer, self._longest = tokenizer, longest
        self._encode = lru_cache(maxsize=runs)(lambda run: tuple(tokenizer.encode(run)))

    def encode(self, run: Sequence[Text]) -> list[int]:
        """As the wrapped tokenizer."""
        if sum(len(piece.text) for piece in run) > self._longest:
            return self._tokenizer.encode(run)
        return list(self._encode(tuple(run)))

    def clear(self) -> None:
        """Forget everything."""
        self._encode.cache_clear()


def run_tokens(run: Sequence[Text], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Token ids of a run. A piece with known tokens keeps them; the texts before and behind it are tokenised apart."""
    tokens: list[int] = []
    for is_text, pieces in groupby(run, key=lambda piece: piece.tokens is None):
        group = list(pieces)
        tokens += tokenizer.encode(group) if is_text else (token for piece in group for token in piece.tokens or ())
    return tuple(tokens)
