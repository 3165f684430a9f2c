"""What a schema may contain: names, nesting, scopes, scaffold sets. Checks nodes, read from XML or built as data.

Not covered: what needs a tokenizer or a chat template (`layout`), and XML itself (`parser`).
"""

import re
from dataclasses import dataclass
from itertools import accumulate
from xml.parsers import expat

from cache.errors import PMLError, Where
from cache.pml.nodes import Import, Module, Node, Parameter, Prompt, Role, Scaffold, Schema, Union, joined, walk
from cache.prompt.parts import ROLES

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold, not even as a reference."""

NAME = re.compile(r"[^\W\d][\w.-]*")
RESERVED = {"schema", "prompt", "module", "union", "param", "parameter", "scaffold", *ROLES}
MAX_SLOT = 1_000_000
"""Position ids of one parameter: more than any model has."""


def tag(node: Node | Prompt | Import) -> str:
    """The XML element of a node."""
    match node:
        case Role():
            return node.role
        case Import():
            return node.module
        case _:
            return type(node).__name__.lower()


def mistake(node: Node | Prompt | Import, message: str, where: Where = "schema") -> PMLError:
    """An error about a node."""
    name = f" name={node.name!r}" if isinstance(node, Schema | Module | Parameter) else ""
    return PMLError(f"<{tag(node)}{name}>: {message}", where=where, line=getattr(node, "line", 0) or None)


@dataclass(frozen=True, slots=True, eq=False)
class OpenNode:
    """A node that is read. path: of the innermost module. in_turn: whether it is, or is in, a chat turn."""

    node: Node
    path: str = ""
    in_turn: bool = False


class Rules:
    """State of one check. open: nodes, from the root. modules: all so far, by path. parameters: paths of all so far.
    unions: by the path of a module that is a member of one.
    """

    def __init__(self, schema: Schema) -> None:
        self.open = [OpenNode(schema)]
        self.modules: dict[str, Module] = {}
        self.parameters: set[str] = set()
        self.unions: dict[str, OpenNode] = {}
        self.scaffolds: list[Scaffold] = []

    def enter(self, node: Node) -> None:
        """Check a node in its place, and open it. Raises PMLError."""
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
                    raise mistake(node, "a scaffold stands directly in the schema; move it there")
                self.scaffolds.append(node)
        self.open.append(OpenNode(node, path, in_turn))

    def add_module(self, module: Module) -> str:
        """Check a module's name; returns its path. Raises PMLError."""
        check_name(module)
        if module.name in RESERVED:
            raise mistake(module, f"{module.name!r} is a word of the language; choose another name")
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
        """A set has two or more known modules that one prompt can import together. Raises PMLError."""
        if len(set(node.modules)) < 2 or len(set(node.modules)) != len(node.modules):
            raise mistake(node, f"modules={' '.join(node.modules)!r}: name at least two different modules")
        chosen: dict[OpenNode, str] = {}
        for path in node.modules:
            if path not in self.modules:
                raise mistake(node, f"there is no module {path!r}; write its path from the root, like 'outer/inner'")
            if not self.modules[path].cached:
                raise mistake(node, f"module {path!r} has cache='false', it is never encoded; take it out of the set")
            for module in accumulate(path.split("/"), "{}/{}".format):  # the outermost module first
                union = self.unions.get(module)
                if union is not None and chosen.setdefault(union, module) != module:
                    raise mistake(node, f"{chosen[union]!r} and {module!r} exclude each other; no prompt imports both")


def check_schema(schema: Schema) -> None:
    """Raises PMLError for the first mistake in document order; scaffold sets are checked last."""
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
    """A union's scaffold is a member, and it and the module around the union are encoded. Raises PMLError."""
    if union.scaffold is None:
        return
    member = next((m for m in union.members if m.name == union.scaffold), None)
    if member is None:
        raise mistake(union, f"scaffold {union.scaffold!r} is not a member; name one of its modules")
    if not member.cached:
        raise mistake(union, f"scaffold {union.scaffold!r} has cache='false', it is never encoded; name another")
    if module is not None and not module.cached:
        what = f"module {module.name!r} around it has cache='false', it is never encoded"
        raise mistake(union, f"{what}; leave scaffold out")


def check_name(node: Schema | Module | Parameter) -> None:
    """A name has the letters of a name; a prompt writes all but the schema's as XML names. Raises PMLError."""
    if not NAME.fullmatch(node.name):
        raise mistake(node, f"{node.name!r} is not a name: a letter or _, then letters, digits, '_', '-' or '.'")
    if isinstance(node, Schema) or node.name.isascii():
        return
    try:
        expat.ParserCreate("utf-8").Parse(f"<{node.name}/>", True)
    except expat.ExpatError:
        raise mistake(node, f"{node.name!r} is no name in XML: choose one without its special letters") from None
