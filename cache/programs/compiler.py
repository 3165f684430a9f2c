"""From a function's statements to PML: a module with all texts of the function, and what a call imports of it.

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
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from cache.pml.nodes import Import, Parameter, Union
from cache.pml.rules import NOT_XML, RESERVED
from cache.programs.parts import ModuleBody, Program, Section, Values, fresh_name
from cache.programs.source import FunctionSource, shown

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
