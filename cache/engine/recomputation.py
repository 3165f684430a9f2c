"""Selective recomputation: which rows of placed modules are computed again in the request that uses them.

A module was encoded without the modules that stand before it in a prompt. Computing some of its rows again, in place
and with everything before them in sight, links it to them; the rest stays as it was encoded. A policy only changes the
plan. Anything short of all rows is approximate.

- first: the first k rows of every module, where what is missing shows most (EPIC, Hu et al., ICML 2025).
- share, by question: the rows of the newest modules that the question looks at (InfoFlow KV, ICML 2026): a pass over
  the question alone scores them by the attention of some layers past the middle.
- share, by chance: the control for the one before.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from torch import Tensor

from cache.prompt.plan import Plan, Segment, Span, join_spans

REMEMBERED = 10_000
"""Choices kept for later turns of conversations; without its choices a turn is computed as it was placed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveRecomputation:
    """What to compute again. first: rows at the beginning of each module. share: of the rows of the modules that came
    with the last turn, chosen `by` the question or at random. EXACT leaves nothing that is not exact as it stands, also
    of earlier turns. Raises ValueError for values out of range.
    """

    first: int = 0
    share: float = 0.0
    by: Literal["question", "random"] = "question"

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError(f"first is {self.first}: 0 or more rows")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is {self.share}: from 0 to 1")


EXACT = SelectiveRecomputation(share=1.0)
"""Computes everything again but modules that are exact where they stand (`Plan.exact_part`)."""

Rows = Mapping[int, Collection[int]]
"""Rows to compute again, counted in their span, by the span's index."""

ScoreRows = Callable[[Plan, Sequence[int]], Sequence[Tensor]]
"""(plan, indices of spans) -> for each span, float32 `[rows]`: how much the question looks at it."""


class RowSelector:
    """Applies policies; remembers what was chosen in a conversation, so that its next turn finds this one's rows."""

    def __init__(self) -> None:
        self._chosen: OrderedDict[tuple[str, int, Segment], tuple[int, ...]] = OrderedDict()

    def select(
        self, plan: Plan, recomputation: SelectiveRecomputation, session: str | None, score_attention: ScoreRows
    ) -> Plan:
        """The plan with the policy's rows computed."""
        loose = [i for i, span in enumerate(plan.spans) if span.segment is not None and i >= plan.exact_spans]
        if not loose or not (recomputation.first or recomputation.share):
            return plan
        rows: dict[int, set[int]] = {i: set(range(min(recomputation.first, len(plan.spans[i].tokens)))) for i in loose}
        if not recomputation.share:
            return with_recomputed(plan, rows)
        new = {i for i in newest(plan) if not self._is_chosen(session, plan.spans[i])}  # a turn may bring none
        for i in loose:
            rows[i] |= set(self._recall(session, plan.spans[i]) if i not in new else ())
        fresh = [i for i in loose if i in new]
        budget = round(recomputation.share * sum(len(plan.spans[i].tokens) for i in new))
        for i, chosen in self._choose(plan, rows, fresh, budget, recomputation, score_attention).items():
            rows[i] |= set(chosen)
            self._remember(session, plan.spans[i], chosen)
        return with_recomputed(plan, rows)

    def clear(self) -> None:
        """Remember nothing of any conversation."""
        self._chosen.clear()

    def _choose(
        self,
        plan: Plan,
        rows: Rows,
        fresh: list[int],
        budget: int,
        recomputation: SelectiveRecomputation,
        score_attention: ScoreRows,
    ) -> Rows:
        if not fresh:
            return {}
        if recomputation.by == "random":
            candidates = [(i, row) for i in fresh for row in range(len(plan.spans[i].tokens))]
            chosen = random.Random(plan.num_tokens).sample(candidates, min(budget, len(candidates)))
        else:
            older = with_recomputed(plan, {i: rows[i] for i in rows if i not in fresh})
            shift = len(older.spans) - len(plan.spans)  # spans of older turns may be in pieces now
            row_scores = score_attention(older, [i + shift for i in fresh])
            scored = [
                (float(score), i, row)
                for i, scores in zip(fresh, row_scores, strict=True)
                for row, score in enumerate(scores)
            ]
            chosen = [(i, row) for _, i, row in sorted(scored, key=lambda s: -s[0])[:budget]]
        return {i: tuple(sorted(row for j, row in chosen if j == i)) for i in fresh}

    def _is_chosen(self, session: str | None, span: Span) -> bool:
        return session is not None and (session, span.start, span.segment) in self._chosen

    def _recall(self, session: str | None, span: Span) -> tuple[int, ...]:
        assert span.segment is not None
        return () if session is None else self._chosen.get((session, span.start, span.segment), ())

    def _remember(self, session: str | None, span: Span, rows: Collection[int]) -> None:
        if session is None or span.segment is None:
            return
        self._chosen[session, span.start, span.segment] = tuple(rows)
        while len(self._chosen) > REMEMBERED:
            self._chosen.popitem(last=False)


def newest(plan: Plan) -> list[int]:
    """Indices of the spans that segments supply between the last two computed ones; not the prompt's first span, which
    nothing stands before.
    """
    found: list[int] = []
    for i in range(len(plan.spans) - 2, 0, -1):
        if plan.spans[i].segment is None:
            break
        found.append(i)
    return found[::-1]


def with_recomputed(plan: Plan, rows: Rows) -> Plan:
    """The same tokens at the same ids, some rows of segments computed."""
    spans: list[Span] = []
    for i, span in enumerate(plan.spans):
        computed = set(rows.get(i, ()))
        for is_computed, group in groupby(range(len(span.tokens)), key=lambda row: row in computed):
            part = list(group)
            first, tokens = part[0], span.tokens[part[0] : part[-1] + 1]
            piece = replace(span, start=span.start + first, tokens=tokens, row=span.row + first)
            spans.append(replace(piece, segment=None, row=0) if is_computed or span.segment is None else piece)
    return Plan(spans=join_spans(spans))
