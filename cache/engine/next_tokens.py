"""From scheduled rows to one packed pass, and from its logits to the next token of each answer. No state. Out of scope:
choosing a token (`cache.decoding.choosing`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from cache.attention.items import Chunk
from cache.attention.scoring import ScoredChunk
from cache.decoding.choosing import ToHost, choose_tokens, rows_of
from cache.engine.device_memory import is_shortage
from cache.engine.running import Running
from cache.engine.sequence import Sequence
from cache.engine.waiting import RowScoring


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedPass:
    """The input of a model's pass. outputs: packed rows whose logits are needed. rows_of: each sequence's slice of
    them. scored: chunks whose attention is scored.
    """

    chunks: list[Chunk]
    outputs: list[int]
    rows_of: dict[Sequence, slice]
    scored: list[ScoredChunk]
    num_rows: int


def pack_pass(
    scheduled: Mapping[Sequence, int], num_outputs: Mapping[Sequence, int], scorings: Mapping[Sequence, RowScoring]
) -> PackedPass:
    """Pack rows by sequence. num_outputs: number of last rows of a sequence whose logits are needed. scorings: of
    sequences computed for their attention.
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


def next_tokens(
    logits: Tensor, rows: Mapping[Running, int], to_host: ToHost, note_shortage: Callable[[str], object]
) -> dict[Running, int | Exception]:
    """Return the next token of each answer, or its error. logits: float32 `[N, vocabulary]`. rows: each answer's row,
    ascending. note_shortage: called with the reason when device memory runs out; then tokens are chosen on the host.
    """
    if not rows:
        return {}
    samplers, answers = [one.sampler for one in rows], [one.answer for one in rows]
    drawn, shortage = [sampler.num_drawn for sampler in samplers], ""
    try:
        tokens = choose_tokens(rows_of(logits, [*rows.values()]), samplers, answers, to_host)
        return dict(zip(rows, tokens, strict=True))
    except Exception as error:
        if is_shortage(error):
            shortage = str(error)
        elif len(rows) == 1:
            return dict.fromkeys(rows, error)
    for sampler, before in zip(samplers, drawn, strict=True):
        if sampler.num_drawn > before:
            sampler.draw_again()
    if shortage:
        note_shortage(shortage)
        logits, to_host = logits.cpu(), Tensor.cpu
    alone = (next_tokens(logits, {one: row}, to_host, note_shortage) for one, row in rows.items())
    return {one: token for found in alone for one, token in found.items()}
