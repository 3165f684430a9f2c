"""Who computes how many rows in the next forward pass. No tensors.

Sequences that generate come first, one row each, so that running answers keep their pace; prompts and modules being
encoded fill the rest of the pass in order of arrival, in chunks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cache.engine.sequence import Sequence

MAX_ROWS = 512
"""Rows of one pass when nobody is waiting for a next token: enough to keep the matrix units busy."""

MAX_ROWS_WHILE_DECODING = 128
"""Rows of one pass while answers are streaming: bounds the pause between two of their tokens."""


@dataclass(frozen=True, slots=True)
class Share:
    """`rows` of a sequence in the next pass."""

    sequence: Sequence
    rows: int


def schedule(sequences: Iterable[Sequence]) -> list[Share]:
    """Share out the next pass; every sequence has at least one pending row."""
    decoding: list[Sequence] = []
    prefilling: list[Sequence] = []
    for sequence in sequences:
        (decoding if sequence.pending == 1 else prefilling).append(sequence)
    shares = [Share(sequence, 1) for sequence in decoding]
    room = (MAX_ROWS_WHILE_DECODING if decoding else MAX_ROWS) - len(shares)
    for sequence in prefilling:
        if room <= 0:
            break
        rows = min(room, sequence.pending)
        shares.append(Share(sequence, rows))
        room -= rows
    return shares
