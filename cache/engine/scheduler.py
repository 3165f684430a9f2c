"""Which sequence computes how many rows in the next forward pass. No tensors.

Sequences that generate come first, one row each, so that running answers keep their pace; prompts and modules being
encoded fill the rest of the pass in chunks. Of these the one comes first that would be done first if each had been
computed alone since it arrived: a short prompt overtakes a long one, but only for as long as the long one takes.
While many answers are streaming, prompts that are short enough get a pass of their own now and then.
"""

from collections.abc import Collection
from typing import Protocol, TypeVar

PASS_S, DECODING_PASS_S = 0.5, 0.125
"""How long a pass may take; and how long while answers are streaming: the pause between two of their tokens."""
LEAST_ROWS, MOST_ROWS = 64, 2048
"""Of a pass, however long they take: fewer waste what a pass costs by itself, more take too much memory."""
MANY_ANSWERS = 24
"""With so many of them in its pass, the first token of a prompt comes about twice as late as without. With fewer,
reading the weights once more costs more than is gained.
"""


class Schedulable(Protocol):
    """What a pass can compute rows of; a `Sequence` is one. pending: rows. arrived: in seconds."""

    @property
    def pending(self) -> int:
        """Rows still to compute."""

    @property
    def arrived(self) -> float:
        """When it was asked for, in seconds of any clock."""


S = TypeVar("S", bound=Schedulable)


def schedule(sequences: Collection[S], row_seconds: float, pass_seconds: float = PASS_S) -> dict[S, int]:
    """Divide the next pass into scheduled chunks: rows by sequence, in order. Every sequence has at least one pending
    row. row_seconds: what a row takes. pass_seconds: what the pass may take where no answer is streaming.
    """
    scheduled = {sequence: 1 for sequence in sequences if sequence.pending == 1}
    token_budget = rows_within(DECODING_PASS_S if scheduled else pass_seconds, row_seconds) - len(scheduled)
    for sequence in in_order(sequences, row_seconds):
        if token_budget > 0:
            scheduled[sequence] = min(token_budget, sequence.pending)
            token_budget -= scheduled[sequence]
    return scheduled


def schedule_alone(sequences: Collection[S], row_seconds: float) -> dict[S, int]:
    """Prompts that are computed to their end in a pass of their own, while the answers that are streaming wait: rows by
    sequence. Empty if that is not worth it. Not for two passes one after another.
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
    """Prompts and modules, the one first that would be done first if each were alone."""
    prompts = [sequence for sequence in sequences if sequence.pending > 1]
    return sorted(prompts, key=lambda prompt: prompt.arrived + prompt.pending * row_seconds)


def rows_within(seconds: float, row_seconds: float) -> int:
    """How many rows a pass has that may take so long."""
    return max(LEAST_ROWS, min(MOST_ROWS, int(seconds / row_seconds)))
