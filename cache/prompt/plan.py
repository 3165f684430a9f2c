"""A plan: which tokens of a prompt stand at which position ids, and which of them an encoded segment supplies.

A plan is a list of spans in reading order. The tokens of a span stand at consecutive position ids. A computed token
sees all tokens of the spans before it, and of its own span up to itself.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tokens whose keys and values are computed together, in one causal pass, and kept.

    start: position id of the first token while the segment is encoded.
    gaps: (row, ids left out before it) wherever positions jump, in ascending rows.
    prefix: the conditioning prefix, a segment that stands before this one while it is encoded; kept on its own.
    left_context: tokens between prefix and segment while it is encoded, at the ids right before `start`, in the same
        causal pass; not kept (FusionRAG, SIGMOD 2026: a passage reads its neighbours first).
    """

    name: str
    tokens: tuple[int, ...]
    start: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    prefix: "Segment | None" = None
    # Long, and almost always equal if the tokens are equal: without it, hashing is as good and much cheaper.
    left_context: tuple[int, ...] = field(default=(), hash=False)

    def __post_init__(self) -> None:
        if self.prefix is not None and not self.prefix.tokens:
            raise ValueError(f"segment {self.name!r}: its conditioning prefix {self.prefix.name!r} has no tokens")
        if len(self.left_context) > self.start:
            sizes = f"{self.start} position ids before it, {len(self.left_context)} in its left context"
            raise ValueError(f"segment {self.name!r}: {sizes}")

    @property
    def left_context_positions(self) -> range:
        """Position ids of the left context while the segment is encoded."""
        return range(self.start - len(self.left_context), self.start)

    def position(self, row: int) -> int:
        """Position id of a row while the segment is encoded."""
        return self.start + row + sum(jump for first, jump in self.gaps if first <= row)

    @property
    def positions(self) -> list[int]:
        """Position ids of all rows."""
        positions: list[int] = []
        at = self.start
        for (first, jump), (last, _) in pairwise([(0, 0), *self.gaps, (len(self.tokens), 0)]):
            at += jump
            positions.extend(range(at + first, at + last))
        return positions

    @property
    def end(self) -> int:
        """Position id behind the last row."""
        return self.position(len(self.tokens) - 1) + 1 if self.tokens else self.start

    def with_ancestors(self) -> "Iterator[Segment]":
        """The segment's conditioning prefixes, outermost first, then the segment itself."""
        if self.prefix is not None:
            yield from self.prefix.with_ancestors()
        yield self


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Tokens at consecutive position ids `start`, `start`+1, ...

    segment: supplies these tokens with its rows from `row` on; None if they are computed in every request.
    """

    start: int
    tokens: tuple[int, ...]
    segment: Segment | None = None
    row: int = 0

    @property
    def end(self) -> int:
        """Position id behind the last token."""
        return self.start + len(self.tokens)

    @property
    def offset(self) -> int:
        """Position ids from where the segment was encoded to where it stands here."""
        return 0 if self.segment is None else self.start - self.segment.position(self.row)

    def continues(self, previous: "Span") -> bool:
        """Whether these are the next rows of the same segment, moved by the same distance."""
        return (
            self.segment is previous.segment
            and self.row == previous.row + len(previous.tokens)
            and self.offset == previous.offset
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Spans in reading order. Their ids ascend without overlap, except that modules of a shared group (`arrangement`)
    have ids in common. The last span is always computed and has the highest ids.
    """

    spans: tuple[Span, ...]

    @property
    def num_tokens(self) -> int:
        """Prompt tokens, supplied and computed."""
        return sum(len(span.tokens) for span in self.spans)

    @property
    def next_position(self) -> int:
        """Position id of the first generated token: the highest id in the prompt + 1."""
        return self.spans[-1].end

    def segments(self) -> tuple[Segment, ...]:
        """Different segments of the plan, in reading order."""
        return tuple(dict.fromkeys(span.segment for span in self.spans if span.segment is not None))

    @property
    def is_exact(self) -> bool:
        """Whether every token sees what it would see without reuse."""
        return self.exact_spans == len(self.spans)

    @property
    def exact_spans(self) -> int:
        """How many leading spans are exact: the rows of each segment were encoded behind exactly the tokens (of prefix
        and left context), at exactly the distances, that stand before them here.
        """
        before: list[tuple[int, int]] = []
        previous: Span | None = None
        for index, span in enumerate(self.spans):
            if span.segment is not None and not (previous is not None and span.continues(previous)):
                *ancestors, segment = span.segment.with_ancestors()
                if any(ancestor.left_context for ancestor in ancestors):  # seen by their rows, not by the segment's own
                    return index
                seen: list[tuple[int, int]] = []
                for ancestor in ancestors:
                    seen += zip(ancestor.tokens, ancestor.positions, strict=True)
                seen += zip(segment.left_context, segment.left_context_positions, strict=True)
                seen += zip(segment.tokens[: span.row], segment.positions, strict=False)
                if [(token, position + span.offset) for token, position in seen] != before:
                    return index
            before += zip(span.tokens, range(span.start, span.end), strict=True)
            previous = span
        return len(self.spans)

    def exact_part(self) -> "Plan":
        """The same tokens at the same ids, with every span computed that is not exact."""
        return self.without_segments(self.exact_spans)

    def without_segments(self, first: int = 0) -> "Plan":
        """The same tokens at the same ids, all of them computed from a span on: full causal attention."""
        computed = (replace(span, segment=None, row=0) for span in self.spans[first:])
        return Plan(spans=join_spans([*self.spans[:first], *computed]))


def join_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Drop empty spans and join neighbouring computed ones that touch."""
    joined: list[Span] = []
    for span in spans:
        if not span.tokens:
            continue
        last = joined[-1] if joined else None
        if last is not None and last.segment is None and span.segment is None and last.end == span.start:
            joined[-1] = replace(last, tokens=last.tokens + span.tokens)
        else:
            joined.append(span)
    return tuple(joined)


def end_computed(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """Let the last token be computed, because generation starts from its logits. If a segment supplies the last token,
    that row of it is not used.
    """
    last = spans[-1]
    if last.segment is None:
        return spans
    tail = Span(start=last.end - 1, tokens=last.tokens[-1:])
    return join_spans((*spans[:-1], replace(last, tokens=last.tokens[:-1]), tail))
