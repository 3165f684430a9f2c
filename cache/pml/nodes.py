"""PML as data: the nodes of a schema and of a prompt, and the rules for a schema. No XML, no tokenizer, no tensors.

A schema is a tree of text, modules, unions, parameters and roles. A prompt names a schema and has imports and new text.
`line` is a node's line in its source; comparisons ignore it. Text of documents and users is literal; only strings of a
chat template are a structural `Text`. The rules check names, nesting, scopes and scaffold sets, for nodes from XML or
from code. Out of scope: XML (`parser`), checks that need a tokenizer or a chat template (`layout`).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, TypeAlias
from xml.parsers import expat

from cache.errors import PMLError, Where
from cache.prompt.parts import ROLES, RoleName, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A slot of `length` position ids for a value from the prompt. placeholder: its text during encoding."""

    name: str
    length: int
    placeholder: str = ""
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """The `src` file of a module or schema: its name as written, and its trimmed text. It precedes inline text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A reusable part of a prompt. Its own text is encoded together; nested modules are encoded separately. cached: if
    False, its own text is computed in every request and never stored.
    """

    name: str
    children: "tuple[Child, ...]" = ()
    cached: bool = True
    file: File | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """Alternative modules: a prompt imports at most one of them. All start at the same position id. scaffold: name of a
    member that is also encoded together with the own text of the enclosing module.
    """

    members: tuple[Module, ...]
    scaffold: str | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A chat turn: the chat template's strings before and after its children. The children belong to the enclosing
    module or schema.
    """

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
    """The root: a module that is always imported. It has no parameters. Only the root can have scaffolds."""

    name: str
    children: tuple[Child, ...] = ()
    file: File | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """A reference to a module, with values for its parameters and references to its nested modules."""

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
    return [part for child in children for part in (child.children if isinstance(child, Role) else (child,))]


def joined(path: str, name: str) -> str:
    """Return the path of a module or parameter inside the module `path`; "" is the schema."""
    return f"{path}/{name}" if path else name


Node: TypeAlias = Schema | Child
Event = Literal["enter", "leave"]


def walk(schema: Schema) -> Iterator[tuple[Event, Node]]:
    """Yield every node in document order, at any depth: `enter` before its children, `leave` after them."""
    stack: list[tuple[Event, Node]] = [("enter", schema)]
    while stack:
        event, node = stack.pop()
        yield event, node
        if event == "enter":
            stack.append(("leave", node))
            children: Sequence[Child] = node.members if isinstance(node, Union) else getattr(node, "children", ())
            stack.extend(("enter", child) for child in reversed(children))


NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot contain, even as a reference."""

NAME = re.compile(r"[^\W\d][\w.-]*")
RESERVED = {"schema", "prompt", "module", "union", "param", "parameter", "scaffold", *ROLES}
MAX_SLOT = 1_000_000  # maximum position ids of one parameter: more than any model has


def tag(node: Node | Prompt | Import) -> str:
    match node:
        case Role():
            return node.role
        case Import():
            return node.module
        case _:
            return type(node).__name__.lower()


def mistake(node: Node | Prompt | Import, message: str, where: Where = "schema") -> PMLError:
    name = f" name={node.name!r}" if isinstance(node, Schema | Module | Parameter) else ""
    return PMLError(f"<{tag(node)}{name}>: {message}", where=where, line=getattr(node, "line", 0) or None)


@dataclass(frozen=True, slots=True, eq=False)
class OpenNode:
    """A node whose children are being checked. path: of the innermost module. in_turn: it is in, or is, a chat turn."""

    node: Node
    path: str = ""
    in_turn: bool = False


class Rules:
    """State of one check. open: open nodes, from the root. modules: modules so far, by path. parameters: paths so far.
    unions: the union of each member, by the member's path.
    """

    def __init__(self, schema: Schema) -> None:
        self.open = [OpenNode(schema)]
        self.modules: dict[str, Module] = {}
        self.parameters: set[str] = set()
        self.unions: dict[str, OpenNode] = {}
        self.scaffolds: list[Scaffold] = []

    def enter(self, node: Node) -> None:
        parent = self.open[-1]
        path, in_turn = parent.path, parent.in_turn or isinstance(node, Role)
        match node:
            case Module():
                path = self.add_module(node)
            case Parameter():
                if not path:
                    raise mistake(node, "a parameter belongs in a module; put one around it")
                check_name(node)
                if not 0 <= node.length <= MAX_SLOT:
                    raise mistake(node, f"length is {node.length}; give a whole number of tokens, 0 to {MAX_SLOT}")
                if joined(path, node.name) in self.parameters:
                    raise mistake(node, f"a second parameter {node.name!r} in one module; rename one of them")
                self.parameters.add(joined(path, node.name))
            case Union():
                check_union(node, self.modules.get(path))
            case Role() if parent.in_turn:
                raise mistake(node, "chat turns do not nest; close the one around it first")
            case Scaffold():
                if not isinstance(parent.node, Schema):
                    raise mistake(node, "a scaffold must be directly in the schema; move it there")
                self.scaffolds.append(node)
        self.open.append(OpenNode(node, path, in_turn))

    def add_module(self, module: Module) -> str:
        check_name(module)
        if module.name in RESERVED:
            raise mistake(module, f"{module.name!r} is a reserved word of PML; choose another name")
        parent = self.open[-1]
        path = joined(parent.path, module.name)
        if path in self.modules:
            place = f"module {parent.path!r}" if parent.path else "the schema"
            raise mistake(module, f"a second module {module.name!r} in {place}; rename one of them")
        if isinstance(parent.node, Union):
            self.unions[path] = parent
        self.modules[path] = module
        return path

    def check_scaffold(self, node: Scaffold) -> None:
        """Check that a set has at least two known modules and that a prompt can import all of them. Raises PMLError."""
        if len(set(node.modules)) < 2 or len(set(node.modules)) != len(node.modules):
            raise mistake(node, f"modules={' '.join(node.modules)!r}: name at least two different modules")
        chosen: dict[OpenNode, str] = {}
        for path in node.modules:
            if path not in self.modules:
                raise mistake(node, f"there is no module {path!r}; write its path from the root, like 'outer/inner'")
            if not self.modules[path].cached:
                raise mistake(node, f"module {path!r} has cache='false' and is never encoded; remove it from the set")
            for module in accumulate(path.split("/"), "{}/{}".format):  # the outermost module first
                union = self.unions.get(module)
                if union is not None and chosen.setdefault(union, module) != module:
                    raise mistake(node, f"{chosen[union]!r} and {module!r} exclude each other; no prompt imports both")


def check_schema(schema: Schema) -> None:
    """Raise PMLError for the first mistake in document order; scaffold sets are checked last."""
    check_name(schema)
    rules = Rules(schema)
    for event, node in walk(schema):
        if event == "leave":
            rules.open.pop()
        elif node is not schema:
            rules.enter(node)
    for scaffold in rules.scaffolds:
        rules.check_scaffold(scaffold)


def check_union(union: Union, module: Module | None) -> None:
    """Check that a scaffold is a member, and that it and the enclosing module are cached. Raises PMLError."""
    if union.scaffold is None:
        return
    member = next((m for m in union.members if m.name == union.scaffold), None)
    if member is None:
        raise mistake(union, f"scaffold {union.scaffold!r} is not a member; name one of its modules")
    if not member.cached:
        raise mistake(union, f"scaffold {union.scaffold!r} has cache='false' and is never encoded; name another")
    if module is not None and not module.cached:
        what = f"module {module.name!r} around it has cache='false' and is never encoded"
        raise mistake(union, f"{what}; remove scaffold")


def check_name(node: Schema | Module | Parameter) -> None:
    """Check a name. Names except a schema's must be XML names, because prompts use them as tags. Raises PMLError."""
    if not NAME.fullmatch(node.name):
        raise mistake(node, f"{node.name!r} is not a name: a letter or _, then letters, digits, '_', '-' or '.'")
    if isinstance(node, Schema) or node.name.isascii():
        return
    try:
        expat.ParserCreate("utf-8").Parse(f"<{node.name}/>", True)
    except expat.ExpatError:
        raise mistake(node, f"{node.name!r} is not an XML name: choose one without its special letters") from None
