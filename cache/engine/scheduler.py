"""Which sequence computes how many rows in the next forward pass. No tensors.

Sequences that generate come first, one row each, so that running answers keep their pace; prompts and modules being
encoded fill the rest of the pass in order of arrival, in chunks.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cache.engine.sequence import Sequence

MAX_ROWS = 512
"""Rows of one pass when no answer is streaming: enough for large matrix products."""

MAX_ROWS_WHILE_DECODING = 128
"""Rows of one pass while answers are streaming: bounds the pause between two of their tokens."""


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """`rows` of a sequence in the next pass."""

    sequence: Sequence
    rows: int


def schedule(sequences: Iterable[Sequence]) -> list[ScheduledChunk]:
    """Divide the next pass among sequences; every sequence has at least one pending row."""
    waiting = list(sequences)
    scheduled = [ScheduledChunk(sequence, 1) for sequence in waiting if sequence.pending == 1]
    token_budget = (MAX_ROWS_WHILE_DECODING if scheduled else MAX_ROWS) - len(scheduled)
    for sequence in waiting:
        if sequence.pending > 1 and token_budget > 0:
            scheduled.append(ScheduledChunk(sequence, min(token_budget, sequence.pending)))
            token_budget -= scheduled[-1].rows
    return scheduled
