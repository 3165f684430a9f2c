"""PML as data: the nodes of a schema and of a prompt. No XML, no tokenizer, no tensors.

A schema is a tree of text, modules, unions, parameters and roles; a prompt names a schema and holds imports and new
text. `line` is where a node stands in its source and takes no part in comparisons. `walk` visits a tree of any depth
without recursion.

Text from documents and users is literal: only a `Text` made by a chat template is structural. Reading and writing XML:
`pml_parser`, `pml_writer`; what is allowed: `pml_rules`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from cache.prompt.parts import RoleName, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A slot of `length` position ids for a run-time value; `placeholder` stands in it while its module is encoded."""

    name: str
    length: int
    placeholder: str = ""
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """The `src` of a module or schema: the name as written, and the trimmed content, which precedes inline text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A reusable piece of prompt. Its own text is encoded together; nested modules are pieces of their own.

    cached: False computes the own text in every request and never keeps it.
    """

    name: str
    children: tuple[Child, ...] = ()
    cached: bool = True
    file: File | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """Modules of which a prompt imports one at most; all start at the same position id.

    scaffold: the member that is encoded together with the enclosing module's own text as well.
    """

    members: tuple[Module, ...]
    scaffold: str | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A chat turn: its template's strings around its children, which belong to the owner around it."""

    role: RoleName
    children: tuple[Child, ...] = ()
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """Paths of modules that are encoded together as well, for prompts that import all of them."""

    modules: tuple[str, ...]
    line: int = field(default=0, compare=False)


Child: TypeAlias = Text | Module | Union | Parameter | Role | Scaffold


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The root: like a module that is always imported. Holds no parameters; scaffolds stand only here."""

    name: str
    children: tuple[Child, ...] = ()
    file: File | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """A reference to a module, with values for its parameters and references to modules nested in it."""

    module: str
    arguments: tuple[tuple[str, str], ...] = ()
    children: tuple[Import, ...] = ()
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What one request says: imports, new text and chat turns, in the order in which they stand."""

    schema: str
    parts: tuple[Import | Text | Role, ...] = ()
    line: int = field(default=0, compare=False)


Node: TypeAlias = Schema | Child
Event = Literal["enter", "leave"]


def walk(schema: Schema) -> Iterator[tuple[Event, Node]]:
    """Every node in document order: `enter` before its children, `leave` behind them."""
    stack: list[tuple[Event, Node]] = [("enter", schema)]
    while stack:
        event, node = stack.pop()
        yield event, node
        if event == "enter":
            stack.append(("leave", node))
            stack.extend(("enter", child) for child in reversed(children_of(node)))


def children_of(node: Node) -> Sequence[Child]:
    """Nodes directly inside a node."""
    if isinstance(node, Union):
        return node.members
    return node.children if isinstance(node, Schema | Module | Role) else ()
