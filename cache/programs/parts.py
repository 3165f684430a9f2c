"""What a compiled prompt program is made of: its module, and at every fork in it what a call imports.

A `Section` is a module with the slots that arguments fill and the steps that may import a nested module: a `Choice`
between branches, or a `Call` of another program. Nothing here knows Python's syntax (`program_compiler`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from cache.pml.nodes import Child, Import, Module, Parameter
from cache.pml.rules import NAME
from cache.prompt.parts import Text

Values: TypeAlias = Mapping[str, Any]
"""Arguments of a call by name."""
NAME_LENGTH = 40


class Step(Protocol):
    """A place in a module where another module may be imported."""

    def imported(self, values: Values) -> Import | None:
        """The reference that a prompt with these arguments holds here, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A module and what goes into it. slots: the name of each, with the argument that fills it."""

    module: Module
    slots: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]

    def imported(self, values: Values) -> Import:
        """The reference to this module, filled in. An argument reads as an f-string shows it."""
        children = [step.imported(values) for step in self.steps]
        return Import(
            module=self.module.name,
            arguments=tuple((slot, f"{values[argument]}") for slot, argument in self.slots),
            children=tuple(child for child in children if child is not None),
        )

    def renamed(self, name: str) -> Section:
        """The same under another name."""
        return replace(self, module=replace(self.module, name=name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled function. Whatever has one as its attribute `program` can be called in the body of another."""

    signature: inspect.Signature
    section: Section

    def imported(self, args: Sequence[Any], kwargs: Values) -> Import:
        """The reference that a call makes. Raises TypeError where the function's own call would."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return self.section.imported(bound.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Branches, of which a call imports one at most. choose: gives its number, or None."""

    choose: Callable[[Values], Any]
    branches: tuple[Section, ...]

    def imported(self, values: Values) -> Import | None:
        """The reference to the branch taken."""
        number = self.choose(values)
        return None if number is None else self.branches[number].imported(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Another program, called with arguments. given: makes the positional ones and those by name."""

    given: Callable[[Values], Any]
    program: Program

    def imported(self, values: Values) -> Import:
        """The reference to the other program's module."""
        args, kwargs = self.given(values)
        return self.program.imported(args, kwargs)


def fresh_name(text: str, kind: str, taken: set[str]) -> str:
    """A name that is not taken, and now is: the text's ASCII letters and digits, behind `kind` if they make no name.

    The second of a name gets `-2`, so that equal functions give equal names in every process.
    """
    short = re.sub(r"[^A-Za-z0-9_.]+", "-", text)[:NAME_LENGTH].strip("-")
    name = base = short if NAME.fullmatch(short) else f"{kind}-{short}".rstrip("-")
    number = 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    taken.add(name)
    return name


@dataclass(slots=True)
class Body:
    """The inside of a module while it is put together."""

    children: list[Child] = field(default_factory=list)
    slots: list[tuple[str, str]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    slot_names: set[str] = field(default_factory=set)
    module_names: set[str] = field(default_factory=set)

    def add_text(self, text: str) -> None:
        """Text; what follows other text continues it, as it would when read from XML."""
        if self.children and isinstance(last := self.children[-1], Text):
            self.children[-1] = Text(text=last.text + text)
        elif text:
            self.children.append(Text(text=text))

    def add_slot(self, argument: str, parameter: Parameter) -> None:
        """A slot for an argument. Names are unique, so an argument used twice has two."""
        name = fresh_name(argument, "slot", self.slot_names)
        self.children.append(replace(parameter, name=name))
        self.slots.append((name, argument))

    def add_step(self, child: Child, step: Step) -> None:
        """A nested module or union, and what decides about it."""
        self.children.append(child)
        self.steps.append(step)

    def section(self, name: str) -> Section:
        """The finished module."""
        module = Module(name=name, children=tuple(self.children))
        return Section(module=module, slots=tuple(self.slots), steps=tuple(self.steps))
