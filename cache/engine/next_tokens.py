"""The next token of every answer of a pass. Not covered: how it is chosen (`cache.decoding.choosing`)."""

from collections.abc import Callable, Mapping

from torch import Tensor

from cache.decoding.choosing import ToHost, choose_tokens, rows_of
from cache.engine.row_limit import is_shortage
from cache.engine.running import Running


def next_tokens(
    logits: Tensor, rows: Mapping[Running, int], to_host: ToHost, note_shortage: Callable[[str], object]
) -> dict[Running, int | Exception]:
    """The next token of each answer; for those that fail alone, what was raised. logits: float32 `[N, vocabulary]`.
    rows: which row of them each answer goes on from, ascending. note_shortage: told why device memory has run out;
    then tokens are chosen on the host.
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
