"""From text to token ids: what is asked of a tokenizer, and how a run of text pieces is tokenised.

A run is tokenised in one call, so that the ids are those of the joined text; within it special tokens are recognised in
structural pieces only, so that a document or a user who writes `<|im_end|>` gets ordinary characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from cache.prompt.parts import Text


class Tokenizer(Protocol):
    """What layout asks of a tokenizer.

    filler: the token that fills the unused rest of a parameter's slot while its module is encoded.
    sink_prefix: tokens of the short constant beginning behind which a module is encoded; may be empty.
    """

    filler: int
    sink_prefix: tuple[int, ...]

    def encode(self, run: Sequence[Text]) -> list[int]:
        """Token ids of a run of pieces without known tokens, nothing added."""


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
    """A tokenizer that need not tokenise again what it was last asked for: a conversation's passages come back with
    every turn, and what each was encoded behind with them. Safe to use from any thread.

    runs: how many are remembered.
    """

    def __init__(self, tokenizer: Tokenizer, runs: int) -> None:
        self.filler, self.sink_prefix = tokenizer.filler, tokenizer.sink_prefix
        self._encode = lru_cache(maxsize=runs)(lambda run: tuple(tokenizer.encode(run)))

    def encode(self, run: Sequence[Text]) -> list[int]:
        """As the tokenizer beneath."""
        return list(self._encode(tuple(run)))

    def clear(self) -> None:
        """Remember nothing of what was asked so far."""
        self._encode.cache_clear()


def run_tokens(run: Sequence[Text], tokenizer: Tokenizer, limit: int | None = None) -> tuple[int, ...]:
    """Token ids of a run. Pieces with known tokens keep those and cut the run.

    limit: keep runs of so many tokens and, of longer ones, exactly the first half (rounded up) and the last half.
    """
    tokens: list[int] = []
    pending: list[Text] = []
    for piece in run:
        if piece.tokens is None:
            pending.append(piece)
            continue
        if pending:
            tokens += tokenizer.encode(pending)
            pending = []
        tokens += piece.tokens
    if pending:
        tokens += tokenizer.encode(pending)
    if limit is not None and len(tokens) > limit:
        tokens = tokens[: (limit + 1) // 2] + tokens[len(tokens) - limit // 2 :]
    return tuple(tokens)
