"""The scheduled rows of sequences as one packed pass. No tensors of its own, no state."""

from collections.abc import Mapping
from dataclasses import dataclass

from cache.attention.items import Chunk
from cache.attention.scoring import ScoredChunk
from cache.engine.row_scoring import RowScoring
from cache.engine.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedPass:
    """What a model is given for a pass. outputs: packed rows whose logits are wanted. rows_of: which of these each
    sequence wants, in order. scored: chunks whose attention is scored.
    """

    chunks: list[Chunk]
    outputs: list[int]
    rows_of: dict[Sequence, slice]
    scored: list[ScoredChunk]
    num_rows: int


def pack_pass(
    scheduled: Mapping[Sequence, int], num_outputs: Mapping[Sequence, int], scorings: Mapping[Sequence, RowScoring]
) -> PackedPass:
    """Pack rows by sequence. num_outputs: of how many of its last rows a sequence wants logits, none if it is not
    there. scorings: of the sequences that are computed for their attention.
    """
    outputs: list[int] = []
    rows_of: dict[Sequence, slice] = {}
    num_rows = 0
    for sequence, rows in scheduled.items():
        num_rows += rows
        rows_behind = sequence.pending - rows
        wanted = min(rows, num_outputs.get(sequence, 0) - rows_behind)
        if wanted > 0:
            rows_of[sequence] = slice(len(outputs), len(outputs) + wanted)
            outputs.extend(range(num_rows - wanted, num_rows))
    return PackedPass(
        chunks=[sequence.chunk(rows) for sequence, rows in scheduled.items()],
        outputs=outputs,
        rows_of=rows_of,
        scored=[scorings[s].scored(i, rows) for i, (s, rows) in enumerate(scheduled.items()) if s in scorings],
        num_rows=num_rows,
    )
