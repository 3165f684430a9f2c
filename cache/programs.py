"""Prompt programs: a Python function as a PML schema, and each call of it as a prompt for that schema.

    @prompt_program
    def trip(city: Annotated[str, MaxTokens(8)], hurry: bool) -> None:
        "You plan trips."
        f"The traveller goes to {city}."
        if hurry:
            "Be quick."

    schemas.replace(trip.schema)
    schemas.bind(trip.ask("Where to?", city="Oslo", hurry=True))

The schema has one module, named after the function, which contains the whole body, because parameters need a module.
Another program can nest this module. The statements of a program:

    "text"                          text, as written, and a line break; {name} in an f-string is the argument's slot
    if c: ...                       a module, imported if c is true
    if / elif / else, match         a union with a member for each branch; a call imports at most one
    other(x)                        another program's module, nested
    for day in ("Mo", "Tu"): ...    its body for each of the constants, with {day} as text
    pass                            nothing

Any other statement is a PMLError with its line. Conditions and arguments of nested calls stay Python and run when the
program is called. A branch is named after its first line (`if-hurry`, `else`, `case-winter`), a nested program after
its function, a slot after its argument. After Prompt Cache (Gim et al., MLSys 2024), section 3.2. Out of scope: chat
turns; a program holds plain text.
"""

import ast
import builtins
import hashlib
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import update_wrapper
from itertools import chain, count
from tokenize import TokenError
from types import CellType, FunctionType
from typing import Any, Generic, ParamSpec, TypeAlias

from cache.errors import PMLError
from cache.pml.nodes import MAX_SLOT, NAME, NOT_XML, RESERVED, Child, Import, Module, Parameter, Prompt, Schema, Union
from cache.prompt.parts import Text

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class MaxTokens:
    """Declares an argument as a parameter. placeholder: fills the slot while the module is encoded."""

    length: int
    placeholder: str = ""


Values: TypeAlias = Mapping[str, Any]  # arguments of a call by name
NestedImport: TypeAlias = Callable[[Values], Import | None]
"""Returns the module reference that a call with these arguments makes at one place, if any."""
NAME_LENGTH = 40


@dataclass(slots=True)
class Section:
    """A module being built. slots: the name of each slot, with its argument."""

    name: str
    children: list[Child] = field(default_factory=list)
    slots: list[tuple[str, str]] = field(default_factory=list)
    nested: list[NestedImport] = field(default_factory=list)
    slot_names: set[str] = field(default_factory=set)
    module_names: set[str] = field(default_factory=set)

    @property
    def module(self) -> Module:
        return Module(name=self.name, children=tuple(self.children))

    def add_text(self, text: str) -> None:
        """Add text. Adjacent texts are joined, as when XML is read."""
        if self.children and isinstance(last := self.children[-1], Text):
            self.children[-1] = Text(text=last.text + text)
        elif text:
            self.children.append(Text(text=text))

    def add_slot(self, argument: str, parameter: Parameter) -> None:
        """Add a slot for an argument. Slot names are unique, so an argument that is used twice has two slots."""
        name = fresh_name(argument, "slot", self.slot_names)
        self.children.append(replace(parameter, name=name))
        self.slots.append((name, argument))

    def reference(self, values: Values) -> Import:
        """Return the reference to this module with its arguments. An argument becomes text as in an f-string."""
        children = [nested(values) for nested in self.nested]
        return Import(
            module=self.name,
            arguments=tuple((slot, f"{values[argument]}") for slot, argument in self.slots),
            children=tuple(child for child in children if child is not None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled function. Programs can call any object whose attribute `program` is one."""

    signature: inspect.Signature
    section: Section

    def reference(self, args: Sequence[Any], kwargs: Values) -> Import:
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return self.section.reference(bound.arguments)


def fresh_name(text: str, kind: str, taken: set[str]) -> str:
    """Return a new name from a text's ASCII letters and digits, and add it to `taken`. `kind` comes first if they are
    not a name. A used name gets `-2`, `-3` and so on, so that equal functions have equal names in every process.
    """
    short = re.sub(r"[^A-Za-z0-9_.]+", "-", text)[:NAME_LENGTH].strip("-")
    base = short if NAME.fullmatch(short) else f"{kind}-{short}".rstrip("-")
    names = chain([base], (f"{base}-{number}" for number in count(2)))
    name = next(name for name in names if name not in taken)
    taken.add(name)
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSource:
    """A function and its definition. Line numbers are lines of the file."""

    function: FunctionType
    tree: ast.FunctionDef

    def mistake(self, node: ast.stmt | ast.expr | ast.arg | ast.pattern, message: str) -> PMLError:
        return program_error(self.function, message, node.lineno)

    def cells(self) -> dict[str, CellType]:
        return dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True))

    def lookup(self, name: str) -> Any:
        with suppress(KeyError, ValueError):  # no such variable, or not assigned yet
            return self.cells()[name].cell_contents
        return {**vars(builtins), **self.function.__globals__}[name]

    def code(
        self, statements: Sequence[ast.stmt], arguments: Sequence[str], constants: Mapping[str, object]
    ) -> Callable[[Values], Any]:
        """Compile statements that return a value into a function of a call's arguments. constants: names with known
        values. Other names are looked up when the code runs. Errors of the code are not changed.
        """
        used = {node.id for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Name)}
        given = [name for name in arguments if name in used]
        fixed = {name: value for name, value in constants.items() if name in used}
        code, name = self.function.__code__, self.tree.name
        while name in used:  # the new function must not hide a name that it uses
            name += "_"
        tree = ast.parse(
            f"def around({', '.join(code.co_freevars)}):\n"
            f" def {name}({', '.join([*given, *fixed])}): pass\n"
            f" return {name}"
        )
        _, definition = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
        definition.body = list(statements)
        names: dict[str, Any] = {}
        exec(compile(ast.fix_missing_locations(tree), code.co_filename, "exec", dont_inherit=True), names)
        compiled = names["around"](*code.co_freevars).__code__
        closure = tuple(self.cells()[variable] for variable in compiled.co_freevars)
        piece = FunctionType(compiled, self.function.__globals__, name, None, closure)

        def run(values: Values) -> Any:
            return piece(**{argument: values[argument] for argument in given}, **fixed)

        return run


def program_error(function: FunctionType, message: str, line: int | None = None) -> PMLError:
    error = PMLError(message, where="program", line=line or function.__code__.co_firstlineno)
    error.source = function.__code__.co_filename
    return error


def read_source(function: object) -> FunctionSource:
    """Return a function with the syntax tree of its source. Raises PMLError for anything but a plain `def`."""
    if not isinstance(function, FunctionType):
        raise PMLError(f"{function!r} is not a function; put the decorator on a `def`", where="program")
    if function.__code__.co_name == "<lambda>":
        raise program_error(function, "a lambda has no statements; write a `def`")
    if hasattr(function, "__wrapped__"):
        message = "another decorator is below this one; put this one directly on the `def`"
        raise program_error(inspect.unwrap(function), message)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise program_error(function, "`async` has no meaning in a prompt; write a plain `def`")
    try:
        lines, first = inspect.getsourcelines(function)
        # A definition inside another block keeps its indentation: removing it would change texts of several lines.
        block = ["if True:\n"] if lines[0][:1].isspace() else []
        module = ast.parse("".join([*block, *lines]))
    except (OSError, SyntaxError, TokenError):
        raise program_error(function, "its source cannot be read; define it in a file") from None
    ast.increment_lineno(module, first - 1 - len(block))
    tree = next((node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)), None)
    if tree is None or tree.name != function.__code__.co_name:
        raise program_error(function, "its file has changed since it was loaded; restart the program")
    return FunctionSource(function=function, tree=tree)


def shown(node: ast.AST) -> str:
    return f"`{ast.unparse(node).splitlines()[0][:60]}`"


def declared(source: FunctionSource) -> dict[str, Parameter]:
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


BEFORE = "compute the value before and pass it as an argument"
LOOP = 'write the constants out, as in `for day in ("Monday", "Tuesday"):` or `for week in range(1, 4):`'
ALLOWED = "a program is made of strings, `if`, `match`, `for` over constants and calls of other programs"
Statements: TypeAlias = Sequence[ast.stmt]
Branch: TypeAlias = tuple[str, Statements]  # a title, which names the module, and statements


class Compiler:
    """Reads the statements of one function. `constants`: values of the loop variables around a statement. Raises
    PMLError for the first unsupported statement.
    """

    def __init__(self, function: object) -> None:
        self.source = read_source(function)
        self.parameters, self.signature = declared(self.source), inspect.signature(self.source.function)
        self.arguments = tuple(self.signature.parameters)
        targets = [node.target for node in ast.walk(self.source.tree) if isinstance(node, ast.For)]
        self.loop_variables = {target.id for target in targets if isinstance(target, ast.Name)}

    def program(self) -> Program:
        name = fresh_name(self.source.tree.name, "program", set(RESERVED))
        return Program(signature=self.signature, section=self.section(name, self.source.tree.body, {}))

    def section(self, name: str, statements: Sequence[ast.stmt], constants: Values) -> Section:
        section = Section(name)
        for statement in statements:
            self.read(statement, section, constants)
        return section

    def read(self, node: ast.stmt, body: Section, constants: Values) -> None:
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                self.add_text(text + "\n", node, body)
            case ast.Expr(value=ast.JoinedStr(values=pieces)):
                for piece in pieces:
                    self.read_piece(piece, node, body, constants)
                self.add_text("\n", node, body)
            case ast.Expr(value=ast.Call() as call):
                self.read_call(call, body, constants)
            case ast.If():
                self.read_if(node, body, constants)
            case ast.Match():
                self.read_match(node, body, constants)
            case ast.For():
                self.read_loop(node, body, constants)
            case ast.Pass():
                pass
            case _:
                raise self.source.mistake(node, f"{shown(node)} is not allowed; {ALLOWED}")

    def add_text(self, text: str, node: ast.stmt, body: Section) -> None:
        if NOT_XML.search(text):
            raise self.source.mistake(node, f"{text[:40]!r} holds a control character; leave it out")
        body.add_text(text)

    def read_piece(self, piece: ast.expr, node: ast.stmt, body: Section, constants: Values) -> None:
        match piece:
            case ast.Constant(value=str(text)):
                self.add_text(text, node, body)
            case ast.FormattedValue(value=ast.Name(id=name), conversion=-1, format_spec=None):
                if name in constants:
                    self.add_text(f"{constants[name]}", node, body)
                elif name in self.parameters:
                    body.add_slot(name, self.parameters[name])
                elif name in self.arguments:
                    declared = f"declare it, as in `{name}: Annotated[str, MaxTokens(8)]`"
                    raise self.source.mistake(node, f"`{{{name}}}` has no maximum length; {declared}")
                else:
                    raise self.source.mistake(node, f"`{{{name}}}` is not an argument of the program; make it one")
            case _:
                remedy = f"only bare names, without formatting, are allowed in braces; {BEFORE}"
                value = piece.value if isinstance(piece, ast.FormattedValue) else piece
                raise self.source.mistake(node, f"{shown(value)} in an f-string: {remedy}")

    def read_if(self, node: ast.If, body: Section, constants: Values) -> None:
        branches: list[Branch] = []
        choose: list[ast.stmt] = []
        rest: list[ast.stmt] = [node]
        while len(rest) == 1 and isinstance(branch := rest[0], ast.If):
            self.check(branch.test, constants)
            choose.append(ast.copy_location(ast.If(branch.test, [ast.Return(ast.Constant(len(branches)))], []), branch))
            branches.append((f"{'elif' if branches else 'if'} {ast.unparse(branch.test)}", branch.body))
            rest = branch.orelse
        if rest:
            choose.append(ast.Return(ast.Constant(len(branches))))
            branches.append(("else", rest))
        self.add_branches(branches, choose, body, constants, union=len(branches) > 1)

    def read_match(self, node: ast.Match, body: Section, constants: Values) -> None:
        self.check(node.subject, constants)
        branches: list[Branch] = []
        cases: list[ast.match_case] = []
        for number, case in enumerate(node.cases):
            self.check_pattern(case.pattern)
            title = f"case {ast.unparse(case.pattern)}"
            if case.guard is not None:
                self.check(case.guard, constants)
                title += f" if {ast.unparse(case.guard)}"
            cases.append(ast.match_case(case.pattern, case.guard, [ast.Return(ast.Constant(number))]))
            branches.append((title, case.body))
        choose = ast.copy_location(ast.Match(node.subject, cases), node)
        self.add_branches(branches, [choose], body, constants, union=True)

    def add_branches(
        self, branches: Sequence[Branch], choose: Statements, body: Section, constants: Values, *, union: bool
    ) -> None:
        """Add a module for each branch. choose: returns the number of the branch to take."""
        sections = tuple(
            self.section(fresh_name(title, "branch", body.module_names), statements, constants)
            for title, statements in branches
        )
        modules = tuple(section.module for section in sections)
        choice = self.source.code(choose, self.arguments, constants)

        def chosen(values: Values) -> Import | None:
            number = choice(values)
            return None if number is None else sections[number].reference(values)

        body.children.append(Union(members=modules) if union else modules[0])
        body.nested.append(chosen)

    def read_loop(self, node: ast.For, body: Section, constants: Values) -> None:
        if not isinstance(node.target, ast.Name):
            raise self.source.mistake(node.target, f"{shown(node.target)}: a loop has one variable; write one name")
        name = node.target.id
        if name in self.arguments or name in constants:
            raise self.source.mistake(node.target, f"`{name}` has a value already; choose another name for the loop's")
        if node.orelse:
            raise self.source.mistake(node.orelse[0], "a loop's `else` always runs; write it after the loop")
        for value in self.loop_values(node.iter):
            for statement in node.body:
                self.read(statement, body, {**constants, name: value})

    def loop_values(self, node: ast.expr) -> Sequence[Any]:
        values: Sequence[Any] = ()
        try:
            match node:
                case ast.Tuple() | ast.List():
                    values = ast.literal_eval(node)
                case ast.Call(func=ast.Name(id="range") as function, keywords=[]) if self.value_now(function) is range:
                    values = range(*(ast.literal_eval(bound) for bound in node.args))
        except (TypeError, ValueError):  # not literals, or a step of 0
            pass
        if not values or not all(isinstance(value, str | int | float) for value in values):
            raise self.source.mistake(node, f"{shown(node)} is not a list of strings or numbers; {LOOP}")
        return values

    def read_call(self, node: ast.Call, body: Section, constants: Values) -> None:
        program = self.callee(node)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.check(argument, constants)
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
        if len(keywords) < len(node.keywords) or any(isinstance(argument, ast.Starred) for argument in node.args):
            raise self.source.mistake(node, f"{shown(node)}: write the arguments out, without `*` and `**`")
        try:
            program.signature.bind(*node.args, **keywords)
        except TypeError as error:
            raise self.source.mistake(node, f"{shown(node)}: {error}; call it as it is defined") from None
        by_name = ast.Dict(keys=[ast.Constant(value=name) for name in keywords], values=list(keywords.values()))
        given = ast.Tuple(elts=[ast.Tuple(elts=node.args, ctx=ast.Load()), by_name], ctx=ast.Load())
        arguments = self.source.code([ast.Return(value=given)], self.arguments, constants)
        name = fresh_name(program.section.name, "program", body.module_names)
        renamed = replace(program, section=replace(program.section, name=name))

        def called(values: Values) -> Import:
            args, kwargs = arguments(values)
            return renamed.reference(args, kwargs)

        body.children.append(renamed.section.module)
        body.nested.append(called)

    def callee(self, node: ast.Call) -> Program:
        """Return the program that a call names, as defined now. Later definitions are not used."""
        if isinstance(node.func, ast.Name) and node.func.id == self.source.tree.name:
            raise self.source.mistake(node, f"{shown(node)}: a program cannot contain itself; write its text again")
        try:
            program = getattr(self.value_now(node.func), "program", None)
        except (KeyError, AttributeError):
            remedy = "define the program above this one"
            raise self.source.mistake(node, f"{shown(node.func)} is not known yet; {remedy}") from None
        if not isinstance(program, Program):
            remedy = f"{BEFORE}, or make it a program"
            raise self.source.mistake(node, f"{shown(node)} is not a call of a prompt program; {remedy}")
        return program

    def value_now(self, node: ast.expr) -> Any:
        """Return the current value of a dotted name; None for other expressions. Raises KeyError, AttributeError."""
        match node:
            case ast.Name(id=name) if name not in self.arguments and name not in self.loop_variables:
                return self.source.lookup(name)
            case ast.Attribute(value=owner, attr=name) if (found := self.value_now(owner)) is not None:
                return getattr(found, name)
        return None

    def check(self, expression: ast.expr, constants: Values) -> None:
        """Check an expression that runs in each call: no assignments, and a loop's variable only inside that loop."""
        for node in ast.walk(expression):
            if isinstance(node, ast.NamedExpr | ast.Yield | ast.YieldFrom):
                raise self.source.mistake(node, f"{shown(node)} is not a plain expression; {BEFORE}")
            if isinstance(node, ast.Name) and node.id in self.loop_variables and node.id not in constants:
                raise self.source.mistake(node, f"`{node.id}` has a value only inside its loop; choose another name")

    def check_pattern(self, pattern: ast.pattern) -> None:
        """Raise PMLError unless a `case` is a string, a whole number, several of these joined by `|`, or `_`."""
        match pattern:
            case (
                ast.MatchValue(value=ast.Constant(value=str() | int()))
                | ast.MatchValue(value=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int())))
                | ast.MatchAs(pattern=None, name=None)
            ):
                pass
            case ast.MatchOr(patterns=patterns):
                for inner in patterns:
                    self.check_pattern(inner)
            case _:
                remedy = "match strings and whole numbers, and `_` for the rest"
                raise self.source.mistake(pattern, f"`case {ast.unparse(pattern)}` is not a constant; {remedy}")


class PromptProgram(Generic[P]):
    """Makes a schema of a function. A call with the function's arguments makes a prompt. schema: its name is made from
    the function and a digest, so it is equal in every process. Raises PMLError for the first unsupported statement.
    """

    def __init__(self, function: Callable[P, object]) -> None:
        update_wrapper(self, function)
        self.program = Compiler(function).program()
        module = self.program.section.module
        digest = hashlib.blake2b(repr(module).encode(), digest_size=16).hexdigest()
        self.schema = Schema(name=f"{module.name}-{digest}", children=(module,))

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Prompt:
        """Return the prompt for these arguments: the branches taken, with their slots filled. Raises TypeError for
        arguments that the function does not accept, and the errors of conditions.
        """
        return Prompt(schema=self.schema.name, parts=(self.program.reference(args, kwargs),))

    def ask(self, text: str, /, *args: P.args, **kwargs: P.kwargs) -> Prompt:
        """Return the same prompt with a user's text after it."""
        prompt = self(*args, **kwargs)
        return Prompt(schema=prompt.schema, parts=(*prompt.parts, Text(text=text)))


prompt_program = PromptProgram  # the decorator
