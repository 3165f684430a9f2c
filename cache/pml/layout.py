"""Lay out a schema: every text run, module, union and slot gets fixed position ids.

Nodes are placed one after another, depth first, from id 0. A text run takes one id per token, a parameter its length, a
union the length of its longest member. All members of a union start at the same id. Needs a tokenizer but no tensors.
Based on Prompt Cache (Gim et al., MLSys 2024), section 3. Out of scope: imports of a prompt (`binding`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from cache.errors import Where
from cache.pml.nodes import Module, Node, Parameter, Role, Scaffold, Schema, Union, check_schema, joined, mistake, walk
from cache.prompt.parts import Text
from cache.prompt.plan import Span
from cache.prompt.tokenizer import NO_ROLES, Roles, Tokenizer, run_tokens

ItemKind = Literal["module", "text", "parameter", "union"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutItem:
    """One line of a layout. start, length: in position ids. path: module names from the root, joined by `/`; parameters
    add their name. Text and unions have the path of their module.
    """

    path: str
    kind: ItemKind
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Slot:
    """Position ids of a parameter. While its module is encoded, the slot has its placeholder, then filler tokens."""

    start: int
    length: int
    placeholder: tuple[int, ...]
    filler: int

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens in the slot while its module is encoded. They are made on demand because a slot can be long."""
        return self.placeholder + (self.filler,) * (self.length - len(self.placeholder))


@dataclass(slots=True, kw_only=True)
class PlacedOwner:
    """A module, or the schema (path ""), at position ids `start` .. `end`-1. union: number of the union that contains
    it, if any.
    """

    path: str
    node: Schema | Module
    start: int
    end: int = 0
    union: int | None = None
    runs: list[Span] = field(default_factory=list)
    slots: dict[str, Slot] = field(default_factory=dict)
    children: "dict[str, PlacedOwner]" = field(default_factory=dict)

    @property
    def is_cached(self) -> bool:
        return isinstance(self.node, Schema) or self.node.cached

    def pieces(self) -> list[Span | Slot]:
        return [*self.runs, *(slot for slot in self.slots.values() if slot.length)]


@dataclass(frozen=True, slots=True)
class Layout:
    """A schema at its position ids. scaffolds: sets of paths that are also encoded together, in declared order."""

    schema: Schema
    items: tuple[LayoutItem, ...]
    root: PlacedOwner
    scaffolds: tuple[frozenset[str], ...]
    tokenizer: Tokenizer
    roles: Roles
    max_positions: int | None

    @property
    def length(self) -> int:
        return self.root.end

    def owners(self) -> Iterator[PlacedOwner]:
        """Return the schema and every module, parents first."""
        stack = [self.root]
        while stack:
            owner = stack.pop()
            yield owner
            stack.extend(reversed(owner.children.values()))


def lay_out(
    schema: Schema, tokenizer: Tokenizer, *, roles: Roles = NO_ROLES, max_positions: int | None = None
) -> Layout:
    """Check and place a schema. roles: strings of the model's chat template. max_positions: usable ids are 0 ..
    max_positions-1. Raises PMLError for violations of the rules (`nodes`), a role without template, a placeholder
    longer than its slot, and a schema that needs more positions than the model has.
    """
    check_schema(schema)  # schemas built in code are not checked before
    placer = Placer(tokenizer, roles)
    for event, node in walk(schema):
        if event == "enter":
            placer.enter(node)
        else:
            placer.leave(node)
    root, items, scaffolds = placer.root, tuple(placer.items), tuple(placer.scaffolds)
    assert root is not None
    if max_positions is not None and root.end > max_positions:
        raise mistake(schema, f"needs {root.end} positions, the model has {max_positions}; shorten it")
    return Layout(schema, items, root, scaffolds, tokenizer, roles, max_positions)


@dataclass(slots=True)
class OpenUnion:
    """A union whose members are being placed. end: end of the longest member so far."""

    number: int
    start: int
    end: int


class Placer:
    """Assigns position ids to the nodes of a schema, in document order."""

    def __init__(self, tokenizer: Tokenizer, roles: Roles) -> None:
        self.tokenizer, self.roles = tokenizer, roles
        self.items: list[LayoutItem] = []
        self.scaffolds: list[frozenset[str]] = []
        self.root: PlacedOwner | None = None
        self._cursor = 0
        self._run: list[Text] = []
        self._owners: list[PlacedOwner] = []
        self._parents: list[PlacedOwner | OpenUnion] = []
        self._num_unions = 0

    def enter(self, node: Node) -> None:
        if not isinstance(node, Text | Role):
            self._end_run()
        match node:
            case Text():
                self._run.append(node)
            case Role():
                self._run.append(Text(text=role_text(node, self.roles)[0], structural=True))
            case Schema() | Module():
                self._open(node)
            case Union():
                self._parents.append(OpenUnion(self._num_unions, self._cursor, self._cursor))
                self._num_unions += 1
                if node.scaffold is not None:
                    owner = self._owners[-1].path
                    self.scaffolds.append(frozenset({owner, joined(owner, node.scaffold)}))
            case Parameter():
                self._place_slot(node)
            case Scaffold():
                self.scaffolds.append(frozenset(node.modules))

    def leave(self, node: Node) -> None:
        match node:
            case Role():
                self._run.append(Text(text=role_text(node, self.roles)[1], structural=True))
            case Schema() | Module():
                self._end_run()
                self._close()
            case Union():
                union = self._parents.pop()
                assert isinstance(union, OpenUnion)
                self._cursor = union.end
                self._item(self._owners[-1].path, "union", union.start)

    def _open(self, node: Schema | Module) -> None:
        parent = self._parents[-1] if self._parents else None
        union = parent.number if isinstance(parent, OpenUnion) else None
        path = joined(self._owners[-1].path, node.name) if self._owners else ""
        owner = PlacedOwner(path=path, node=node, start=self._cursor, union=union)
        if self._owners:
            self._owners[-1].children[node.name] = owner
        else:
            self.root = owner
        self._owners.append(owner)
        self._parents.append(owner)
        if node.file is not None:
            self._run.append(Text(text=node.file.text))

    def _close(self) -> None:
        owner = self._owners.pop()
        self._parents.pop()
        owner.end = self._cursor
        if owner.path:
            self._item(owner.path, "module", owner.start)
        parent = self._parents[-1] if self._parents else None
        if isinstance(parent, OpenUnion):
            parent.end = max(parent.end, self._cursor)
            self._cursor = parent.start

    def _place_slot(self, parameter: Parameter) -> None:
        owner = self._owners[-1]
        placeholder = run_tokens([Text(text=parameter.placeholder)], self.tokenizer)
        if len(placeholder) > parameter.length:
            sizes = f"{len(placeholder)} tokens, the slot {parameter.length}"
            raise mistake(parameter, f"the placeholder has {sizes}; shorten it or raise length")
        owner.slots[parameter.name] = Slot(self._cursor, parameter.length, placeholder, self.tokenizer.filler)
        start, self._cursor = self._cursor, self._cursor + parameter.length
        self._item(joined(owner.path, parameter.name), "parameter", start)

    def _end_run(self) -> None:
        tokens = run_tokens(self._run, self.tokenizer)
        self._run.clear()
        if tokens:
            owner = self._owners[-1]
            owner.runs.append(Span(start=self._cursor, tokens=tokens))
            start, self._cursor = self._cursor, self._cursor + len(tokens)
            self._item(owner.path, "text", start)

    def _item(self, path: str, kind: ItemKind, start: int) -> None:
        self.items.append(LayoutItem(path=path, kind=kind, start=start, length=self._cursor - start))


def role_text(role: Role, roles: Roles, where: Where = "schema") -> tuple[str, str]:
    """Return the template strings before and after a turn. Raises PMLError if the template has no such role."""
    if role.role not in roles:
        remedy = "write plain text, or choose a template"
        raise mistake(role, f"the model's chat template has no such turn; {remedy}", where)
    strings = roles[role.role]
    return (strings.open, strings.close) if role.children else (strings.alone, "")
