"""Which sequence computes how many rows in the next forward pass. No tensors.

Sequences that generate come first, one row each, so that running answers keep their pace; prompts and modules being
encoded fill the rest of the pass in order of arrival, in chunks.
"""

from collections.abc import Collection

from cache.engine.sequence import Sequence

MAX_ROWS = 512
"""Rows of one pass when no answer is streaming: enough for large matrix products."""

MAX_ROWS_WHILE_DECODING = 128
"""Rows of one pass while answers are streaming: bounds the pause between two of their tokens."""


def schedule(sequences: Collection[Sequence], limit: int | None = None) -> dict[Sequence, int]:
    """Divide the next pass into scheduled chunks: rows by sequence, in order. Every sequence has at least one pending
    row. limit: rows of the pass, if fewer than usual.
    """
    scheduled = {sequence: 1 for sequence in sequences if sequence.pending == 1}
    usual = MAX_ROWS_WHILE_DECODING if scheduled else MAX_ROWS
    token_budget = min(usual, limit or usual) - len(scheduled)
    for sequence in sequences:
        if sequence.pending > 1 and token_budget > 0:
            scheduled[sequence] = min(token_budget, sequence.pending)
            token_budget -= scheduled[sequence]
    return scheduled
