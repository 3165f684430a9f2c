"""From a prompt to a plan: which tokens stand at which position ids, and which of them a module may supply.

Needs a tokenizer, no tensors. A plan is a list of spans in ascending position order; a span's tokens stand at
consecutive position ids, a computed token sees every token of the spans before it and of its own span up to itself.

Placement here is contiguous: every part starts where the one before it ended. (Measured with the bundled model,
gaps between modules cost answer quality.) Fixed schema positions belong to the full PML.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from cache.errors import PromptError
from cache.pml import Import, Module, Prompt, Schema, Text


class Tokenizer(Protocol):
    """The only thing layout asks of a tokenizer."""

    def encode(self, text: str, *, structural: bool = False) -> list[int]:
        """Token ids of `text`, without any token added. Special tokens are recognised only if `structural`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One unit of encoding: the tokens whose KV are computed together and kept.

    start: position id of the first token while the unit is encoded.
    prefix: the unit that stands before it while it is encoded, behind its own prefix; its rows are not kept here.
    """

    name: str
    tokens: tuple[int, ...]
    start: int = 0
    prefix: Unit | None = None

    def __post_init__(self) -> None:
        if self.prefix is not None and not self.prefix.tokens:
            raise ValueError(f"unit {self.name!r}: its conditioning prefix {self.prefix.name!r} has no tokens")

    def with_ancestors(self) -> Iterator[Unit]:
        """The unit's conditioning prefixes, outermost first, then the unit itself."""
        if self.prefix is not None:
            yield from self.prefix.with_ancestors()
        yield self


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Tokens at consecutive position ids `start`, `start`+1, ...

    unit: the unit whose first rows these tokens are, or None if they are computed in every request.
    """

    start: int
    tokens: tuple[int, ...]
    unit: Unit | None = None

    @property
    def end(self) -> int:
        """Position id behind the last token."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Spans in ascending, non-overlapping position order. The last span is always computed."""

    spans: tuple[Span, ...]

    @property
    def num_tokens(self) -> int:
        """Prompt tokens, supplied and computed."""
        return sum(len(span.tokens) for span in self.spans)

    @property
    def next_position(self) -> int:
        """Position id of the first generated token: highest id in the prompt + 1."""
        return self.spans[-1].end

    def units(self) -> tuple[Unit, ...]:
        """Units of the plan in position order."""
        return tuple(span.unit for span in self.spans if span.unit is not None)

    @property
    def is_exact(self) -> bool:
        """Whether every token sees what it would see under full attention: each unit was encoded behind exactly what
        stands before it here.
        """
        before: tuple[int, ...] = ()
        for span in self.spans:
            if span.start != len(before):  # a gap: a module behind it stands elsewhere than where it was encoded
                return not self.units()
            if span.unit is not None:
                conditioning = [token for unit in list(span.unit.with_ancestors())[:-1] for token in unit.tokens]
                if span.unit.start != span.start or before != tuple(conditioning):
                    return False
            before += span.tokens
        return True

    def without_units(self) -> Plan:
        """The same tokens at the same ids, all computed: ordinary causal attention."""
        return Plan(spans=join_spans(replace(span, unit=None) for span in self.spans))


def lay_out(prompt: Prompt, tokenizer: Tokenizer, *, relocatable: bool, max_positions: int) -> Plan:
    """Tokenise and place a prompt.

    relocatable: whether a module encoded once can be placed at any offset (rotary models). If not, a unit is
        encoded at the position where it stands, and its key says so.
    max_positions: usable position ids of the model, 0 .. max_positions-1.

    Raises PromptError for a prompt without tokens or with more than `max_positions`, and for an unknown module.
    """
    spans: list[Span] = []
    position = 0
    for part in prompt.parts:
        if isinstance(part, Import):
            if part.module not in prompt.schema.modules:
                raise PromptError(f"module {part.module!r} is not in schema {prompt.schema.name!r}")
            unit = unit_of(prompt.schema, prompt.schema.modules[part.module], tokenizer)
            if not relocatable:
                unit = replace(unit, start=position)
            span = Span(start=position, tokens=unit.tokens, unit=unit)
        else:
            span = Span(start=position, tokens=text_tokens(part, tokenizer))
        spans.append(span)
        position = span.end
    joined = join_spans(spans)
    if not joined:
        raise PromptError("the prompt is empty: it has neither text nor a module with text")
    if position > max_positions:
        raise PromptError(f"the prompt needs {position} positions, the model has {max_positions}")
    return Plan(spans=end_computed(joined))


def unit_of(schema: Schema, module: Module, tokenizer: Tokenizer) -> Unit:
    """The encoding unit of a module, behind its conditioning prefix if it has one."""
    prefix = None if module.after is None else unit_of(schema, schema.modules[module.after], tokenizer)
    if prefix is not None and not prefix.tokens:
        prefix = prefix.prefix
    tokens = tuple(token for text in module.texts for token in text_tokens(text, tokenizer))
    start = 0 if prefix is None else prefix.start + len(prefix.tokens)
    return Unit(name=module.name, tokens=tokens, start=start, prefix=prefix)


def text_tokens(text: Text, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Token ids of one text run."""
    if text.tokens is not None:
        return text.tokens
    return tuple(tokenizer.encode(text.text, structural=text.structural))


def join_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Drop empty spans and join neighbouring computed ones that touch."""
    joined: list[Span] = []
    for span in spans:
        if not span.tokens:
            continue
        last = joined[-1] if joined else None
        if last is not None and last.unit is None and span.unit is None and last.end == span.start:
            joined[-1] = replace(last, tokens=last.tokens + span.tokens)
        else:
            joined.append(span)
    return tuple(joined)


def end_computed(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """Let the last token be computed: its logits are what generation starts from.

    A prompt that ends in a module gives up that module's last row and computes the token instead.
    """
    last = spans[-1]
    if last.unit is None:
        return spans
    tail = Span(start=last.end - 1, tokens=last.tokens[-1:])
    kept = replace(last, tokens=last.tokens[:-1])
    return join_spans((*spans[:-1], kept, tail))
