"""Prompt programs: a Python function as a PML schema, and each call of it as a prompt for that schema.

    @prompt_program
    def trip(city: Annotated[str, MaxTokens(8)], hurry: bool) -> None:
        "You plan trips."
        f"The traveller goes to {city}."
        if hurry:
            "Be quick."

    schemas.replace(trip.schema)
    schemas.bind(trip.ask("Where to?", city="Oslo", hurry=True))

The schema has one module, named after the function, with the whole body in it: parameters need a module, and a program
nested in another is the same module there. What each statement becomes: `compiler`. After Prompt Cache (Gim et al.,
MLSys 2024), section 3.2. Not covered: chat turns; a program holds plain text.
"""

import hashlib
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Generic, ParamSpec

from cache.pml.nodes import MAX_SLOT, NOT_XML, Parameter, Prompt, Schema
from cache.programs.compiler import FunctionSource, Program, compile_program, read_source
from cache.prompt.parts import Text

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class MaxTokens:
    """Declares an argument as a parameter: `city: Annotated[str, MaxTokens(8)]`.

    placeholder: fills the slot while the module is encoded.
    """

    length: int
    placeholder: str = ""


class PromptProgram(Generic[P]):
    """A function as a schema. Calling it with the function's arguments makes a prompt.

    schema: named after the function and a digest of the content, so equal in every process.
    """

    def __init__(self, function: Callable[P, object]) -> None:
        """Compile a function. Raises PMLError with the line of the first unsupported statement."""
        update_wrapper(self, function)
        source = read_source(function)
        self.program: Program = compile_program(source, declared(source))
        module = self.program.section.module
        digest = hashlib.blake2b(repr(module).encode(), digest_size=16).hexdigest()
        self.schema = Schema(name=f"{module.name}-{digest}", children=(module,))

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Prompt:
        """Return the prompt for these arguments: the branches taken, with their slots filled.

        Raises TypeError if the function itself could not be called so, and whatever a condition raises.
        """
        return Prompt(schema=self.schema.name, parts=(self.program.reference(args, kwargs),))

    def ask(self, text: str, /, *args: P.args, **kwargs: P.kwargs) -> Prompt:
        """Return the same prompt with a user's text after it."""
        prompt = self(*args, **kwargs)
        return Prompt(schema=prompt.schema, parts=(*prompt.parts, Text(text=text)))


def prompt_program(function: Callable[P, object]) -> PromptProgram[P]:
    """Make a function a prompt program. Raises PMLError with the line of the first unsupported statement."""
    return PromptProgram(function)


def declared(source: FunctionSource) -> dict[str, Parameter]:
    """Return the arguments with a declared maximum length, as slots. Raises PMLError."""
    arguments = source.tree.args
    for argument in (arguments.vararg, arguments.kwarg):
        if argument is not None:
            raise source.mistake(argument, f"`{argument.arg}`: a program has named arguments; write them out")
    try:
        hints = typing.get_type_hints(source.function, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        remedy = "define the types at the top of the file"
        raise source.mistake(source.tree, f"its annotations cannot be read: {error}; {remedy}") from None
    parameters: dict[str, Parameter] = {}
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        for size in getattr(hints.get(argument.arg), "__metadata__", ()):
            if isinstance(size, MaxTokens):
                if type(size.length) is not int or not 1 <= size.length <= MAX_SLOT:
                    raise source.mistake(argument, f"{size}: give a whole number of tokens, 1 or more, to {MAX_SLOT}")
                if NOT_XML.search(size.placeholder):
                    raise source.mistake(argument, f"{size}: the placeholder holds a control character; leave it out")
                slot = Parameter(name=argument.arg, length=size.length, placeholder=size.placeholder)
                parameters[argument.arg] = slot
    return parameters
