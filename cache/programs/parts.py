"""What a compiled prompt program is made of: its module, and what a call of the program imports from it.

A `Section` is a module with the slots that arguments fill, and the places where a call may import a nested module: a
branch, or another program. Not covered: Python's syntax (`compiler`).
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any, TypeAlias

from cache.pml.nodes import Child, Import, Module, Parameter
from cache.pml.rules import NAME
from cache.prompt.parts import Text

Values: TypeAlias = Mapping[str, Any]
"""Arguments of a call by name."""
NestedImport: TypeAlias = Callable[[Values], Import | None]
"""The module reference that a call with these arguments makes at one place, if any."""
NAME_LENGTH = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A module and how it is filled. slots: the name of each slot, with the argument that fills it."""

    module: Module
    slots: tuple[tuple[str, str], ...]
    nested: tuple[NestedImport, ...]

    def reference(self, values: Values) -> Import:
        """The reference to this module, filled in. An argument becomes text as in an f-string."""
        children = [nested(values) for nested in self.nested]
        return Import(
            module=self.module.name,
            arguments=tuple((slot, f"{values[argument]}") for slot, argument in self.slots),
            children=tuple(child for child in children if child is not None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled function. An object with one as its attribute `program` can be called in another program's body."""

    signature: inspect.Signature
    section: Section

    def reference(self, args: Sequence[Any], kwargs: Values) -> Import:
        """The reference that a call makes. Raises TypeError if the function itself could not be called so."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return self.section.reference(bound.arguments)


def fresh_name(text: str, kind: str, taken: set[str]) -> str:
    """A new name, which is added to `taken`: the text's ASCII letters and digits, behind `kind` if they are no name.

    If the name is taken, it gets `-2`, `-3` and so on, so that equal functions have equal names in every process.
    """
    short = re.sub(r"[^A-Za-z0-9_.]+", "-", text)[:NAME_LENGTH].strip("-")
    base = short if NAME.fullmatch(short) else f"{kind}-{short}".rstrip("-")
    names = chain([base], (f"{base}-{number}" for number in count(2)))
    name = next(name for name in names if name not in taken)
    taken.add(name)
    return name


@dataclass(slots=True)
class ModuleBody:
    """The content of a module while it is compiled."""

    children: list[Child] = field(default_factory=list)
    slots: list[tuple[str, str]] = field(default_factory=list)
    nested: list[NestedImport] = field(default_factory=list)
    slot_names: set[str] = field(default_factory=set)
    module_names: set[str] = field(default_factory=set)

    def add_text(self, text: str) -> None:
        """Add text. It continues a text before it, as when read from XML."""
        if self.children and isinstance(last := self.children[-1], Text):
            self.children[-1] = Text(text=last.text + text)
        elif text:
            self.children.append(Text(text=text))

    def add_slot(self, argument: str, parameter: Parameter) -> None:
        """Add a slot for an argument. Slot names are unique, so an argument that is used twice has two slots."""
        name = fresh_name(argument, "slot", self.slot_names)
        self.children.append(replace(parameter, name=name))
        self.slots.append((name, argument))

    def section(self, name: str) -> Section:
        """The finished module."""
        module = Module(name=name, children=tuple(self.children))
        return Section(module=module, slots=tuple(self.slots), nested=tuple(self.nested))
