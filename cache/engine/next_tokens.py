"""The next token of every answer of a pass. Not covered: how it is chosen (`cache.decoding.choosing`)."""

from collections.abc import Mapping

from torch import Tensor

from cache.decoding.choosing import ToHost, choose_tokens, rows_of
from cache.engine.running import Running


def next_tokens(logits: Tensor, rows: Mapping[Running, int], to_host: ToHost) -> dict[Running, int | Exception]:
    """The next token of each answer; for those that fail alone, what was raised. logits: float32 `[N, vocabulary]`.
    rows: which row of them each answer goes on from, ascending.
    """
    if not rows:
        return {}
    try:
        samplers, answers = [one.sampler for one in rows], [one.answer for one in rows]
        tokens = choose_tokens(rows_of(logits, [*rows.values()]), samplers, answers, to_host)
    except Exception as error:
        if len(rows) == 1:
            return dict.fromkeys(rows, error)
        alone = (next_tokens(logits, {one: row}, to_host) for one, row in rows.items())
        return {one: token for found in alone for one, token in found.items()}
    return dict(zip(rows, tokens, strict=True))
