"""Read PML from XML, strictly and safely; errors name the line. Write XML that reads back as the same data.

Expat parses the XML. Document types are refused, so only XML's own entities exist. Invalid XML is not repaired. Nodes
are built without recursion, so depth is unlimited. Whitespace between tags follows one rule (`tidy`), so that
pretty-printing never changes a token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, Literal, NoReturn, TypeVar, cast
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from cache.errors import PMLError, Where
from cache.pml.nodes import (
    NOT_XML,
    Child,
    File,
    Import,
    Module,
    Node,
    Parameter,
    Prompt,
    Role,
    Scaffold,
    Schema,
    Union,
    check_schema,
    open_turns,
    tag,
    walk,
)
from cache.prompt.parts import ROLES, RoleName, Text

T = TypeVar("T")
SPACE = " \t\r\n"
LARGEST_FILE = 16 << 20  # maximum bytes of a `src` file: more than fits any model
PARAMETER = ("parameter", "param")
EMPTY = (*PARAMETER, "scaffold")
ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "schema": ("name", "src", "xml:space"),
    "module": ("name", "src", "cache", "xml:space"),
    **dict.fromkeys(PARAMETER, ("name", "length", "len", "scaffold")),
    "union": ("scaffold",),
    "scaffold": ("modules",),
    **dict.fromkeys(ROLES, ()),
}


def tidy(piece: str) -> str:
    """Apply the whitespace rule to a piece of text between two tags. A piece of only whitespace is dropped. Whitespace
    at either end is dropped if it has a line break (indentation); otherwise it becomes one space.
    """
    middle = piece.strip(SPACE)
    if not middle:
        return ""
    head, _, tail = piece.partition(middle)
    head, tail = ("" if not space or "\n" in space or "\r" in space else " " for space in (head, tail))
    return head + middle + tail


def parse_schema(source: str | bytes, *, folder: Path | None = None) -> Schema:
    """Read a schema. folder: folder of the `src` files. Raises PMLError."""
    schema = SchemaReader(folder).read(source)
    check_schema(schema)
    return schema


def parse_prompt(source: str | bytes) -> Prompt:
    """Read a prompt. Its modules and parameters are checked when it is bound. Raises PMLError."""
    return PromptReader().read(source)


@dataclass(slots=True)
class OpenElement:
    """An element whose end tag has not been read. preserve: keep its whitespace."""

    tag: str
    attributes: dict[str, str]
    line: int
    preserve: bool = False
    children: list[Child | Import] = field(default_factory=list)

    @property
    def nodes(self) -> tuple[Child, ...]:
        return tuple(child for child in self.children if not isinstance(child, Import))


class PMLReader(Generic[T]):
    """Reads one XML document. Subclasses check elements and convert them to nodes."""

    where: Where

    def __init__(self) -> None:
        self.open: list[OpenElement] = []
        self.result: T | None = None

    def start(self, element: OpenElement) -> None:
        """Check an element at its start tag. Raises PMLError."""

    def text(self, piece: str) -> None:
        """Add a piece of text to the innermost open element. Raises PMLError."""

    def end(self, element: OpenElement) -> None:
        """Convert an element at its end tag to a node, and add it to its parent. Raises PMLError."""

    def fail(self, element: OpenElement, message: str, *, name: str | None = None) -> NoReturn:
        shown = element.tag if name is None else f"{element.tag} name={name!r}"
        raise PMLError(f"<{shown}>: {message}", where=self.where, line=element.line)

    def check_attributes(self, element: OpenElement, allowed: Sequence[str]) -> None:
        for name in element.attributes:
            if name not in allowed:
                self.fail(element, f"unknown attribute {name!r}; allowed: {', '.join(allowed) or 'none'}")

    def required(self, element: OpenElement, attribute: str, remedy: str = "") -> str:
        if attribute not in element.attributes:
            self.fail(element, f"{attribute}='...' is missing{remedy}")
        return element.attributes[attribute]

    def read(self, source: str | bytes) -> T:
        parser = expat.ParserCreate("utf-8")
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        pending: list[str] = []

        def end_text() -> None:
            piece = "".join(pending)
            pending.clear()
            if piece and (piece := piece if self.open[-1].preserve else tidy(piece)):
                self.text(piece)

        def start(tag: str, attributes: dict[str, str]) -> None:
            end_text()
            element = OpenElement(tag, attributes, parser.CurrentLineNumber)
            self.start(element)
            self.open.append(element)

        def end(tag: str) -> None:
            end_text()
            self.end(self.open.pop())

        def doctype(*_: object) -> NoReturn:
            message = "document types are not allowed; remove <!DOCTYPE ...>"
            raise PMLError(message, where=self.where, line=parser.CurrentLineNumber)

        parser.StartElementHandler, parser.EndElementHandler = start, end
        parser.CharacterDataHandler = pending.append
        parser.StartDoctypeDeclHandler = doctype
        try:
            parser.Parse(source.encode() if isinstance(source, str) else source, True)
        except expat.ExpatError as error:
            what = expat.ErrorString(error.code).removeprefix("not well-formed ")
            message = f"not well-formed: {what}; write &lt; for <, &amp; for & and close every element"
            raise PMLError(message, where=self.where, line=error.lineno, column=error.offset) from None
        except UnicodeEncodeError:
            raise PMLError("the text contains half a character (a lone surrogate)", where=self.where) from None
        assert self.result is not None
        return self.result


class SchemaReader(PMLReader[Schema]):
    """Converts elements of a schema to nodes. Out of scope: names and nesting (`nodes`)."""

    where: Where = "schema"

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self.folder = folder

    def start(self, element: OpenElement) -> None:
        if not self.open:
            if element.tag != "schema":
                self.fail(element, "the root element of a schema is <schema>")
        elif element.tag not in ATTRIBUTES or element.tag == "schema":
            known = ", ".join(sorted(set(ATTRIBUTES) - {"schema"}))
            self.fail(element, f"unknown element; a schema is made of {known}")
        elif (parent := self.open[-1].tag) in EMPTY:
            self.fail(element, f"<{parent}> must be empty; move <{element.tag}> out of it")
        elif parent == "union" and element.tag != "module":
            self.fail(element, "only modules may be in a <union>; put a module around it")
        self.check_attributes(element, ATTRIBUTES[element.tag])
        if element.tag in ROLES:
            element.preserve = self.open[-1].preserve
        elif (space := element.attributes.get("xml:space", "default")) not in ("preserve", "default"):
            self.fail(element, f"xml:space is {space!r}; write preserve or default")
        else:
            element.preserve = space == "preserve"

    def text(self, piece: str) -> None:
        element = self.open[-1]
        if element.tag == "union":
            self.fail(element, "only modules may be in a union, not text")
        if element.tag in EMPTY:
            self.fail(element, "it must be empty; move the text out of it")
        element.children.append(Text(text=piece))

    def end(self, element: OpenElement) -> None:
        if element.tag == "schema":
            name, file = self.required(element, "name"), self.file_of(element)
            self.result = Schema(name=name, children=element.nodes, file=file, line=element.line)
        else:
            self.open[-1].children.append(self.node(element))

    def node(self, element: OpenElement) -> Child:
        children, line, attributes = element.nodes, element.line, element.attributes
        match element.tag:
            case "module":
                name, file = self.required(element, "name"), self.file_of(element)
                if (cached := attributes.get("cache", "true")) not in ("true", "false"):
                    self.fail(element, f"cache is {cached!r}; write true or false", name=name)
                return Module(name=name, children=children, cached=cached == "true", file=file, line=line)
            case "parameter" | "param":
                name, length = self.required(element, "name"), self.length_of(element)
                return Parameter(name=name, length=length, placeholder=attributes.get("scaffold", ""), line=line)
            case "union":
                members = tuple(child for child in children if isinstance(child, Module))
                return Union(members=members, scaffold=attributes.get("scaffold"), line=line)
            case "scaffold":
                modules = self.required(element, "modules", "; name two or more module paths")
                return Scaffold(modules=tuple(modules.split()), line=line)
            case _:
                return Role(role=cast("RoleName", element.tag), children=children, line=line)

    def length_of(self, element: OpenElement) -> int:
        name = self.required(element, "name")
        given = [element.attributes[key] for key in ("length", "len") if key in element.attributes]
        if len(given) != 1:
            what = "length and len mean the same; give one of them" if given else "length='...' is missing"
            self.fail(element, what, name=name)
        digits = given[0].strip(SPACE)
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 9):
            self.fail(element, f"length is {given[0]!r}; give a whole number of tokens, 0 or more", name=name)
        return int(digits)

    def file_of(self, element: OpenElement) -> File | None:
        src = element.attributes.get("src")
        if src is None:
            return None

        def fail(message: str) -> NoReturn:
            self.fail(element, f"src {src!r} {message}", name=self.required(element, "name"))

        if self.folder is None:
            fail("needs a folder; read the schema from a file")
        try:
            path = (self.folder / src).resolve()
            if not path.is_relative_to(self.folder.resolve()):
                fail("is outside the schema's folder; move the file into it")
            if path.is_fifo() or path.stat().st_size > LARGEST_FILE:
                fail(f"is not an ordinary file of at most {LARGEST_FILE >> 20} MiB; choose another")
            content = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            fail("is not UTF-8 text; convert it")
        except (OSError, ValueError, RuntimeError) as error:  # pathlib raises RuntimeError for a loop of links
            fail(f"cannot be read ({getattr(error, 'strerror', None) or error}); check the name")
        return File(name=src, text=content.strip())


class PromptReader(PMLReader[Prompt]):
    """Converts elements of a prompt to nodes."""

    where: Where = "prompt"

    def start(self, element: OpenElement) -> None:
        if not self.open:
            if element.tag != "prompt":
                self.fail(element, "the root element of a prompt is <prompt>")
            self.check_attributes(element, ("schema",))
            self.required(element, "schema", "; name the schema it is for")
            return
        parent = self.open[-1]
        if parent.tag in ROLES:
            self.fail(element, f"a chat turn of a prompt holds text only; close <{parent.tag}> first")
        if element.tag in ROLES:
            if len(self.open) > 1:
                self.fail(element, f"the module reference <{parent.tag}> cannot hold chat turns; move this after it")
            self.check_attributes(element, ())

    def text(self, piece: str) -> None:
        element = self.open[-1]
        if len(self.open) > 1 and element.tag not in ROLES:
            self.fail(element, "a module reference cannot hold text; move it after the reference")
        element.children.append(Text(text=piece))

    def end(self, element: OpenElement) -> None:
        if not self.open:
            schema, parts = element.attributes["schema"], trimmed(element.children)
            self.result = Prompt(schema=schema, parts=parts, line=element.line)
        elif element.tag in ROLES:
            self.open[-1].children.append(Role(role=element.tag, children=element.nodes, line=element.line))
        else:
            arguments = tuple(element.attributes.items())
            children = tuple(child for child in element.children if isinstance(child, Import))
            reference = Import(module=element.tag, arguments=arguments, children=children, line=element.line)
            self.open[-1].children.append(reference)


def trimmed(parts: Sequence[Child | Import]) -> tuple[Import | Text | Role, ...]:
    """Return the parts of a prompt without whitespace next to imports and at both ends."""
    kept: list[Import | Text | Role] = []
    for index, part in enumerate(parts):
        if isinstance(part, Text):
            text = part.text
            if index == 0 or isinstance(parts[index - 1], Import):
                text = text.lstrip(SPACE)
            if index == len(parts) - 1 or isinstance(parts[index + 1], Import):
                text = text.rstrip(SPACE)
            part = replace(part, text=text)
        assert isinstance(part, Import | Text | Role)
        kept.append(part)
    return tuple(kept)


DEEPEST_INDENT = 10  # maximum indentation in levels, so that very deep schemas do not become mostly spaces


def write_schema(schema: Schema) -> str:
    """Return a schema as XML, with line breaks between tags where reading drops them. Raises ValueError for content
    that PML cannot express: template strings, known tokens and control characters.
    """
    parts: list[str] = []
    kept: list[bool] = []  # for each open element: whether its whitespace is text
    last: Literal["start", "end", "text"] = "text"

    def break_line(depth: int) -> None:
        if last != "text" and not kept[-1]:
            parts.append("\n" + "  " * min(depth, DEEPEST_INDENT))

    for event, node in walk(schema):
        if isinstance(node, Text):
            if event == "enter":
                parts.append(characters(node))
                last = "text"
        elif event == "enter":
            if kept:
                break_line(len(kept))
            parts.append(f"<{start_tag(node)}>")
            kept.append(kept[-1] if isinstance(node, Role) else is_preserved(node))
            last = "start"
        else:
            if last == "start":
                parts[-1] = parts[-1][:-1] + "/>"
            else:
                break_line(len(kept) - 1)
                parts.append(f"</{tag(node)}>")
            kept.pop()
            last = "end"
    return "".join(parts)


def is_preserved(node: Node) -> bool:
    return isinstance(node, Schema | Module) and any(tidy(text) != text for text in own_texts(node.children))


def write_prompt(prompt: Prompt) -> str:
    """Return a prompt as XML. Raises ValueError like `write_schema`, and for whitespace that reading would drop."""
    if trimmed(prompt.parts) != prompt.parts or any(tidy(text) != text for text in own_texts(prompt.parts)):
        raise ValueError("PML cannot express whitespace at the edges of a prompt's text")
    parts = [f"<prompt schema={attribute(prompt.schema)}>"]
    stack: list[Import | Text | Role | str] = list(reversed(prompt.parts))
    while stack:
        part = stack.pop()
        match part:
            case str():
                parts.append(part)
            case Text():
                parts.append(characters(part))
            case Role():
                content = "".join(characters(child) for child in part.children if isinstance(child, Text))
                parts.append(f"<{part.role}>{content}</{part.role}>")
            case Import():
                arguments = "".join(f" {name}={attribute(value)}" for name, value in part.arguments)
                parts.append(f"<{part.module}{arguments}{'' if part.children else '/'}>")
                if part.children:
                    stack.append(f"</{part.module}>")
                    stack.extend(reversed(part.children))
    return "".join([*parts, "</prompt>"])


def start_tag(node: Node) -> str:
    attributes: dict[str, str] = {}
    match node:
        case Schema() | Module():
            attributes["name"] = node.name
            if node.file is not None:
                attributes["src"] = node.file.name
            if isinstance(node, Module) and not node.cached:
                attributes["cache"] = "false"
            if is_preserved(node):
                attributes["xml:space"] = "preserve"
        case Parameter():
            attributes |= {"name": node.name, "length": str(node.length)}
            if node.placeholder:
                attributes["scaffold"] = node.placeholder
        case Union():
            if node.scaffold is not None:
                attributes["scaffold"] = node.scaffold
        case Scaffold():
            attributes["modules"] = " ".join(node.modules)
    return tag(node) + "".join(f" {name}={attribute(value)}" for name, value in attributes.items())


def own_texts(children: Sequence[Child | Import]) -> list[str]:
    return [child.text for child in open_turns(children) if isinstance(child, Text)]


def characters(text: Text) -> str:
    """Return escaped text. A carriage return becomes a reference, because XML reads a plain one as a line feed."""
    if text.structural or text.tokens is not None:
        raise ValueError(f"PML cannot express template strings and known tokens: {text.text[:40]!r}")
    if NOT_XML.search(text.text):
        raise ValueError(f"XML cannot express control characters: {text.text[:40]!r}")
    return escape(text.text, {"\r": "&#13;"})


def attribute(value: str) -> str:
    if NOT_XML.search(value):
        raise ValueError(f"XML cannot express control characters: {value[:40]!r}")
    return quoteattr(value, {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"})
