"""PML from XML: strict, safe, every mistake with its line.

Expat reads; there are no document types, hence no entities but XML's own, and no recovery. Nodes are built without
recursion, so depth is unlimited. Whitespace between tags follows one rule (`tidy`): pretty-printing never changes a
token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, NoReturn, TypeVar
from xml.parsers import expat

from cache.errors import PMLError, Where
from cache.pml.nodes import Child, File, Import, Module, Parameter, Prompt, Role, Scaffold, Schema, Union
from cache.pml.rules import check_schema
from cache.prompt.parts import ROLES, RoleName, Text

T = TypeVar("T")
SPACE = " \t\r\n"
LARGEST_FILE = 16 << 20
"""Bytes of a `src` file: more than fits any model."""
PARAMETER = ("parameter", "param")
ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "schema": ("name", "src", "xml:space"),
    "module": ("name", "src", "cache", "xml:space"),
    "parameter": ("name", "length", "len", "scaffold"),
    "param": ("name", "length", "len", "scaffold"),
    "union": ("scaffold",),
    "scaffold": ("modules",),
    "system": (),
    "user": (),
    "assistant": (),
}


def tidy(piece: str) -> str:
    """The whitespace rule for a piece of text between two tags.

    A piece of only whitespace is dropped; whitespace at an end is dropped if it holds a line break (indentation) and is
    one space otherwise; what is inside is kept.
    """
    middle = piece.strip(SPACE)
    if not middle:
        return ""
    head, tail = piece[: piece.index(middle[0])], piece[len(piece.rstrip(SPACE)) :]
    return edge(head) + middle + edge(tail)


def edge(space: str) -> str:
    """Whitespace at the end of a piece, after the rule."""
    return "" if not space or "\n" in space or "\r" in space else " "


def parse_schema(source: str | bytes, *, folder: Path | None = None) -> Schema:
    """Read a schema.

    folder: where `src` files are; they must lie inside it. Raises PMLError.
    """
    schema = read(source, SchemaReader(folder))
    check_schema(schema)
    return schema


def parse_prompt(source: str | bytes) -> Prompt:
    """Read a prompt. Whether its modules and parameters exist is checked when it is bound. Raises PMLError."""
    return read(source, PromptReader())


@dataclass(slots=True)
class Frame:
    """An element that is open. preserve: whether its text is taken as written."""

    tag: str
    attributes: dict[str, str]
    line: int
    preserve: bool = False
    children: list[Child | Import] = field(default_factory=list)

    def texts_and_roles(self) -> tuple[Child, ...]:
        """Children of an element that holds no imports."""
        return tuple(child for child in self.children if not isinstance(child, Import))

    def imports(self) -> tuple[Import, ...]:
        """Children of a reference."""
        return tuple(child for child in self.children if isinstance(child, Import))


class Reader(Generic[T]):
    """One document. Subclasses say what an element becomes."""

    where: Where

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.result: T | None = None

    def start(self, frame: Frame) -> None:
        """Check an element that opens."""
        raise NotImplementedError

    def text(self, piece: str, line: int) -> None:
        """Take a piece of text between two tags."""
        raise NotImplementedError

    def end(self, frame: Frame) -> None:
        """Build what an element that closes has become."""
        raise NotImplementedError

    def fail(self, message: str, line: int) -> NoReturn:
        """Refuse the document."""
        raise PMLError(message, where=self.where, line=line)


def read(source: str | bytes, reader: Reader[T]) -> T:
    """Run expat over a document. Raises PMLError."""
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    pending: list[str] = []
    pending_line = 1

    def flush() -> None:
        if pending:
            piece = "".join(pending)
            pending.clear()
            if not reader.frames[-1].preserve:
                piece = tidy(piece)
            if piece:
                reader.text(piece, pending_line)

    def characters(data: str) -> None:
        nonlocal pending_line
        if not pending:
            pending_line = parser.CurrentLineNumber
        pending.append(data)

    def start(tag: str, attributes: dict[str, str]) -> None:
        flush()
        frame = Frame(tag, attributes, parser.CurrentLineNumber)
        reader.start(frame)
        reader.frames.append(frame)

    def end(tag: str) -> None:
        flush()
        reader.end(reader.frames.pop())

    def doctype(*_: object) -> NoReturn:
        reader.fail("document types are not allowed; remove <!DOCTYPE ...>", parser.CurrentLineNumber)

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = characters
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(source.encode() if isinstance(source, str) else source, True)
    except expat.ExpatError as error:
        what = expat.ErrorString(error.code).removeprefix("not well-formed ")
        raise PMLError(
            f"not well-formed: {what}; write &lt; for <, &amp; for & and close every element",
            where=reader.where,
            line=error.lineno,
            column=error.offset,
        ) from None
    except UnicodeEncodeError:
        raise PMLError("the text holds half a character (a lone surrogate)", where=reader.where) from None
    assert reader.result is not None
    return reader.result


class SchemaReader(Reader[Schema]):
    """Schema elements to nodes. Nesting and names are left to `pml_rules`."""

    where: Where = "schema"

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self.folder = folder

    def start(self, frame: Frame) -> None:
        """Known element, known attributes, in an element that may hold elements."""
        if not self.frames:
            if frame.tag != "schema":
                self.fail(f"<{frame.tag}>: the root element of a schema is <schema>", frame.line)
        elif frame.tag not in ATTRIBUTES or frame.tag == "schema":
            known = ", ".join(sorted(set(ATTRIBUTES) - {"schema"}))
            self.fail(f"<{frame.tag}>: unknown element; a schema is made of {known}", frame.line)
        elif (parent := self.frames[-1].tag) in PARAMETER or parent == "scaffold":
            self.fail(f"<{parent}> is empty by nature; move <{frame.tag}> out of it", frame.line)
        elif parent == "union" and frame.tag != "module":
            self.fail(f"<{frame.tag}>: only modules may stand in a <union>; put a module around it", frame.line)
        for name in frame.attributes:
            if name not in ATTRIBUTES[frame.tag]:
                allowed = ", ".join(ATTRIBUTES[frame.tag]) or "none"
                self.fail(f"<{frame.tag}>: unknown attribute {name!r}; allowed: {allowed}", frame.line)
        if frame.tag in ROLES:
            frame.preserve = self.frames[-1].preserve
        elif (space := frame.attributes.get("xml:space", "default")) not in ("preserve", "default"):
            self.fail(f"<{frame.tag}>: xml:space is {space!r}; write preserve or default", frame.line)
        else:
            frame.preserve = space == "preserve"

    def text(self, piece: str, line: int) -> None:
        """Text belongs to schemas, modules and roles."""
        frame = self.frames[-1]
        if frame.tag == "union":
            self.fail("<union>: only modules may stand in a union, not text", frame.line)
        if frame.tag in PARAMETER or frame.tag == "scaffold":
            self.fail(f"<{frame.tag}> is empty by nature; move the text out of it", frame.line)
        frame.children.append(Text(text=piece))

    def end(self, frame: Frame) -> None:
        """The node of an element."""
        if frame.tag == "schema":
            self.result = Schema(
                name=self.named(frame), children=frame.texts_and_roles(), file=self.file(frame), line=frame.line
            )
        else:
            self.frames[-1].children.append(self.node(frame))

    def node(self, frame: Frame) -> Child:
        """The node of an element below the root."""
        children, line = frame.texts_and_roles(), frame.line
        match frame.tag:
            case "module":
                cached = self.choice(frame, "cache", {"true": True, "false": False}, default=True)
                return Module(
                    name=self.named(frame), children=children, cached=cached, file=self.file(frame), line=line
                )
            case "parameter" | "param":
                return Parameter(
                    name=self.named(frame),
                    length=self.length(frame),
                    placeholder=frame.attributes.get("scaffold", ""),
                    line=line,
                )
            case "union":
                members = tuple(child for child in children if isinstance(child, Module))
                return Union(members=members, scaffold=frame.attributes.get("scaffold"), line=line)
            case "scaffold":
                if "modules" not in frame.attributes:
                    self.fail("<scaffold>: modules='...' is missing; name two or more module paths", line)
                return Scaffold(modules=tuple(frame.attributes["modules"].split()), line=line)
            case _:
                role: RoleName = next(role for role in ROLES if role == frame.tag)
                return Role(role=role, children=children, line=line)

    def named(self, frame: Frame) -> str:
        """The name of an element that must have one."""
        if "name" not in frame.attributes:
            self.fail(f"<{frame.tag}>: name='...' is missing", frame.line)
        return frame.attributes["name"]

    def length(self, frame: Frame) -> int:
        """The slot length of a parameter."""
        who = f"<{frame.tag} name={self.named(frame)!r}>"
        given = [frame.attributes[key] for key in ("length", "len") if key in frame.attributes]
        if len(given) != 1:
            what = "length and len say the same; give one of them" if given else "length='...' is missing"
            self.fail(f"{who}: {what}", frame.line)
        digits = given[0].strip(SPACE)
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 9):
            self.fail(f"{who}: length is {given[0]!r}; give a whole number of tokens, 0 or more", frame.line)
        return int(digits)

    def choice(self, frame: Frame, attribute: str, values: dict[str, T], *, default: T) -> T:
        """An attribute with few values."""
        value = frame.attributes.get(attribute)
        if value is None:
            return default
        if value not in values:
            who = f"<{frame.tag} name={self.named(frame)!r}>"
            self.fail(f"{who}: {attribute} is {value!r}; write {' or '.join(values)}", frame.line)
        return values[value]

    def file(self, frame: Frame) -> File | None:
        """The content of `src`, which must lie in the schema's own folder."""
        name = frame.attributes.get("src")
        if name is None:
            return None
        who = f"<{frame.tag} name={self.named(frame)!r}>: src {name!r}"
        if self.folder is None:
            self.fail(f"{who} needs a folder; read the schema from a file", frame.line)
        try:
            path = (self.folder / name).resolve()
            if not path.is_relative_to(self.folder.resolve()):
                self.fail(f"{who} lies outside the schema's folder; move the file into it", frame.line)
            if path.is_fifo() or path.stat().st_size > LARGEST_FILE:
                self.fail(f"{who} is no ordinary file of at most {LARGEST_FILE >> 20} MiB; name another", frame.line)
            content = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            self.fail(f"{who} is not UTF-8 text; convert it", frame.line)
        except (OSError, ValueError, RuntimeError) as error:  # pathlib raises RuntimeError for a loop of links
            reason = getattr(error, "strerror", None) or str(error)
            self.fail(f"{who} cannot be read ({reason}); check the name", frame.line)
        return File(name=name, text=content.strip())


class PromptReader(Reader[Prompt]):
    """Prompt elements to nodes."""

    where: Where = "prompt"

    def start(self, frame: Frame) -> None:
        """The root, a role, or a reference; roles hold text only."""
        if not self.frames:
            if frame.tag != "prompt":
                self.fail(f"<{frame.tag}>: the root element of a prompt is <prompt>", frame.line)
            for name in frame.attributes:
                if name != "schema":
                    self.fail(f"<prompt>: unknown attribute {name!r}; allowed: schema", frame.line)
            if "schema" not in frame.attributes:
                self.fail("<prompt>: schema='...' is missing; name the schema it is for", frame.line)
            return
        parent = self.frames[-1]
        if parent.tag in ROLES:
            self.fail(f"<{frame.tag}>: a chat turn of a prompt holds text only; close <{parent.tag}> first", frame.line)
        if frame.tag in ROLES:
            if len(self.frames) > 1:
                self.fail(f"<{parent.tag}>: a module reference holds no <{frame.tag}>; move it behind", frame.line)
            if frame.attributes:
                self.fail(f"<{frame.tag}>: unknown attribute {next(iter(frame.attributes))!r}; it has none", frame.line)

    def text(self, piece: str, line: int) -> None:
        """Text belongs to the prompt and to its turns."""
        frame = self.frames[-1]
        if len(self.frames) > 1 and frame.tag not in ROLES:
            self.fail(f"<{frame.tag}>: a module reference holds no text; move it behind the reference", frame.line)
        frame.children.append(Text(text=piece))

    def end(self, frame: Frame) -> None:
        """The node of an element."""
        if not self.frames:
            self.result = Prompt(schema=frame.attributes["schema"], parts=trimmed(frame.children), line=frame.line)
        elif frame.tag in ROLES:
            role: RoleName = next(role for role in ROLES if role == frame.tag)
            self.frames[-1].children.append(Role(role=role, children=frame.texts_and_roles(), line=frame.line))
        else:
            self.frames[-1].children.append(
                Import(
                    module=frame.tag,
                    arguments=tuple(frame.attributes.items()),
                    children=frame.imports(),
                    line=frame.line,
                )
            )


def trimmed(parts: Sequence[Child | Import]) -> tuple[Import | Text | Role, ...]:
    """Parts of a prompt, each run of text and turns without whitespace at its outer edges."""
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
