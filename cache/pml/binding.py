"""Make a plan from a prompt and a laid-out schema: imports, arguments, and positions of new text. Also a registry of
schemas.

Own texts of the schema and of imported modules have the position ids of the schema; encoded segments supply them. Text
after the last reference starts at the schema's length. Text between two references is placed after the first one's
module. The order of imports never changes an id. All errors are raised here, before anything is computed. The registry
stores no encoded modules. The engine finds them by content, so a replaced schema reuses every unchanged module.
"""

import threading
from bisect import bisect, insort
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from cache.errors import PMLError
from cache.pml.layout import Layout, PlacedOwner, lay_out, role_text
from cache.pml.nodes import Import, Prompt, Role, Schema, mistake
from cache.prompt.parts import Text
from cache.prompt.plan import Plan, Segment, Span, end_computed, join_spans
from cache.prompt.tokenizer import NO_ROLES, ChatTokenizer, Roles, Tokenizer, run_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A prompt at its position ids. arguments: position ids of each non-empty argument, ascending. text: position ids
    of all new text, ascending. rendered: the new text after the last module, with role strings.
    """

    plan: Plan
    arguments: tuple[tuple[int, ...], ...]
    text: tuple[int, ...]
    rendered: str


def bind(prompt: Prompt, layout: Layout, *, position_independent: bool = True) -> Bound:
    """Place a prompt. position_independent: a segment can be encoded once and placed at any offset. If False, segments
    are encoded at their schema ids. Raises PMLError.
    """
    return Binder(prompt, layout, position_independent).bind()


def module_segments(layout: Layout, *, position_independent: bool = True) -> list[Segment]:
    """Return every segment that a schema can use, scaffold sets last, for encoding in advance."""
    by_path = {owner.path: owner for owner in layout.owners()}
    groups = [[owner] for owner in by_path.values() if owner.is_cached]
    groups += [[by_path[path] for path in scaffold] for scaffold in layout.scaffolds]
    return [segment_of(layout, group, position_independent)[0] for group in groups if any(o.runs for o in group)]


def segment_of(layout: Layout, owners: list[PlacedOwner], position_independent: bool) -> tuple[Segment, int]:
    """Return the own texts of owners as one segment, and the schema id of its first row. Placeholders fill the slots.
    At least one owner must have text. A segment that is not at id 0 is encoded after the tokenizer's sink prefix, so
    that the model does not treat its first token as the start of a text.
    """
    last = max(run.start for owner in owners for run in owner.runs)  # no text sees a slot after the last text
    pieces = sorted((piece.start, piece.tokens) for owner in owners for piece in owner.pieces() if piece.start <= last)
    tokens: list[int] = []
    gaps: list[tuple[int, int]] = []
    at = first = pieces[0][0]
    for start, piece in pieces:
        if start > at:
            gaps.append((len(tokens), start - at))
        tokens += piece
        at = start + len(piece)
    sink_prefix = layout.tokenizer.sink_prefix if first else ()
    segment = Segment(
        name=" + ".join(sorted(f"{layout.schema.name}/{owner.path}".rstrip("/") for owner in owners)),
        tokens=tuple(tokens),
        start=len(sink_prefix) if position_independent else first,
        gaps=tuple(gaps),
        prefix=Segment(name="sink prefix", tokens=sink_prefix) if sink_prefix else None,
    )
    return segment, first


@dataclass(slots=True)
class Binder:
    """State of binding one prompt. imported: owners by path, the schema first. members: path of the imported member, by
    the number of its union.
    """

    prompt: Prompt
    layout: Layout
    position_independent: bool
    imported: dict[str, PlacedOwner] = field(default_factory=dict)
    arguments: list[Span] = field(default_factory=list)
    texts: list[Span] = field(default_factory=list)
    members: dict[int, str] = field(default_factory=dict)

    def fail(self, message: str, part: Import | None = None) -> PMLError:
        return mistake(part or self.prompt, message, "prompt")

    def bind(self) -> Bound:
        if self.prompt.schema != self.layout.schema.name:
            raise self.fail(f"it is for schema {self.prompt.schema!r}, not {self.layout.schema.name!r}")
        if not self.prompt.parts:
            raise self.fail("it is empty; import a module or write text")
        self.imported[""] = self.layout.root
        self.import_all()
        rendered = self.place_texts()
        spans = join_spans(sorted([*self.arguments, *self.texts, *self.module_spans()], key=lambda span: span.start))
        if not spans:
            raise self.fail("it has no tokens; import a module with text or write text")
        limit = self.layout.max_positions
        if limit is not None and spans[-1].end > limit:
            raise self.fail(f"it needs {spans[-1].end} positions, the model has {limit}")
        return Bound(
            plan=Plan(spans=end_computed(spans)),
            arguments=tuple(tuple(range(s.start, s.end)) for s in sorted(self.arguments, key=lambda s: s.start)),
            text=tuple(sorted(at for span in self.texts for at in range(span.start, span.end))),
            rendered=rendered,
        )

    def import_all(self) -> None:
        stack = [(self.layout.root, part) for part in reversed(self.prompt.parts) if isinstance(part, Import)]
        while stack:
            parent, reference = stack.pop()
            owner = parent.children.get(reference.module)
            if owner is None:
                raise self.fail(self.unknown(parent, reference.module), reference)
            if owner.path in self.imported:
                raise self.fail(f"{owner.path!r} is imported twice; remove one", reference)
            if owner.union is not None:
                other = self.members.setdefault(owner.union, owner.path)
                if other != owner.path:
                    raise self.fail(f"{owner.path!r} and {other!r} exclude each other; keep one", reference)
            self.imported[owner.path] = owner
            if len(dict(reference.arguments)) < len(reference.arguments):
                raise self.fail("an argument is given twice; remove one", reference)
            for name, value in reference.arguments:
                self.fill(owner, reference, name, value)
            stack.extend((owner, child) for child in reversed(reference.children))

    def unknown(self, parent: PlacedOwner, module: str) -> str:
        where = f"module {parent.path!r}" if parent.path else f"schema {self.layout.schema.name!r}"
        for owner in self.layout.owners():
            if owner.path and owner.path.rpartition("/")[2] == module:
                nested = "".join(f"<{name}>" for name in owner.path.split("/"))
                return f"no such module directly in {where}; write its path, {nested}"
        return f"no such module in {where}; known: {', '.join(list(parent.children)[:8]) or 'none'}"

    def fill(self, owner: PlacedOwner, reference: Import, name: str, value: str) -> None:
        slot = owner.slots.get(name)
        if slot is None:
            known = ", ".join(owner.slots) or "none"
            raise self.fail(f"module {owner.path!r} has no parameter {name!r}; it has: {known}", reference)
        tokens = run_tokens([Text(text=value)], self.layout.tokenizer)
        if len(tokens) > slot.length:
            sizes = f"{len(tokens)} tokens, its slot {slot.length}"
            raise self.fail(f"argument {name!r} has {sizes}; shorten it or raise the parameter's length", reference)
        if tokens:
            self.arguments.append(Span(start=slot.start, tokens=tokens))

    def place_texts(self) -> str:
        """Place every run of new text. Returns the last one as text. Raises PMLError."""
        runs: list[tuple[Import | None, list[Text]]] = [(None, [])]
        for part in self.prompt.parts:
            if isinstance(part, Import):
                runs.append((part, []))
            else:
                runs[-1][1].extend(turn_texts(part, self.layout) if isinstance(part, Role) else [part])
        *between, (_, last) = runs
        # Position ids of all imported own texts and whole slots, as (first, last + 1).
        occupied = sorted((piece.start, piece.end) for owner in self.imported.values() for piece in owner.pieces())
        for reference, run in between:
            if not run:
                continue
            if reference is None:
                raise self.fail("text is before the first module reference; move it after one")
            self.texts.append(self.place_between(reference, run, occupied))
        tokens = run_tokens(last, self.layout.tokenizer)
        if tokens:
            self.texts.append(Span(start=self.layout.length, tokens=tokens))
        return "".join(text.text for text in last)

    def place_between(self, reference: Import, run: list[Text], occupied: list[tuple[int, int]]) -> Span:
        """Place text between two references, after the first one's module. Raises PMLError if it does not fit."""
        at = self.layout.root.children[reference.module].end
        tokens = run_tokens(run, self.layout.tokenizer)
        index = bisect(occupied, (at,))
        before = occupied[index - 1][1] if index else 0
        behind = occupied[index][0] if index < len(occupied) else self.layout.length
        room = behind - at if before <= at else 0
        if len(tokens) > room:
            sizes = f"{len(tokens)} tokens, only {room} fit before the next module"
            raise self.fail(f"the text after it has {sizes}; move it to the end of the prompt", reference)
        if tokens:
            insort(occupied, (at, at + len(tokens)))
        return Span(start=at, tokens=tokens)

    def module_spans(self) -> Iterator[Span]:
        """Return own texts of all imports. Segments supply them, except for modules that are not cached."""
        together = self.scaffold_sets()
        for path, owner in self.imported.items():
            if not owner.is_cached:
                yield from owner.runs
            elif owner.runs:
                segment, first = together.get(path) or segment_of(self.layout, [owner], self.position_independent)
                rows = {position - segment.start + first: row for row, position in enumerate(segment.positions)}
                yield from (replace(run, segment=segment, row=rows[run.start]) for run in owner.runs)

    def scaffold_sets(self) -> dict[str, tuple[Segment, int]]:
        """Return the segment of each path in a complete scaffold set. Larger sets win, then earlier declared ones."""
        complete = [s for s in self.layout.scaffolds if all(p in self.imported for p in s)]
        chosen: dict[str, tuple[Segment, int]] = {}
        for scaffold in sorted(complete, key=len, reverse=True):
            owners = [self.imported[path] for path in scaffold]
            if any(owner.runs for owner in owners) and not any(path in chosen for path in scaffold):
                chosen.update(dict.fromkeys(scaffold, segment_of(self.layout, owners, self.position_independent)))
        return chosen


def turn_texts(role: Role, layout: Layout) -> list[Text]:
    head, tail = role_text(role, layout.roles, "prompt")
    inner = [child for child in role.children if isinstance(child, Text)]
    if len(inner) < len(role.children):
        raise mistake(role, "a chat turn of a prompt holds text only", "prompt")
    return [Text(text=head, structural=True), *inner, *([Text(text=tail, structural=True)] if tail else [])]


class ModelLimits(Protocol):
    """The properties of a model that layout and binding need. `ModelInfo` has them."""

    @property
    def max_positions(self) -> int:
        """Usable position ids are 0 .. max_positions-1."""

    @property
    def is_position_independent(self) -> bool:
        """True if a segment can be encoded once and placed at any offset."""


class Registry:
    """Stores schemas by name. Thread-safe. roles: strings of the chat template around turns. max_positions,
    position_independent: as in `ModelLimits`; None sets no limit.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        roles: Roles = NO_ROLES,
        max_positions: int | None = None,
        position_independent: bool = True,
    ) -> None:
        self.tokenizer = tokenizer
        self._roles, self._max_positions, self._position_independent = roles, max_positions, position_independent
        self._layouts: dict[str, Layout] = {}
        self._lock = threading.Lock()

    @classmethod
    def for_model(cls, tokenizer: ChatTokenizer, limits: ModelLimits) -> "Registry":
        return cls(
            tokenizer,
            roles=tokenizer.template.roles,
            max_positions=limits.max_positions,
            position_independent=limits.is_position_independent,
        )

    def lay_out(self, schema: Schema) -> Layout:
        return lay_out(schema, self.tokenizer, roles=self._roles, max_positions=self._max_positions)

    def segments_of(self, layout: Layout) -> list[Segment]:
        return module_segments(layout, position_independent=self._position_independent)

    def bind(self, prompt: Prompt) -> Bound:
        return bind(prompt, self.of(prompt), position_independent=self._position_independent)

    def add(self, schema: Schema) -> Layout:
        """Lay out a schema and store it. Raises PMLError, also for an existing name; then nothing is changed."""
        layout = self.lay_out(schema)
        with self._lock:
            if schema.name in self._layouts:
                raise PMLError(f"schema {schema.name!r} exists; replace it, or choose another name", where="registry")
            self._layouts[schema.name] = layout
        return layout

    def replace(self, schema: Schema) -> Layout:
        """Lay out a schema and replace one with the same name. Raises PMLError; then nothing is changed."""
        layout = self.lay_out(schema)
        with self._lock:
            self._layouts[schema.name] = layout
        return layout

    def remove(self, name: str) -> None:
        with self._lock:
            if self._layouts.pop(name, None) is None:
                raise PMLError(f"there is no schema {name!r} to remove; known: {self._known()}", where="registry")

    def of(self, prompt: Prompt) -> Layout:
        with self._lock:
            layout = self._layouts.get(prompt.schema)
            if layout is None:
                raise mistake(prompt, f"there is no schema {prompt.schema!r}; known: {self._known()}", "prompt")
            return layout

    def _known(self) -> str:
        return ", ".join(sorted(self._layouts)) or "none"
