"""Selective recomputation: a request computes some rows of its placed modules again.

Recomputed rows, at the same ids, see everything before them; the other rows do not change. A policy only changes the
plan. The result is approximate unless all rows are recomputed. The question selects rows of the newest modules
(InfoFlow KV, ICML 2026): it is computed once in advance, and the attention of some layers scores the rows (`waiting`).
For comparison, rows can also be selected at random.
"""

import random
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Literal

from cache.memory.keys import segment_key
from cache.prompt.plan import Plan, Span, join_spans

if TYPE_CHECKING:  # settings name policies, and every command reads settings: PyTorch takes seconds
    from torch import Tensor

REMEMBERED = 10_000  # selections stored for later turns of conversations


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveRecomputation:
    """A recomputation policy. share: part of the last turn's module rows to recompute. by: how they are selected.
    Raises ValueError for a share out of range.
    """

    share: float = 0.0
    by: Literal["question", "random"] = "question"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is {self.share}: it must be from 0 to 1")


EXACT = SelectiveRecomputation(share=1.0)
"""Recompute every module that is not exact at its place, also in earlier turns (`Plan.exact_part`)."""

RowsBySpan = Mapping[int, Collection[int]]  # rows to recompute, counted in their span, by the span's index


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSelection:
    """Rows to select in a plan. rows: selected in earlier turns. candidates: indices of the spans to select from.
    budget: number of rows to select. by: see `SelectiveRecomputation`.
    """

    plan: Plan
    rows: RowsBySpan
    candidates: Sequence[int]
    budget: int
    by: Literal["question", "random"]

    @property
    def needs_scores(self) -> bool:
        return bool(self.candidates) and self.by == "question"

    def scored_spans(self) -> tuple[Plan, list[int]]:
        """Return the plan to compute for scores, with earlier turns' rows, and each candidate's index in it."""
        earlier = with_recomputed(self.plan, self.rows)
        shift = len(earlier.spans) - len(self.plan.spans)  # spans of earlier turns may be split now
        return earlier, [i + shift for i in self.candidates]


class RowSelector:
    """Applies policies, and remembers a conversation's selected rows, so that its next turn can reuse them."""

    def __init__(self) -> None:
        self._selected: OrderedDict[tuple[str, int, str], tuple[int, ...]] = OrderedDict()

    def begin(self, plan: Plan, recomputation: SelectiveRecomputation, session: str | None) -> RowSelection:
        inexact: list[int] = []
        if recomputation.share:
            inexact = [i for i in range(plan.exact_spans, len(plan.spans)) if plan.spans[i].segment is not None]
        rows = {i: self._recall(session, plan.spans[i]) for i in inexact}
        new = [i for i in newest(plan) if self._recall(session, plan.spans[i]) is None]  # a turn may add none
        return RowSelection(
            plan=plan,
            rows={i: found for i, found in rows.items() if found},
            candidates=[i for i in inexact if i in new],
            budget=round(recomputation.share * sum(len(plan.spans[i].tokens) for i in new)),
            by=recomputation.by,
        )

    def finish(self, selection: RowSelection, session: str | None, scores: "Sequence[Tensor]" = ()) -> Plan:
        """Return the plan that computes the policy's rows. scores: float32 `[rows]` for each candidate, if needed."""
        plan, candidates = selection.plan, selection.candidates
        if selection.needs_scores:
            spans = zip(candidates, scores, strict=True)
            scored = [(float(score), i, row) for i, found in spans for row, score in enumerate(found)]
            selected = [(i, row) for _, i, row in sorted(scored, key=lambda s: -s[0])[: selection.budget]]
        else:
            every = [(i, row) for i in candidates for row in range(len(plan.spans[i].tokens))]
            # the same for every plan of the same length
            selected = random.Random(plan.num_tokens).sample(every, min(selection.budget, len(every)))
        rows = dict(selection.rows)
        for i in candidates:
            rows[i] = tuple(sorted(row for j, row in selected if j == i))
            self._remember(session, plan.spans[i], tuple(rows[i]))
        return with_recomputed(plan, rows) if rows else plan

    def clear(self) -> None:
        self._selected.clear()

    def _recall(self, session: str | None, span: Span) -> tuple[int, ...] | None:
        return None if session is None else self._selected.get(_selection_key(session, span))

    def _remember(self, session: str | None, span: Span, rows: tuple[int, ...]) -> None:
        if session is not None:
            self._selected[_selection_key(session, span)] = rows
        while len(self._selected) > REMEMBERED:
            self._selected.popitem(last=False)


def _selection_key(session: str, span: Span) -> tuple[str, int, str]:
    """Return a digest of a conversation's span, because the span itself would keep its tokens in memory."""
    assert span.segment is not None
    return session, span.start, segment_key(span.segment, fingerprint="")


def newest(plan: Plan) -> list[int]:
    """Return the indices of module spans between the last two computed spans, without the prompt's first span."""
    return sorted(takewhile(lambda i: plan.spans[i].segment is not None, range(len(plan.spans) - 2, 0, -1)))


def with_recomputed(plan: Plan, rows: RowsBySpan) -> Plan:
    spans: list[Span] = []
    for i, span in enumerate(plan.spans):
        computed = set(rows.get(i, ()))
        for is_computed, group in groupby(range(len(span.tokens)), key=lambda row: row in computed):
            part = list(group)
            first, tokens = part[0], span.tokens[part[0] : part[-1] + 1]
            piece = replace(span, start=span.start + first, tokens=tokens, row=span.row + first)
            spans.append(replace(piece, segment=None, row=0) if is_computed or span.segment is None else piece)
    return Plan(spans=join_spans(spans))
