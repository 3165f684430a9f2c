"""PML as data: the nodes of a schema and of a prompt. No tokenizer, no tensors.

Holds the part of the language that a generated conversation needs: text, modules and imports. Text runs carry
characters; what they cost in tokens is decided by `layout`. Nothing here is ever parsed out of document or user
text, so such text cannot become structure: a `Text` is literal unless it was made by a chat template.

Not covered yet: the XML syntax, nested modules, unions, parameters, scaffolds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A run of text, tokenised on its own.

    structural: True only for strings of the model's own chat template, in which special tokens are recognised.
        Everything that comes from documents, users or settings is literal.
    tokens: the exact token ids when they are known already (an answer the model generated); then `text` is only
        for people.
    """

    text: str
    structural: bool = False
    tokens: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A reusable piece of prompt: its text runs are encoded together, once.

    after: name of the module that stands before this one while it is encoded (the conditioning prefix, whose
        rows are dropped afterwards); None encodes it alone.
    """

    name: str
    texts: tuple[Text, ...]
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Named modules. `modules` maps a module's name to the module."""

    name: str
    modules: Mapping[str, Module]

    @classmethod
    def of(cls, name: str, modules: tuple[Module, ...]) -> Schema:
        """Build a schema; raises ValueError for a repeated name or an unknown `after`."""
        by_name: dict[str, Module] = {}
        for module in modules:
            if module.name in by_name:
                raise ValueError(f"schema {name!r}: module {module.name!r} is defined twice")
            if module.after is not None and module.after not in by_name:
                raise ValueError(f"schema {name!r}: module {module.name!r} stands after unknown {module.after!r}")
            by_name[module.name] = module
        return cls(name=name, modules=MappingProxyType(by_name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """A reference to a module of the schema."""

    module: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What one request says: imports and new text, in the order in which they stand."""

    schema: Schema
    parts: tuple[Import | Text, ...]
