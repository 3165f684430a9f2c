"""PML as XML, the inverse of `parser`: reading what was written gives the same nodes."""

from collections.abc import Sequence
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

from cache.pml.nodes import (
    Child,
    Import,
    Module,
    Node,
    Parameter,
    Prompt,
    Role,
    Scaffold,
    Schema,
    Union,
    open_turns,
    walk,
)
from cache.pml.parser import tidy, trimmed
from cache.pml.rules import NOT_XML, tag
from cache.prompt.parts import Text

DEEPEST_INDENT = 10
"""Levels that are indented, so that very deep schemas do not consist of spaces."""


def write_schema(schema: Schema) -> str:
    """A schema as XML, with line breaks between tags where reading drops them.

    Raises ValueError for what PML cannot say: template strings, known tokens and control characters.
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
    """Whether an element is written with its whitespace preserved."""
    return isinstance(node, Schema | Module) and any(tidy(text) != text for text in own_texts(node.children))


def write_prompt(prompt: Prompt) -> str:
    """A prompt as XML. Raises ValueError as `write_schema` does, and for whitespace that reading would drop."""
    if trimmed(prompt.parts) != prompt.parts or any(tidy(text) != text for text in own_texts(prompt.parts)):
        raise ValueError("PML cannot say whitespace at the edges of a prompt's text")
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
    """Element name and attributes of a node."""
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
    """Texts among the children of an owner, and in the turns among them."""
    return [child.text for child in open_turns(children) if isinstance(child, Text)]


def characters(text: Text) -> str:
    """Text, escaped. A carriage return is written as a reference, because XML reads a plain one as a line feed."""
    if text.structural or text.tokens is not None:
        raise ValueError(f"PML cannot say template strings and known tokens: {text.text[:40]!r}")
    if NOT_XML.search(text.text):
        raise ValueError(f"XML cannot say control characters: {text.text[:40]!r}")
    return escape(text.text, {"\r": "&#13;"})


def attribute(value: str) -> str:
    """A quoted attribute value."""
    if NOT_XML.search(value):
        raise ValueError(f"XML cannot say control characters: {value[:40]!r}")
    return quoteattr(value, {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"})
