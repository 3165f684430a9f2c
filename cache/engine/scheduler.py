"""Division of the next forward pass: rows per sequence. No tensors.

Generating sequences come first, one row each, so that answers keep their pace. Prompts and modules being encoded fill
the rest in chunks. They are ordered by arrival time plus their own remaining compute time, so a short prompt overtakes
a long one, but only for as long as the long one takes. While many answers stream, short prompts sometimes get a pass of
their own.
"""

from collections.abc import Collection
from typing import Protocol, TypeVar

PASS_S, DECODING_PASS_S = 0.5, 0.125
"""Maximum seconds of a pass, and while answers are streaming (the pause between two of their tokens)."""
LEAST_ROWS, MOST_ROWS = 64, 2048
"""Minimum and maximum rows of a pass: fewer waste its fixed cost, more need too much memory."""
MANY_ANSWERS = 24
"""With at least this number of answers in its pass, a prompt's first token takes about twice as long. With fewer,
reading the weights once more costs more than is gained.
"""


class Schedulable(Protocol):
    """Work that a pass can compute rows of; a `Sequence` is one."""

    @property
    def pending(self) -> int:
        """Rows still to compute."""

    @property
    def arrived(self) -> float:
        """Arrival time, in seconds of any clock."""


S = TypeVar("S", bound=Schedulable)


def schedule(sequences: Collection[S], row_seconds: float, pass_seconds: float = PASS_S) -> dict[S, int]:
    """Divide the next pass: rows by sequence, in order. Every sequence has at least one pending row. row_seconds: cost
    of a row. pass_seconds: maximum time while no answer streams.
    """
    scheduled = {sequence: 1 for sequence in sequences if sequence.pending == 1}
    token_budget = rows_within(DECODING_PASS_S if scheduled else pass_seconds, row_seconds) - len(scheduled)
    for sequence in in_order(sequences, row_seconds):
        if token_budget > 0:
            scheduled[sequence] = min(token_budget, sequence.pending)
            token_budget -= scheduled[sequence]
    return scheduled


def schedule_alone(sequences: Collection[S], row_seconds: float) -> dict[S, int]:
    """Return prompts to compute completely in a pass of their own while answers wait: rows by sequence. Empty if that
    is not worth it. Not for two consecutive passes.
    """
    if sum(sequence.pending == 1 for sequence in sequences) < MANY_ANSWERS:
        return {}
    alone: dict[S, int] = {}
    token_budget = rows_within(DECODING_PASS_S / 2, row_seconds)
    for sequence in in_order(sequences, row_seconds):
        if sequence.pending <= token_budget:
            alone[sequence] = sequence.pending
            token_budget -= sequence.pending
    return alone


def in_order(sequences: Collection[S], row_seconds: float) -> list[S]:
    prompts = [sequence for sequence in sequences if sequence.pending > 1]
    return sorted(prompts, key=lambda prompt: prompt.arrived + prompt.pending * row_seconds)


def rows_within(seconds: float, row_seconds: float) -> int:
    return max(LEAST_ROWS, min(MOST_ROWS, int(seconds / row_seconds)))
