"""Random schemas and prompts, and a naive second opinion on them: plain recursion, ids in dictionaries.

The second opinion shares nothing with `cache.pml.layout` and `cache.pml.binding` but the nodes and the tokenizer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from hypothesis import strategies as st

from cache.pml.nodes import Child, Import, Module, Parameter, Prompt, Role, Scaffold, Schema, Union
from cache.pml.parser import SPACE
from cache.prompt.parts import RoleName, Text
from cache.prompt.tokenizer import Roles, Tokenizer

NAMES = ("a", "b", "c", "é", "名前", "_x", "d-e.f")
ODD = ("e\u0301", "\U0001f469\u200d\U0001f680", "𠀀", "\u0300", "&<>]]>\"'", "&amp;", "\u00a0", "\ufffd", "<|im_end|>")
CHARACTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")
WORDS = st.sampled_from(ODD) | st.text(CHARACTERS, min_size=1, max_size=5) | st.sampled_from(["one", "two", "x"])
GAPS = st.sampled_from([" ", " ", "  ", "\n", "\t", " \n ", "\r\n", ""])
LONG = "many words " * 40
OFTEN = st.sampled_from([True, True, True, False])


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Text with every kind of whitespace in it and at its ends."""
    words = draw(st.lists(WORDS, max_size=4))
    text = "".join(draw(GAPS) + word for word in words) + draw(GAPS)
    return text or draw(st.sampled_from(["x", " ", "\n", LONG]))


def plain_texts() -> st.SearchStrategy[str]:
    """Text that a prompt can say anywhere: nothing at its ends."""
    return texts().map(lambda text: text.strip(SPACE) or "?")


@dataclass
class Names:
    """Names still free in one scope."""

    modules: list[str] = field(default_factory=lambda: list(NAMES))
    parameters: list[str] = field(default_factory=lambda: list(NAMES))


@st.composite
def children(
    draw: st.DrawFn,
    names: Names,
    depth: int,
    *,
    module: Module | None = None,
    in_role: bool = False,
    roles: bool = True,
) -> tuple[Child, ...]:
    """What stands in a schema (module None), in a module, or in a turn of either; no two texts side by side."""
    kinds = ["text"] + ["module", "union"] * (depth > 0) + ["parameter"] * (module is not None)
    kinds += ["role"] * (roles and not in_role)
    found: list[Child] = []
    for _ in range(draw(st.integers(3 if module is None and not in_role else 0, 5))):
        kind = draw(st.sampled_from(kinds))
        if kind == "text" and not (found and isinstance(found[-1], Text)):
            found.append(Text(text=draw(texts())))
        elif kind == "module" and names.modules:
            found.append(draw(modules(names.modules.pop(), depth - 1, in_role=in_role, roles=roles)))
        elif kind == "union":
            size = min(draw(st.sampled_from([2, 1, 3, 0])), len(names.modules))
            members = [names.modules.pop() for _ in range(size)]
            union = tuple(draw(modules(name, depth - 1, in_role=in_role, roles=roles)) for name in members)
            cached = [member.name for member in union if member.cached]
            encoded = cached and (module is None or module.cached)
            found.append(Union(members=union, scaffold=draw(st.sampled_from([*cached, None])) if encoded else None))
        elif kind == "parameter" and names.parameters:
            length = draw(st.sampled_from([4, 6, 2, 1, 0]))
            placeholder = draw(st.text("xy z", max_size=length))
            found.append(Parameter(name=names.parameters.pop(), length=length, placeholder=placeholder))
        elif kind == "role":
            role: RoleName = draw(st.sampled_from(["system", "user", "assistant"]))
            inside = draw(children(names, depth, module=module, in_role=True, roles=roles))
            found.append(Role(role=role, children=inside))
    return tuple(found)


@st.composite
def modules(draw: st.DrawFn, name: str, depth: int, *, in_role: bool, roles: bool) -> Module:
    empty = Module(name=name, cached=draw(st.sampled_from([True, True, True, False])))
    inside = draw(children(Names(), depth, module=empty, in_role=in_role, roles=roles))
    return Module(name=name, cached=empty.cached, children=inside)


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3, *, roles: bool = True) -> Schema:
    """A schema with scaffold sets of modules that one prompt can import together."""
    inside = draw(children(Names(), depth, roles=roles))
    schema = Schema(name="s", children=inside)
    scaffolds: list[Scaffold] = []
    for _ in range(draw(st.integers(0, 3))):
        together = [path for path, module in imported(schema, draw(imports(schema))).items() if module.cached]
        if len(together) > 1:
            several = st.lists(st.sampled_from(together), min_size=2, max_size=3, unique=True)
            scaffolds.append(Scaffold(modules=tuple(draw(several))))
    return Schema(name="s", children=(*scaffolds, *inside))


def inside(owner: Schema | Module | Role) -> Iterator[Child]:
    for child in owner.children:
        yield child
        if isinstance(child, Role):
            yield from inside(child)


@st.composite
def imports(draw: st.DrawFn, owner: Schema | Module) -> tuple[Import, ...]:
    """References to some of the modules directly in an owner, in any order, never two members of one union."""
    chosen: list[Module] = []
    for child in inside(owner):
        if isinstance(child, Module) and draw(OFTEN):
            chosen.append(child)
        elif isinstance(child, Union) and (member := draw(st.sampled_from([*child.members, None]))) is not None:
            chosen.append(member)
    found: list[Import] = []
    for module in draw(st.permutations(chosen)):
        slots = [slot for slot in inside(module) if isinstance(slot, Parameter)]
        filled = [(slot.name, draw(st.text("uvw\n", max_size=slot.length))) for slot in slots if draw(OFTEN)]
        found.append(Import(module=module.name, arguments=tuple(filled), children=draw(imports(module))))
    return tuple(found)


@st.composite
def prompts(draw: st.DrawFn, schema: Schema, *, gaps: bool = True, roles: bool = True) -> Prompt:
    """A prompt for a schema. gaps: with text between references, which may not fit."""
    references = draw(imports(schema))
    parts: list[Import | Text | Role] = []
    for reference in references:
        parts.append(reference)
        if gaps and reference is not references[-1] and draw(st.sampled_from([True, False, False])):
            parts.append(Text(text=draw(st.sampled_from(["k", "k", "kl", "k l m n o p q r"]))))
    for _ in range(draw(st.integers(0 if references else 1, 2))):
        if roles and draw(st.booleans()):
            inner = (Text(text=draw(plain_texts())),) * draw(st.integers(0, 1))
            parts.append(Role(role=draw(st.sampled_from(["system", "user", "assistant"])), children=inner))
        elif not (parts and isinstance(parts[-1], Text)):
            parts.append(Text(text=draw(plain_texts())))
    return Prompt(schema=schema.name, parts=tuple(parts))


def imported(schema: Schema, references: Sequence[Import]) -> dict[str, Module]:
    found: dict[str, Module] = {}

    def follow(owner: Schema | Module, path: str, references: Sequence[Import]) -> None:
        known = {child.name: child for child in inside(owner) if isinstance(child, Module)}
        known |= {m.name: m for child in inside(owner) if isinstance(child, Union) for m in child.members}
        for reference in references:
            here = f"{path}/{reference.module}".lstrip("/")
            found[here] = known[reference.module]
            follow(known[reference.module], here, reference.children)

    follow(schema, "", references)
    return found


@dataclass(frozen=True)
class Piece:
    """Text (tokens) or a slot (name) of an owner. choices: the member taken in every union on the way to it."""

    owner: str
    start: int
    length: int
    tokens: tuple[int, ...]
    name: str
    choices: tuple[tuple[int, str], ...]


@dataclass
class NaiveLayout:
    """A schema's ids. items: as in the specification. spans: (start, end) of every module and the root, by path."""

    tokenizer: Tokenizer
    roles: Roles
    items: list[tuple[str, str, int, int]] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    unions: list[tuple[int, int, tuple[str, ...]]] = field(default_factory=list)

    def flat(self, nodes: Sequence[Child]) -> Iterator[Child]:
        for node in nodes:
            if not isinstance(node, Role):
                yield node
            elif not node.children:
                yield Text(text=self.roles[node.role].alone, structural=True)
            else:
                yield Text(text=self.roles[node.role].open, structural=True)
                yield from self.flat(node.children)
                yield Text(text=self.roles[node.role].close, structural=True)

    def place(
        self, owner: Schema | Module, path: str = "", at: int = 0, choices: tuple[tuple[int, str], ...] = ()
    ) -> int:
        """Give an owner its ids; returns the one behind the last."""
        start = at
        for kind, group in groupby(self.flat(owner.children), key=type):
            nodes = list(group)
            if kind is Text:
                tokens = tuple(self.tokenizer.encode([node for node in nodes if isinstance(node, Text)]))
                if tokens:
                    self.items.append((path, "text", at, len(tokens)))
                    self.pieces.append(Piece(path, at, len(tokens), tokens, "", choices))
                at += len(tokens)
                continue
            for node in nodes:
                at = self.place_node(node, path, at, choices)
        self.spans[path] = (start, at)
        if path:
            self.items.append((path, "module", start, at - start))
        return at

    def place_node(self, node: Child, path: str, at: int, choices: tuple[tuple[int, str], ...]) -> int:
        if isinstance(node, Module):
            return self.place(node, f"{path}/{node.name}".lstrip("/"), at, choices)
        if isinstance(node, Parameter):
            here = f"{path}/{node.name}".lstrip("/")
            self.items.append((here, "parameter", at, node.length))
            self.pieces.append(Piece(path, at, node.length, (), node.name, choices))
            return at + node.length
        if isinstance(node, Union):
            number = len(self.unions)
            self.unions.append((0, 0, ()))
            paths = tuple(f"{path}/{member.name}".lstrip("/") for member in node.members)
            ends = [
                self.place(member, here, at, (*choices, (number, here)))
                for member, here in zip(node.members, paths, strict=True)
            ]
            end = max([at, *ends])
            self.unions[number] = (at, end, paths)
            self.items.append((path, "union", at, end - at))
            return end
        return at


@dataclass
class NaivePrompt:
    """What a prompt should come to. tokens: by id. fits: whether every text fits its gap."""

    tokens: dict[int, int] = field(default_factory=dict)
    supplied: set[int] = field(default_factory=set)
    arguments: list[list[int]] = field(default_factory=list)
    text: list[int] = field(default_factory=list)
    fits: bool = True


def naive_prompt(schema: Schema, layout: NaiveLayout, prompt: Prompt) -> NaivePrompt:
    result = NaivePrompt()
    references = [part for part in prompt.parts if isinstance(part, Import)]
    chosen: dict[str, Schema | Module] = {"": schema, **imported(schema, references)}
    values = {(path, name): value for path, name, value in given("", references)}
    occupied: set[int] = set()
    for piece in layout.pieces:
        if piece.owner not in chosen:
            continue
        owner = chosen[piece.owner]
        occupied.update(range(piece.start, piece.start + piece.length))
        tokens = piece.tokens
        if piece.name:
            tokens = tuple(layout.tokenizer.encode([Text(text=values.get((piece.owner, piece.name), ""))]))
            if tokens:
                result.arguments.append(list(range(piece.start, piece.start + len(tokens))))
        elif isinstance(owner, Schema) or owner.cached:
            result.supplied.update(range(piece.start, piece.start + piece.length))
        result.tokens |= dict(enumerate(tokens, piece.start))
    at = last = layout.spans[""][1]
    between = False
    for kind, group in groupby(prompt.parts, key=lambda part: isinstance(part, Import)):
        parts = list(group)
        if kind:
            module = parts[-1]
            assert isinstance(module, Import)
            between = module is not references[-1]
            at = layout.spans[module.module][1] if between else last
            continue
        pieces = [node for part in parts if not isinstance(part, Import) for node in layout.flat([part])]
        tokens = tuple(layout.tokenizer.encode([piece for piece in pieces if isinstance(piece, Text)]))
        ids = range(at, at + len(tokens))
        if between and (occupied & set(ids) or (ids and ids[-1] >= last)):
            result.fits = False
        occupied.update(ids)
        result.text.extend(ids)
        result.tokens |= dict(zip(ids, tokens, strict=True))
    result.arguments.sort()
    result.text.sort()
    return result


def given(path: str, references: Sequence[Import]) -> Iterator[tuple[str, str, str]]:
    """Arguments of references: (path of the module, name, value)."""
    for reference in references:
        here = f"{path}/{reference.module}".lstrip("/")
        yield from ((here, name, value) for name, value in reference.arguments)
        yield from given(here, reference.children)
