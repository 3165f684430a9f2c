"""From a schema to position ids: every text run, module, union and slot gets its fixed place, once.

Depth first, one cursor from 0: a text run takes its tokens, a parameter its length, a union its longest member, whose
members all start together. Needs a tokenizer, no tensors. What a prompt imports of it: `binding`.
After Prompt Cache (Gim et al., MLSys 2024), section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from cache.pml.nodes import Module, Node, Parameter, Role, Scaffold, Schema, Union, walk
from cache.pml.rules import check_schema, mistake
from cache.prompt.parts import Text
from cache.prompt.roles import NO_ROLES, Roles
from cache.prompt.tokenizer import Tokenizer, run_tokens

Kind = Literal["module", "text", "parameter", "union"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One line of a layout. path: module names from the root joined by `/`, a parameter's name last; text and unions
    bear their parent's path.
    """

    path: str
    kind: Kind
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Run:
    """A text run of an owner: tokens at ids from `start`."""

    start: int
    tokens: tuple[int, ...]

    @property
    def end(self) -> int:
        """Id behind the last token."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Slot:
    """Ids of a parameter. While its module is encoded, the placeholder stands in them, then filler."""

    start: int
    length: int
    placeholder: tuple[int, ...]
    filler: int

    @property
    def end(self) -> int:
        """Id behind the last one."""
        return self.start + self.length

    @property
    def tokens(self) -> tuple[int, ...]:
        """What fills it while it is encoded: made on demand, because a slot may be long and unused."""
        return self.placeholder + (self.filler,) * (self.length - len(self.placeholder))


@dataclass(slots=True, kw_only=True)
class Placed:
    """A module (or the root, with path "") at its position ids `start` .. `end`-1.

    union: the union it is a member of, numbered through the schema, if any.
    """

    path: str
    node: Schema | Module
    start: int
    end: int = 0
    union: int | None = None
    runs: list[Run] = field(default_factory=list)
    slots: dict[str, Slot] = field(default_factory=dict)
    children: dict[str, Placed] = field(default_factory=dict)

    @property
    def is_cached(self) -> bool:
        """Whether its own text is encoded once and kept."""
        return not isinstance(self.node, Module) or self.node.cached

    def pieces(self) -> Iterator[Run | Slot]:
        """Text runs and slots that take ids."""
        yield from self.runs
        yield from (slot for slot in self.slots.values() if slot.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A schema at its position ids. scaffolds: sets of paths encoded together as well, in order of declaration."""

    schema: Schema
    items: tuple[Item, ...]
    root: Placed
    scaffolds: tuple[frozenset[str], ...]
    tokenizer: Tokenizer
    roles: Roles
    max_positions: int | None

    @property
    def length(self) -> int:
        """Position ids of the schema."""
        return self.root.end

    def placed(self) -> Iterator[Placed]:
        """The root and every module, parents first."""
        stack = [self.root]
        while stack:
            placed = stack.pop()
            yield placed
            stack.extend(reversed(placed.children.values()))


def lay_out(
    schema: Schema,
    tokenizer: Tokenizer,
    *,
    roles: Roles = NO_ROLES,
    max_positions: int | None = None,
    run_limit: int | None = None,
) -> Layout:
    """Check and place a schema.

    roles: strings of the model's chat template. max_positions: usable ids are 0 .. max_positions-1, None for no limit.
    run_limit: longer text runs keep so many tokens, half of them from each end.
    Raises PMLError: what `pml_rules` refuses, a role without template, a placeholder longer than its slot, a schema
    longer than the model.
    """
    check_schema(schema)  # it may have been built as data, not read
    placer = Placer(tokenizer, roles, run_limit)
    for event, node in walk(schema):
        if event == "enter":
            placer.enter(node)
        else:
            placer.leave(node)
    root = placer.root
    assert root is not None
    if max_positions is not None and root.end > max_positions:
        raise mistake(schema, f"needs {root.end} positions, the model has {max_positions}; shorten it")
    return Layout(
        schema=schema,
        items=tuple(placer.items),
        root=root,
        scaffolds=tuple(placer.scaffolds),
        tokenizer=tokenizer,
        roles=roles,
        max_positions=max_positions,
    )


@dataclass(slots=True)
class OpenUnion:
    """A union whose members are being placed."""

    number: int
    start: int
    end: int


class Placer:
    """The cursor on its way through a schema."""

    def __init__(self, tokenizer: Tokenizer, roles: Roles, run_limit: int | None) -> None:
        self.tokenizer, self.roles, self.run_limit = tokenizer, roles, run_limit
        self.items: list[Item] = []
        self.scaffolds: list[frozenset[str]] = []
        self.root: Placed | None = None
        self._cursor = 0
        self._run: list[Text] = []
        self._owners: list[Placed] = []
        self._parents: list[Placed | OpenUnion] = []
        self._num_unions = 0

    def enter(self, node: Node) -> None:
        """Place a node's beginning. Raises PMLError."""
        match node:
            case Text():
                self._run.append(node)
            case Role():
                self._run.append(Text(text=role_text(node, self.roles)[0], structural=True))
            case Schema() | Module():
                self._end_run()
                self._open(node)
            case Union():
                self._end_run()
                self._parents.append(OpenUnion(self._num_unions, self._cursor, self._cursor))
                self._num_unions += 1
                if node.scaffold is not None:
                    owner = self._owners[-1].path
                    self.scaffolds.append(frozenset({owner, joined(owner, node.scaffold)}))
            case Parameter():
                self._end_run()
                self._slot(node)
            case Scaffold():
                self._end_run()
                self.scaffolds.append(frozenset(node.modules))

    def leave(self, node: Node) -> None:
        """Place a node's end."""
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
            case _:
                pass

    def _open(self, node: Schema | Module) -> None:
        parent = self._parents[-1] if self._parents else None
        path = joined(self._owners[-1].path, node.name) if self._owners else ""
        placed = Placed(path=path, node=node, start=self._cursor)
        if isinstance(parent, OpenUnion):
            placed.union = parent.number
        if self._owners:
            self._owners[-1].children[node.name] = placed
        else:
            self.root = placed
        self._owners.append(placed)
        self._parents.append(placed)
        if node.file is not None:
            self._run.append(Text(text=node.file.text))

    def _close(self) -> None:
        placed = self._owners.pop()
        self._parents.pop()
        placed.end = self._cursor
        if placed.path:
            self._item(placed.path, "module", placed.start)
        parent = self._parents[-1] if self._parents else None
        if isinstance(parent, OpenUnion):
            parent.end = max(parent.end, self._cursor)
            self._cursor = parent.start

    def _slot(self, parameter: Parameter) -> None:
        owner = self._owners[-1]
        placeholder = run_tokens([Text(text=parameter.placeholder)], self.tokenizer)
        if len(placeholder) > parameter.length:
            sizes = f"{len(placeholder)} tokens, the slot {parameter.length}"
            raise mistake(parameter, f"the placeholder has {sizes}; shorten it or raise length")
        owner.slots[parameter.name] = Slot(self._cursor, parameter.length, placeholder, self.tokenizer.filler)
        start, self._cursor = self._cursor, self._cursor + parameter.length
        self._item(joined(owner.path, parameter.name), "parameter", start)

    def _end_run(self) -> None:
        """Tokenise the text since the last element."""
        if not self._run:
            return
        tokens = run_tokens(self._run, self.tokenizer, self.run_limit)
        self._run.clear()
        if tokens:
            owner = self._owners[-1]
            owner.runs.append(Run(self._cursor, tokens))
            start, self._cursor = self._cursor, self._cursor + len(tokens)
            self._item(owner.path, "text", start)

    def _item(self, path: str, kind: Kind, start: int) -> None:
        self.items.append(Item(path=path, kind=kind, start=start, length=self._cursor - start))


def joined(path: str, name: str) -> str:
    """A name below a path."""
    return f"{path}/{name}" if path else name


def role_text(role: Role, roles: Roles) -> tuple[str, str]:
    """Template strings before and behind a turn. Raises PMLError if the model has no such turns."""
    if role.role not in roles:
        raise mistake(role, "the model's chat template has no such turn; write plain text, or choose a template")
    strings = roles[role.role]
    return (strings.open, strings.close) if role.children else (strings.alone, "")
