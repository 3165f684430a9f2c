"""From a prompt and a laid-out schema to a plan: what is imported, what is filled in, where new text stands.

Root text and the own text of imported modules stand at their schema ids and are supplied by encoded segments; arguments
stand in their slots, text behind the last reference at the schema's length, text between references in the gap behind
the first of them. Ids of what is not imported stay unused. Import order never changes an id. Everything that can be
refused is refused here, before any compute.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from cache.errors import PMLError
from cache.pml.layout import Layout, Placed, role_text
from cache.pml.nodes import Import, Prompt, Role
from cache.prompt.parts import Text
from cache.prompt.plan import Plan, Segment, Span, end_computed, join_spans
from cache.prompt.tokenizer import run_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A prompt at its position ids.

    arguments: ids of each argument that is not empty, by first id. text: ids of all new text, ascending.
    rendered: the text behind the last reference, template strings included.
    """

    plan: Plan
    arguments: tuple[tuple[int, ...], ...]
    text: tuple[int, ...]
    rendered: str


def bind(prompt: Prompt, layout: Layout, *, position_independent: bool = True) -> Bound:
    """Place a prompt.

    position_independent: whether a segment encoded once may be placed at any offset; if not, segments are encoded at
        their schema ids.
    Raises PMLError for everything section 4.2 of the language refuses, and for a prompt beyond the model's positions.
    """
    return Binder(prompt, layout, position_independent).bind()


def module_segments(layout: Layout, *, position_independent: bool = True) -> list[Segment]:
    """Every segment a schema can use, scaffold sets last: what encoding it ahead of use computes."""
    by_path = {placed.path: placed for placed in layout.placed()}
    owners = [[placed] for placed in by_path.values() if placed.is_cached]
    owners += [[by_path[path] for path in scaffold] for scaffold in layout.scaffolds]
    return [
        segment_of(layout, group, position_independent)[0] for group in owners if any(owner.runs for owner in group)
    ]


def segment_of(layout: Layout, owners: list[Placed], position_independent: bool) -> tuple[Segment, int]:
    """The own texts of owners, encoded in one pass, with their slots filled by placeholders, and the schema id of the
    first row. At least one owner has text.

    A segment whose first token has id 0 has nothing before it in any prompt and is encoded alone; others stand behind
    the tokenizer's sink prefix, so that their first token is not taken for the beginning of everything.
    """
    last = max(run.start for owner in owners for run in owner.runs)  # nothing sees a slot behind the last text
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
    """One prompt on its way to a plan. imported: by path, the root first."""

    prompt: Prompt
    layout: Layout
    position_independent: bool
    imported: dict[str, Placed] = field(default_factory=dict)
    arguments: list[Span] = field(default_factory=list)
    texts: list[Span] = field(default_factory=list)
    members: dict[int, str] = field(default_factory=dict)

    def fail(self, message: str, line: int) -> PMLError:
        """An error about the prompt."""
        return PMLError(message, where="prompt", line=line or None)

    def bind(self) -> Bound:
        """See the function `bind`."""
        if self.prompt.schema != self.layout.schema.name:
            raise self.fail(
                f"<prompt>: it is for schema {self.prompt.schema!r}, not {self.layout.schema.name!r}", self.prompt.line
            )
        if not self.prompt.parts:
            raise self.fail("<prompt>: it is empty; import a module or write text", self.prompt.line)
        self.imported[""] = self.layout.root
        self.import_all()
        rendered = self.place_texts()
        spans = join_spans(sorted([*self.arguments, *self.texts, *self.module_spans()], key=lambda span: span.start))
        if not spans:
            raise self.fail("<prompt>: it has no tokens; import a module with text or write text", self.prompt.line)
        limit = self.layout.max_positions
        if limit is not None and spans[-1].end > limit:
            raise self.fail(f"<prompt>: it needs {spans[-1].end} positions, the model has {limit}", self.prompt.line)
        return Bound(
            plan=Plan(spans=end_computed(spans)),
            arguments=tuple(tuple(range(s.start, s.end)) for s in sorted(self.arguments, key=lambda s: s.start)),
            text=tuple(sorted(at for span in self.texts for at in range(span.start, span.end))),
            rendered=rendered,
        )

    def import_all(self) -> None:
        """Resolve references, parents before children, and place arguments."""
        stack = [(self.layout.root, part) for part in reversed(self.prompt.parts) if isinstance(part, Import)]
        while stack:
            parent, reference = stack.pop()
            placed = parent.children.get(reference.module)
            if placed is None:
                raise self.fail(self.unknown(parent, reference), reference.line)
            if placed.path in self.imported:
                raise self.fail(f"<{reference.module}>: {placed.path!r} is imported twice; remove one", reference.line)
            if placed.union is not None:
                other = self.members.setdefault(placed.union, placed.path)
                if other != placed.path:
                    raise self.fail(
                        f"<{reference.module}>: {placed.path!r} and {other!r} exclude each other; keep one",
                        reference.line,
                    )
            self.imported[placed.path] = placed
            if len(dict(reference.arguments)) < len(reference.arguments):
                raise self.fail(f"<{reference.module}>: an argument is given twice; remove one", reference.line)
            for name, value in reference.arguments:
                self.fill(placed, reference, name, value)
            stack.extend((placed, child) for child in reversed(reference.children))

    def unknown(self, parent: Placed, reference: Import) -> str:
        """What to say about a module that is not where it was looked for."""
        where = f"module {parent.path!r}" if parent.path else f"schema {self.layout.schema.name!r}"
        elsewhere = [p.path for p in self.layout.placed() if p.path.rpartition("/")[2] == reference.module and p.path]
        if elsewhere:
            nested = "".join(f"<{name}>" for name in elsewhere[0].split("/"))
            return f"<{reference.module}>: no such module directly in {where}; write its path, {nested}"
        known = ", ".join(list(parent.children)[:8]) or "none"
        return f"<{reference.module}>: no such module in {where}; known: {known}"

    def fill(self, placed: Placed, reference: Import, name: str, value: str) -> None:
        """Place an argument in its slot."""
        slot = placed.slots.get(name)
        if slot is None:
            known = ", ".join(placed.slots) or "none"
            raise self.fail(
                f"<{reference.module}>: module {placed.path!r} has no parameter {name!r}; it has: {known}",
                reference.line,
            )
        tokens = run_tokens([Text(text=value)], self.layout.tokenizer)
        if len(tokens) > slot.length:
            raise self.fail(
                f"<{reference.module}>: argument {name!r} has {len(tokens)} tokens, its slot {slot.length}; "
                "shorten it or raise the parameter's length",
                reference.line,
            )
        if tokens:
            self.arguments.append(Span(start=slot.start, tokens=tokens))

    def place_texts(self) -> str:
        """Place every run of new text; returns the last one as text."""
        runs: list[tuple[Import | None, list[Text]]] = [(None, [])]
        for part in self.prompt.parts:
            if isinstance(part, Import):
                runs.append((part, []))
            else:
                runs[-1][1].extend(turn_texts(part, self.layout) if isinstance(part, Role) else [part])
        *between, (_, last) = runs
        occupied = self.occupied()
        for reference, run in between:
            if not run:
                continue
            if reference is None:
                raise self.fail(
                    "<prompt>: text stands before the first module reference; move it behind one", self.prompt.line
                )
            self.texts.append(self.place_between(reference, run, occupied))
        tokens = run_tokens(last, self.layout.tokenizer)
        if tokens:
            self.texts.append(Span(start=self.layout.length, tokens=tokens))
        return "".join(text.text for text in last)

    def place_between(self, reference: Import, run: list[Text], occupied: list[tuple[int, int]]) -> Span:
        """Text behind a reference and before another: in the gap behind the module, if it fits."""
        at = self.layout.root.children[reference.module].end
        tokens = run_tokens(run, self.layout.tokenizer)
        index = bisect(occupied, (at,))
        before = occupied[index - 1][1] if index else 0
        behind = occupied[index][0] if index < len(occupied) else self.layout.length
        room = behind - at if before <= at else 0
        if len(tokens) > room:
            raise self.fail(
                f"<{reference.module}>: the text behind it has {len(tokens)} tokens, there is room for {room} before "
                "what comes next; move it to the end of the prompt",
                reference.line,
            )
        if tokens:
            insort(occupied, (at, at + len(tokens)))
        return Span(start=at, tokens=tokens)

    def occupied(self) -> list[tuple[int, int]]:
        """Ids taken by own texts and whole slots of what is imported, as (first, behind the last), ascending."""
        return sorted((piece.start, piece.end) for placed in self.imported.values() for piece in placed.pieces())

    def module_spans(self) -> Iterator[Span]:
        """Own texts of what is imported, each from its segment, or computed where the schema says so."""
        together = self.scaffold_sets()
        for path, placed in self.imported.items():
            if not placed.is_cached:
                yield from (Span(start=run.start, tokens=run.tokens) for run in placed.runs)
            elif placed.runs:
                segment, first = together.get(path) or segment_of(self.layout, [placed], self.position_independent)
                rows = {position - segment.start + first: row for row, position in enumerate(segment.positions)}
                for run in placed.runs:
                    yield Span(start=run.start, tokens=run.tokens, segment=segment, row=rows[run.start])

    def scaffold_sets(self) -> dict[str, tuple[Segment, int]]:
        """The segment for each path that a complete scaffold set supplies: larger sets first, then declared first."""
        complete = [s for s in self.layout.scaffolds if all(p in self.imported for p in s)]
        chosen: dict[str, tuple[Segment, int]] = {}
        for scaffold in sorted(complete, key=len, reverse=True):
            owners = [self.imported[path] for path in scaffold]
            if any(owner.runs for owner in owners) and not any(path in chosen for path in scaffold):
                chosen.update(dict.fromkeys(scaffold, segment_of(self.layout, owners, self.position_independent)))
        return chosen


def turn_texts(role: Role, layout: Layout) -> list[Text]:
    """A chat turn of a prompt as text pieces. Raises PMLError."""
    try:
        head, tail = role_text(role, layout.roles)
    except PMLError as error:
        raise PMLError(error.message, where="prompt", line=error.line) from None
    inner = [child for child in role.children if isinstance(child, Text)]
    if len(inner) < len(role.children):
        raise PMLError(
            f"<{role.role}>: a chat turn of a prompt holds text only", where="prompt", line=role.line or None
        )
    return [Text(text=head, structural=True), *inner, *([Text(text=tail, structural=True)] if tail else [])]
