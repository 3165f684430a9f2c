"""PML as data: the nodes of a schema and of a prompt. No XML, no tokenizer, no tensors.

A schema is a tree of text, modules, unions, parameters and roles. A prompt names a schema and holds imports and new
text. `line` is a node's line in its source; comparisons ignore it. Text from documents and users is literal: only a
`Text` made by a chat template is structural. Reading and writing XML: `parser`, `writer`; what is allowed: `rules`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from cache.prompt.parts import RoleName, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A slot of `length` position ids for a value of the prompt. `placeholder` fills it while its module is encoded."""

    name: str
    length: int
    placeholder: str = ""
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """The `src` of a module or schema: its name as written, and its trimmed content, which comes before inline text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A reusable piece of prompt. Its own text is encoded together; nested modules are encoded separately.

    cached: False computes the module's own text in every request and never keeps it.
    """

    name: str
    children: "tuple[Child, ...]" = ()
    cached: bool = True
    file: File | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """Modules of which a prompt imports at most one. All start at the same position id.

    scaffold: a member that is also encoded together with the own text of the module around the union.
    """

    members: tuple[Module, ...]
    scaffold: str | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A chat turn: the chat template's strings around its children, which belong to the module or schema around it."""

    role: RoleName
    children: "tuple[Child, ...]" = ()
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """Paths of modules that are also encoded together, for prompts that import all of them."""

    modules: tuple[str, ...]
    line: int = field(default=0, compare=False)


Child: TypeAlias = Text | Module | Union | Parameter | Role | Scaffold


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The root, a module that is always imported. It has no parameters, and scaffolds stand only here."""

    name: str
    children: tuple[Child, ...] = ()
    file: File | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """A reference to a module, with values for its parameters and with references to modules nested in it."""

    module: str
    arguments: tuple[tuple[str, str], ...] = ()
    children: "tuple[Import, ...]" = ()
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request: imports, new text and chat turns, in order."""

    schema: str
    parts: tuple[Import | Text | Role, ...] = ()
    line: int = field(default=0, compare=False)


def open_turns(children: Sequence[Child | Import]) -> list[Child | Import]:
    """Children of a module, schema or prompt, with the content of chat turns in place of the turns."""
    return [part for child in children for part in (child.children if isinstance(child, Role) else (child,))]


def joined(path: str, name: str) -> str:
    """The path of a module or parameter in a module, whose path is "" for the schema."""
    return f"{path}/{name}" if path else name


Node: TypeAlias = Schema | Child
Event = Literal["enter", "leave"]


def walk(schema: Schema) -> Iterator[tuple[Event, Node]]:
    """Every node in document order: `enter` before its children, `leave` behind them. Any depth: no recursion."""
    stack: list[tuple[Event, Node]] = [("enter", schema)]
    while stack:
        event, node = stack.pop()
        yield event, node
        if event == "enter":
            stack.append(("leave", node))
            children: Sequence[Child] = node.members if isinstance(node, Union) else getattr(node, "children", ())
            stack.extend(("enter", child) for child in reversed(children))
