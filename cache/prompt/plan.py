"""A plan: the tokens of a prompt at their position ids, and the encoded segments that supply some of them.

A plan is a list of spans in reading order. The tokens of a span have consecutive position ids. A computed token sees
all tokens of earlier spans, and the tokens of its own span up to itself. Placement assigns position ids to the modules
and texts of a conversation, in order:

- contiguous: one after another. The closest of the three to full attention.
- slotted: the first module is the system text. Every later module begins at a multiple of the slot length after its
  end. Text follows without a gap (Prompt Cache, Gim et al., MLSys 2024, without a schema).
- shared: modules without text between them begin at the same id, and later parts begin after the longest module (APE,
  ICLR 2025, without its temperature). The first module is placed before the others.

KL divergence from full attention with the bundled model: contiguous .088, slots of 256 .119; after a shorter prefix,
contiguous .105, shared .156. Out of scope: the fixed positions of a schema (`cache.pml.layout`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from cache.errors import PromptError
from cache.prompt.parts import Text, TextModule
from cache.prompt.tokenizer import Tokenizer, run_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tokens whose keys and values are computed together, in one causal pass, and stored.

    start: position id of the first token while the segment is encoded. gaps: (row, ids skipped before it) for each jump
    of positions, rows ascending. prefix: the conditioning prefix, a segment before this one during encoding; stored
    separately. left_context: tokens between prefix and segment during encoding, at the ids directly before `start`, in
    the same causal pass; not stored (FusionRAG, SIGMOD 2026: a passage's neighbours).
    """

    name: str
    tokens: tuple[int, ...]
    start: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    prefix: "Segment | None" = None
    # Not hashed: it is long, and segments with equal tokens almost always have the same one.
    left_context: tuple[int, ...] = field(default=(), hash=False)

    def __post_init__(self) -> None:
        if self.prefix is not None and not self.prefix.tokens:
            raise ValueError(f"segment {self.name!r}: its conditioning prefix {self.prefix.name!r} has no tokens")
        if len(self.left_context) > self.start:
            sizes = f"only {self.start} position ids before it, but {len(self.left_context)} tokens of left context"
            raise ValueError(f"segment {self.name!r}: {sizes}")

    @property
    def left_context_positions(self) -> range:
        return range(self.start - len(self.left_context), self.start)

    def position(self, row: int) -> int:
        return self.start + row + sum(jump for first, jump in self.gaps if first <= row)

    @property
    def positions(self) -> list[int]:
        positions: list[int] = []
        at = self.start
        for (first, jump), (last, _) in pairwise([(0, 0), *self.gaps, (len(self.tokens), 0)]):
            at += jump
            positions.extend(range(at + first, at + last))
        return positions

    @property
    def end(self) -> int:
        return self.position(len(self.tokens) - 1) + 1 if self.tokens else self.start

    def with_ancestors(self) -> "Iterator[Segment]":
        """Yield the segment's conditioning prefixes, outermost first, then the segment itself."""
        if self.prefix is not None:
            yield from self.prefix.with_ancestors()
        yield self


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Tokens at consecutive position ids from `start` on. segment: its rows from `row` on supply these tokens; None if
    they are computed in every request.
    """

    start: int
    tokens: tuple[int, ...]
    segment: Segment | None = None
    row: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def offset(self) -> int:
        """Distance in position ids from where the segment was encoded to where it is placed."""
        return 0 if self.segment is None else self.start - self.segment.position(self.row)

    def continues(self, previous: "Span") -> bool:
        return (
            self.segment is previous.segment
            and self.row == previous.row + len(previous.tokens)
            and self.offset == previous.offset
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Spans in reading order. Their position ids ascend without overlap, except that modules of a shared group overlap.
    The last span is always computed and has the highest ids.
    """

    spans: tuple[Span, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(span.tokens) for span in self.spans)

    @property
    def next_position(self) -> int:
        """Position id of the first generated token: the highest id in the prompt + 1."""
        return self.spans[-1].end

    def segments(self) -> tuple[Segment, ...]:
        return tuple(dict.fromkeys(span.segment for span in self.spans if span.segment is not None))

    @property
    def is_exact(self) -> bool:
        return self.exact_spans == len(self.spans)

    @property
    def exact_spans(self) -> int:
        """Number of exact spans at the start. A span is exact if its segment was encoded after the same tokens (prefix
        and left context), at the same distances, as in this plan.
        """
        before: list[tuple[int, int]] = []
        previous: Span | None = None
        for index, span in enumerate(self.spans):
            if span.segment is not None and not (previous is not None and span.continues(previous)):
                *ancestors, segment = span.segment.with_ancestors()
                if any(ancestor.left_context for ancestor in ancestors):  # only the ancestor's rows saw it
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
        """Return the plan in which all spans after the exact ones are computed, at the same position ids."""
        return self.without_segments(self.exact_spans)

    def without_segments(self, first: int = 0) -> "Plan":
        """Return the plan in which spans from index `first` are computed with full causal attention."""
        computed = (replace(span, segment=None, row=0) for span in self.spans[first:])
        return Plan(spans=join_spans([*self.spans[:first], *computed]))


def join_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Drop empty spans, and join computed spans whose position ids are adjacent."""
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
    """Make the last token a computed one: generation starts from its logits. A segment's row for it is not used."""
    last = spans[-1]
    if last.segment is None:
        return spans
    tail = Span(start=last.end - 1, tokens=last.tokens[-1:])
    return join_spans((*spans[:-1], replace(last, tokens=last.tokens[:-1]), tail))


Placement = Literal["contiguous", "slotted", "shared"]


def arrange(
    parts: Sequence[TextModule | Text],
    tokenizer: Tokenizer,
    *,
    position_independent: bool,
    max_positions: int,
    placement: Placement = "contiguous",
    slot: int = 256,
) -> Plan:
    """Tokenise and place the parts of a prompt. position_independent: a segment can be encoded once and placed at any
    offset; if False, it is encoded at its place, without left context. max_positions: usable ids are 0 ..
    max_positions-1. slot: slot length in ids, for `slotted`. Raises PromptError if the prompt has no tokens or too
    many, or ends in a shared group whose longest module is not the last.
    """
    room = max_positions if position_independent else 0
    spans: list[Span] = []
    places = Places(placement, slot)
    pending: list[Text] = []

    def end_run() -> None:
        tokens = run_tokens(pending, tokenizer)
        spans.append(Span(start=places.text(len(tokens)), tokens=tokens))
        pending.clear()

    for part in parts:
        if isinstance(part, Text):
            pending.append(part)
            continue
        end_run()
        segment = module_segment(part, tokenizer, room=room)
        start = places.module(len(segment.tokens))
        if not position_independent:
            segment = replace(segment, start=start)
        spans.append(Span(start=start, tokens=segment.tokens, segment=segment))
    end_run()
    joined = join_spans(spans)
    if not joined:
        raise PromptError("the prompt is empty: it has neither text nor a module with text")
    if places.end > max_positions:
        raise PromptError(f"the prompt needs {places.end} positions, the model has {max_positions}")
    if joined[-1].end < places.end:
        raise PromptError("a prompt with shared positions must end in text or the longest module of its last group")
    return Plan(spans=end_computed(joined))


class Places:
    """Assigns position ids to the parts of a prompt, in order. end: the next unused id."""

    def __init__(self, placement: Placement, slot: int) -> None:
        self._placement, self._slot = placement, slot
        self.end = 0
        self._origin: int | None = None
        self._group: int | None = None

    def text(self, length: int) -> int:
        if length:
            self._group = None
        self.end += length
        return self.end - length

    def module(self, length: int) -> int:
        """Return the start of the next module of `length` tokens. A module without tokens changes nothing."""
        start = self.end
        if not length:
            return start
        if self._origin is None:
            self._origin = start + length
        elif self._placement == "slotted":
            start += -(start - self._origin) % self._slot
        elif self._placement == "shared":
            start = self._group = start if self._group is None else self._group
        self.end = max(self.end, start + length)
        return start


def module_segment(module: TextModule, tokenizer: Tokenizer, *, room: int | None = None) -> Segment:
    """Return the segment of a module, with its conditioning prefix and left context. room: number of usable position
    ids; None: no limit. If the left context does not fit, its first modules are dropped.
    """
    prefix = None if module.after is None else module_segment(module.after, tokenizer, room=room)
    if prefix is not None and not prefix.tokens:
        prefix = prefix.prefix
    tokens = run_tokens(module.pieces, tokenizer)
    start = 0 if prefix is None else prefix.end
    left_context: tuple[int, ...] = ()
    for other in reversed(module.left_context):
        longer = run_tokens(other.pieces, tokenizer) + left_context
        if room is not None and start + len(longer) + len(tokens) > room:
            break
        left_context = longer
    return Segment(
        name=module.name, tokens=tokens, start=start + len(left_context), prefix=prefix, left_context=left_context
    )
