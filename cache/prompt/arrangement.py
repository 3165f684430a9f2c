"""Placement of conversations: the position ids of modules and texts, in the order in which they are given.

- contiguous: one after another. The closest of the three to full attention.
- slotted: every module but the first, the system text, begins at a multiple of a slot's length behind the end of the
  first; text follows without a gap (Prompt Cache, Gim et al., MLSys 2024, without a schema).
- shared: modules without text between them begin at the same id, and what follows begins behind the longest (APE, ICLR
  2025, without its temperature). The first module stands before the others.

KL divergence from full attention with the bundled model: contiguous .088, slots of 256 .119; behind a shorter prefix,
contiguous .105, shared .156. Modules here have text only. Not covered: the fixed positions of a schema
(`cache.pml.layout`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from cache.errors import PromptError
from cache.prompt.parts import Text, TextModule
from cache.prompt.plan import Plan, Segment, Span, end_computed, join_spans
from cache.prompt.tokenizer import Tokenizer, run_tokens

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
    """Tokenise and place the parts of a prompt.

    position_independent: whether a segment encoded once may be placed at any offset. If not, a segment is encoded at
        the position where it stands, without a left context.
    max_positions: usable position ids of the model, 0 .. max_positions-1.
    slot: length of a slot in position ids, for `slotted`.

    Raises PromptError for a prompt without tokens or with more than `max_positions`, and for a prompt that ends in a
    shared group whose longest module is not the last.
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
        raise PromptError("a prompt with shared positions must end in text, or in the longest of its last modules")
    return Plan(spans=end_computed(joined))


class Places:
    """Assigns position ids from the beginning of a prompt to its end. end: the first id behind all so far."""

    def __init__(self, placement: Placement, slot: int) -> None:
        self._placement, self._slot = placement, slot
        self.end = 0
        self._origin: int | None = None
        self._group: int | None = None

    def text(self, length: int) -> int:
        """Where the next `length` tokens of text begin."""
        if length:
            self._group = None
        self.end += length
        return self.end - length

    def module(self, length: int) -> int:
        """Where the next module of `length` tokens begins. A module without tokens changes nothing."""
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
    """The segment of a module, behind its conditioning prefix and its left context.

    room: usable position ids, None for no limit. If prefix, left context and module need more, modules of the left
        context are left out, the first ones first.
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
