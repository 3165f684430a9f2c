"""What a schema may contain: names, nesting, scopes, scaffold sets. Checks nodes, read from XML or built as data.

Not covered: what needs a tokenizer or a chat template (`layout`), and XML itself (`parser`).
"""

import re
from dataclasses import dataclass, field
from itertools import accumulate
from xml.parsers import expat

from cache.errors import PMLError
from cache.pml.nodes import Module, Node, Parameter, Role, Scaffold, Schema, Union, joined, walk
from cache.prompt.parts import ROLES

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold, not even as a reference."""

NAME = re.compile(r"[^\W\d][\w.-]*")
RESERVED = {"schema", "prompt", "module", "union", "param", "parameter", "scaffold", *ROLES}
MAX_SLOT = 1_000_000
"""Position ids of one parameter: more than any model has."""


def tag(node: Node) -> str:
    """The XML element of a node."""
    return node.role if isinstance(node, Role) else type(node).__name__.lower()


def mistake(node: Node, message: str) -> PMLError:
    """An error about a node of a schema."""
    name = f" name={node.name!r}" if isinstance(node, Schema | Module | Parameter) else ""
    return PMLError(f"<{tag(node)}{name}>: {message}", where="schema", line=getattr(node, "line", 0) or None)


@dataclass(slots=True)
class Rules:
    """State of one check. parents: open nodes, from the root. paths: of the open modules, the schema's "" first.
    modules: all so far, by path. parameters: all so far, as (path, name). members: the number of the union that a
    module is a member of, by the module's path.
    """

    parents: list[Node] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    modules: dict[str, Module] = field(default_factory=dict)
    parameters: set[tuple[str, str]] = field(default_factory=set)
    members: dict[str, int] = field(default_factory=dict)
    open_unions: list[int] = field(default_factory=list)
    num_unions: int = 0
    open_roles: int = 0
    scaffolds: list[Scaffold] = field(default_factory=list)

    def enter(self, node: Node) -> None:
        """Check a node in its place. Raises PMLError."""
        match node:
            case Schema():
                check_name(node)
                self.paths.append("")
            case Module():
                self.enter_module(node)
            case Parameter():
                if isinstance(self.owner, Schema):
                    raise mistake(node, "a parameter belongs in a module; put one around it")
                check_name(node)
                if not 0 <= node.length <= MAX_SLOT:
                    raise mistake(node, f"length is {node.length}; give a whole number of tokens, 0 to {MAX_SLOT}")
                if (self.paths[-1], node.name) in self.parameters:
                    raise mistake(node, f"a second parameter {node.name!r} in one module; rename one of them")
                self.parameters.add((self.paths[-1], node.name))
            case Union():
                check_union(node, self.owner)
                self.open_unions.append(self.num_unions)
                self.num_unions += 1
            case Role():
                if self.open_roles:
                    raise mistake(node, "chat turns do not nest; close the one around it first")
                self.open_roles += 1
            case Scaffold():
                if not isinstance(self.parents[-1], Schema):
                    raise mistake(node, "a scaffold stands directly in the schema; move it there")
                self.scaffolds.append(node)
        self.parents.append(node)

    @property
    def owner(self) -> Schema | Module:
        """The innermost open module, or the schema."""
        return next(parent for parent in reversed(self.parents) if isinstance(parent, Module | Schema))

    def enter_module(self, module: Module) -> None:
        """Open a module's scope. Raises PMLError."""
        check_name(module)
        if module.name in RESERVED:
            raise mistake(module, f"{module.name!r} is a word of the language; choose another name")
        outer = self.paths[-1]
        path = joined(outer, module.name)
        if path in self.modules:
            place = f"module {outer!r}" if outer else "the schema"
            raise mistake(module, f"a second module {module.name!r} in {place}; rename one of them")
        if isinstance(self.parents[-1], Union):
            self.members[path] = self.open_unions[-1]
        self.modules[path] = module
        self.paths.append(path)

    def leave(self, node: Node) -> None:
        """Close a node's scope."""
        self.parents.pop()
        if isinstance(node, Module | Schema):
            self.paths.pop()
        if isinstance(node, Role):
            self.open_roles -= 1
        if isinstance(node, Union):
            self.open_unions.pop()

    def check_scaffold(self, node: Scaffold) -> None:
        """A set has two or more known modules that one prompt can import together. Raises PMLError."""
        if len(set(node.modules)) < 2 or len(set(node.modules)) != len(node.modules):
            raise mistake(node, f"modules={' '.join(node.modules)!r}: name at least two different modules")
        chosen: dict[int, str] = {}
        for path in node.modules:
            if path not in self.modules:
                raise mistake(node, f"there is no module {path!r}; write its path from the root, like 'outer/inner'")
            if not self.modules[path].cached:
                raise mistake(node, f"module {path!r} has cache='false', it is never encoded; take it out of the set")
            for module in accumulate(path.split("/"), "{}/{}".format):  # the outermost module first
                union = self.members.get(module)
                if union is not None and chosen.setdefault(union, module) != module:
                    raise mistake(node, f"{chosen[union]!r} and {module!r} exclude each other; no prompt imports both")


def check_schema(schema: Schema) -> None:
    """Raises PMLError for the first mistake in document order; scaffold sets are checked last."""
    rules = Rules()
    for event, node in walk(schema):
        if event == "enter":
            rules.enter(node)
        else:
            rules.leave(node)
    for scaffold in rules.scaffolds:
        rules.check_scaffold(scaffold)


def check_union(union: Union, owner: Schema | Module) -> None:
    """A union's scaffold is a member, and it and the text around the union are encoded. Raises PMLError."""
    if union.scaffold is None:
        return
    member = next((m for m in union.members if m.name == union.scaffold), None)
    if member is None:
        raise mistake(union, f"scaffold {union.scaffold!r} is not a member; name one of its modules")
    if not member.cached:
        raise mistake(union, f"scaffold {union.scaffold!r} has cache='false', it is never encoded; name another")
    if isinstance(owner, Module) and not owner.cached:
        raise mistake(
            union, f"module {owner.name!r} around it has cache='false', it is never encoded; leave scaffold out"
        )


def check_name(node: Schema | Module | Parameter) -> None:
    """A name has the letters of a name; a prompt writes all but the schema's as XML names. Raises PMLError."""
    if not NAME.fullmatch(node.name):
        raise mistake(node, f"{node.name!r} is not a name: a letter or _, then letters, digits, '_', '-' or '.'")
    if isinstance(node, Schema) or node.name.isascii():
        return
    try:
        expat.ParserCreate("utf-8").Parse(f"<{node.name}/>", True)
    except expat.ExpatError:
        remedy = "choose another name"
        raise mistake(node, f"{node.name!r} has a letter that XML does not allow in names; {remedy}") from None
