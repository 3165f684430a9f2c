"""Training examples for modular attention: passages encoded one by one and several queries behind them, in one row.

An example has the shape of a request: a conditioning prefix; modules, each of which sees the prefix, a left context of
its own and itself; and queries, each a question with its answer. A query sees the prefix and the modules, but no left
context and no other query, so the passages are computed once for many queries. An example can also be packed for full
attention, where a module sees the modules before it. How the rows are attended to: `example_attention`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingQuery:
    """Token ids of a question, up to where the answer begins, and of the answer: all of it with the token that ends it,
    or only its beginning. refused: whether the answer is a refusal.
    """

    question: TokenIds
    answer: TokenIds
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingExample:
    """modules: token ids, in prompt order. left_contexts: tokens each module is encoded behind; no query sees them.
    gaps: position ids left unused before each module.
    """

    prefix: TokenIds
    modules: tuple[TokenIds, ...]
    left_contexts: tuple[TokenIds, ...]
    gaps: tuple[int, ...]
    queries: tuple[TrainingQuery, ...]


@dataclass(frozen=True, slots=True)
class PackedSegment:
    """Rows of a module or of a left context. They see the prefix, the rows `left_context` and themselves.

    offset: position ids from where the keys are computed to where queries see them (may be negative); None for a left
    context, which no query sees.
    """

    left_context: slice
    rows: slice
    offset: int | None


@dataclass(frozen=True, slots=True)
class PackedExample:
    """An example as one row of tokens.

    tokens, positions: int64 `[1, T]`. prefix: number of rows of the prefix. segments: ascending by rows, a shared left
    context once; none for full attention. queries: first row of each query, then the row behind the last.
    rows: int64 `[A]`, the rows whose logits predict the answers' tokens.
    """

    tokens: Tensor
    positions: Tensor
    prefix: int
    segments: tuple[PackedSegment, ...]
    queries: tuple[int, ...]
    rows: Tensor


def pack(example: TrainingExample, *, modular: bool) -> PackedExample:
    """Lay an example out. modular: modules do not see each other; else full attention at the same position ids."""
    tokens: list[int] = []
    positions: list[int] = []

    def add(new: Sequence[int], start: int) -> slice:
        first = len(tokens)
        tokens.extend(new)
        positions.extend(range(start, start + len(new)))
        return slice(first, len(tokens))

    at = base = add(example.prefix, 0).stop
    nothing = slice(base, base)
    left_contexts: dict[TokenIds, slice] = {(): nothing}
    segments: list[PackedSegment] = []
    for module, left_context, gap in zip(example.modules, example.left_contexts, example.gaps, strict=True):
        at += gap
        if modular:
            if left_context not in left_contexts:
                left_contexts[left_context] = add(left_context, base)
                segments.append(PackedSegment(nothing, left_contexts[left_context], None))
            start = base + len(left_context)
            segments.append(PackedSegment(left_contexts[left_context], add(module, start), at - start))
        else:
            add(module, at)
        at += len(module)
    queries = [len(tokens)]
    rows: list[int] = []
    for query in example.queries:
        queries.append(add((*query.question, *query.answer[:-1]), at).stop)
        rows += range(queries[-1] - len(query.answer), queries[-1])
    ids = torch.tensor([tokens, positions])
    return PackedExample(ids[:1], ids[1:], base, tuple(segments), tuple(queries), torch.tensor(rows))
