"""What a compiled prompt program is made of: its module, and what a call of the program imports from it.

A `Section` is a module with the slots that arguments fill, and the places where a call may import a nested module: a
branch, or another program. Not covered: Python's syntax (`compiler`).

The source of a function: its syntax tree with the line numbers of its file, errors that name these lines, and parts
of it as code that runs with the function's globals and closure. Not covered: what the statements mean (`compiler`).

From a function's statements to PML: a module with all texts of the function, and what a call imports of it.

    "text"                          text, as written, and a line break; {name} in an f-string is the argument's slot
    if c: ...                       a module, imported if c is true
    if / elif / else, match         a union with a member for each branch; a call imports at most one
    other(x)                        another program's module, nested
    for day in ("Mo", "Tu"): ...    its body for each of the constants, with {day} as text
    pass                            nothing

Any other statement is an error with its line. Conditions and arguments of nested calls stay Python and run when the
program is called. A branch is named after its first line (`if-hurry`, `else`, `case-winter`), a nested program after
its function, a slot after its argument. After Prompt Cache (Gim et al., MLSys 2024), section 3.2.
"""

import ast
import builtins
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, count
from tokenize import TokenError
from types import CellType, FunctionType
from typing import Any, TypeAlias

from cache.errors import PMLError
from cache.pml.nodes import NAME, NOT_XML, RESERVED, Child, Import, Module, Parameter, Union
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSource:
    """A function and its definition. Line numbers are those of the file."""

    function: FunctionType
    tree: ast.FunctionDef

    def mistake(self, node: ast.stmt | ast.expr | ast.arg | ast.pattern, message: str) -> PMLError:
        """An error about a place in the function."""
        return program_error(self.function, message, node.lineno)

    def cells(self) -> dict[str, CellType]:
        """Variables of the functions around this one."""
        return dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True))

    def lookup(self, name: str) -> Any:
        """The value of a name outside the function, now. Raises KeyError."""
        with suppress(KeyError, ValueError):  # no such variable, or not assigned yet
            return self.cells()[name].cell_contents
        return {**vars(builtins), **self.function.__globals__}[name]

    def code(
        self, statements: Sequence[ast.stmt], arguments: Sequence[str], constants: Mapping[str, object]
    ) -> Callable[[Values], Any]:
        """Statements that return a value, as a function of a call's arguments.

        arguments: names that come from the call. constants: names with a value known now. Other names are looked up
        when the code runs, as in the function itself. Errors of the code are raised as they are.
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
    """An error about a function, at its beginning if no line is given."""
    error = PMLError(message, where="program", line=line or function.__code__.co_firstlineno)
    error.source = function.__code__.co_filename
    return error


def read_source(function: object) -> FunctionSource:
    """The definition of a function in its file. Raises PMLError for anything but a plain `def`."""
    if not isinstance(function, FunctionType):
        raise PMLError(f"{function!r} is not a function; put the decorator on a `def`", where="program")
    if function.__code__.co_name == "<lambda>":
        raise program_error(function, "a lambda has no statements; write a `def`")
    if hasattr(function, "__wrapped__"):
        message = "another decorator stands below this one; put this one directly on the `def`"
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
        raise program_error(function, "its file has changed since it was loaded; start again")
    return FunctionSource(function=function, tree=tree)


def shown(node: ast.AST) -> str:
    """The first line of a piece of source, for messages."""
    return f"`{ast.unparse(node).splitlines()[0][:60]}`"


BEFORE = "compute the value before and pass it as an argument"
LOOP = 'write the constants out, as in `for day in ("Monday", "Tuesday"):` or `for week in range(1, 4):`'
LEAVE = "put optional text under an `if`"
ALLOWED = "a program is made of strings, `if`, `match`, `for` over constants and calls of other programs"
INSTEAD: Mapping[type[ast.stmt], str] = {
    **dict.fromkeys((ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Delete), BEFORE),
    **dict.fromkeys((ast.Break, ast.Continue), LEAVE),
    **dict.fromkeys((ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom), "move it out of the function"),
    ast.Return: f"write its text as a statement, and {LEAVE}",
    ast.While: LOOP,
}
Branch: TypeAlias = tuple[str, Sequence[ast.stmt]]
"""A title, which names the module, and statements."""


def compile_program(source: FunctionSource, parameters: Mapping[str, Parameter]) -> Program:
    """Compile a function.

    parameters: arguments with a declared length, as slots. Raises PMLError for the first statement that PML cannot say.
    """
    compiler = Compiler(source, parameters)
    name = fresh_name(source.tree.name, "program", set(RESERVED))
    return Program(signature=compiler.signature, section=compiler.section(name, source.tree.body, {}))


class Compiler:
    """Reads the statements of one function. `constants`: values of the loop variables around a statement."""

    def __init__(self, source: FunctionSource, parameters: Mapping[str, Parameter]) -> None:
        self.source, self.parameters = source, parameters
        self.signature = inspect.signature(source.function)
        self.arguments = tuple(self.signature.parameters)
        targets = [node.target for node in ast.walk(source.tree) if isinstance(node, ast.For)]
        self.loop_variables = {target.id for target in targets if isinstance(target, ast.Name)}

    def section(self, name: str, statements: Sequence[ast.stmt], constants: Values) -> Section:
        """A module of statements. Raises PMLError."""
        body = ModuleBody()
        for statement in statements:
            self.read(statement, body, constants)
        return body.section(name)

    def read(self, node: ast.stmt, body: ModuleBody, constants: Values) -> None:
        """Add a statement to a body. Raises PMLError."""
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
                raise self.source.mistake(node, f"{shown(node)} is not allowed; {INSTEAD.get(type(node), ALLOWED)}")

    def add_text(self, text: str, node: ast.stmt, body: ModuleBody) -> None:
        """Add text of a statement. Raises PMLError for characters that XML cannot hold."""
        if NOT_XML.search(text):
            raise self.source.mistake(node, f"{text[:40]!r} holds a control character; leave it out")
        body.add_text(text)

    def read_piece(self, piece: ast.expr, node: ast.stmt, body: ModuleBody, constants: Values) -> None:
        """Add a piece of an f-string: text, a loop's constant, or an argument with a length. Raises PMLError."""
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
                remedy = f"only bare names, without formatting, stand in braces; {BEFORE}"
                value = piece.value if isinstance(piece, ast.FormattedValue) else piece
                raise self.source.mistake(node, f"{shown(value)} in an f-string: {remedy}")

    def read_if(self, node: ast.If, body: ModuleBody, constants: Values) -> None:
        """Add one branch as a module, several as a union. Raises PMLError."""
        branches: list[Branch] = []
        choose: list[ast.stmt] = []
        rest: list[ast.stmt] = [node]
        while len(rest) == 1 and isinstance(branch := rest[0], ast.If):
            self.check(branch.test, constants)
            choose.append(ast.copy_location(ast.If(branch.test, [return_number(len(branches))], []), branch))
            branches.append((f"{'elif' if branches else 'if'} {ast.unparse(branch.test)}", branch.body))
            rest = branch.orelse
        if rest:
            choose.append(return_number(len(branches)))
            branches.append(("else", rest))
        self.add_branches(branches, choose, body, constants, union=len(branches) > 1)

    def read_match(self, node: ast.Match, body: ModuleBody, constants: Values) -> None:
        """Add the cases as a union. Raises PMLError."""
        self.check(node.subject, constants)
        branches: list[Branch] = []
        cases: list[ast.match_case] = []
        for number, case in enumerate(node.cases):
            self.check_pattern(case.pattern)
            title = f"case {ast.unparse(case.pattern)}"
            if case.guard is not None:
                self.check(case.guard, constants)
                title += f" if {ast.unparse(case.guard)}"
            cases.append(ast.match_case(case.pattern, case.guard, [return_number(number)]))
            branches.append((title, case.body))
        choose = ast.copy_location(ast.Match(node.subject, cases), node)
        self.add_branches(branches, [choose], body, constants, union=True)

    def add_branches(
        self,
        branches: Sequence[Branch],
        choose: Sequence[ast.stmt],
        body: ModuleBody,
        constants: Values,
        *,
        union: bool,
    ) -> None:
        """Add a module for each branch. choose: returns the number of the branch to take. union: whether the modules
        are members of a union.
        """
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

    def read_loop(self, node: ast.For, body: ModuleBody, constants: Values) -> None:
        """Add the loop's body once for each of its constants. Raises PMLError."""
        if not isinstance(node.target, ast.Name):
            raise self.source.mistake(node.target, f"{shown(node.target)}: a loop has one variable; write one name")
        name = node.target.id
        if name in self.arguments or name in constants:
            raise self.source.mistake(node.target, f"`{name}` has a value already; choose another name for the loop's")
        if node.orelse:
            raise self.source.mistake(node.orelse[0], "a loop's `else` always runs; write it behind the loop")
        for value in self.loop_values(node.iter):
            for statement in node.body:
                self.read(statement, body, {**constants, name: value})

    def loop_values(self, node: ast.expr) -> Sequence[Any]:
        """The constants of a loop. Raises PMLError if there are none, or they are not constants."""
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
            raise self.source.mistake(node, f"{shown(node)} is not a row of strings or numbers; {LOOP}")
        return values

    def read_call(self, node: ast.Call, body: ModuleBody, constants: Values) -> None:
        """Add the other program's module. Raises PMLError."""
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
        name = fresh_name(program.section.module.name, "program", body.module_names)
        module = replace(program.section.module, name=name)
        renamed = replace(program, section=replace(program.section, module=module))

        def called(values: Values) -> Import:
            args, kwargs = arguments(values)
            return renamed.reference(args, kwargs)

        body.children.append(module)
        body.nested.append(called)

    def callee(self, node: ast.Call) -> Program:
        """The program that a call names. It is looked up now, not when the call runs. Raises PMLError."""
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
        """A dotted name's value outside the function; None for other expressions. Raises KeyError, AttributeError."""
        match node:
            case ast.Name(id=name) if name not in self.arguments and name not in self.loop_variables:
                return self.source.lookup(name)
            case ast.Attribute(value=owner, attr=name) if (found := self.value_now(owner)) is not None:
                return getattr(found, name)
        return None

    def check(self, expression: ast.expr, constants: Values) -> None:
        """An expression that runs in calls must assign no variable, and use a loop's variable only inside that loop.
        Raises PMLError.
        """
        for node in ast.walk(expression):
            if isinstance(node, ast.NamedExpr | ast.Yield | ast.YieldFrom):
                raise self.source.mistake(node, f"{shown(node)} is not a plain expression; {BEFORE}")
            if isinstance(node, ast.Name) and node.id in self.loop_variables and node.id not in constants:
                raise self.source.mistake(node, f"`{node.id}` has a value only inside its loop; choose another name")

    def check_pattern(self, pattern: ast.pattern) -> None:
        """A case is a string, a whole number, several of them joined by `|`, or `_`. Raises PMLError."""
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


def return_number(number: int) -> ast.Return:
    """The statement that returns the number of a branch."""
    return ast.Return(value=ast.Constant(value=number))
