"""The source of a function: its syntax tree with the line numbers of its file, errors that name these lines, and parts
of it as code that runs with the function's globals and closure. Not covered: what the statements mean (`compiler`).
"""

import ast
import builtins
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from tokenize import TokenError
from types import CellType, FunctionType
from typing import Any

from cache.errors import PMLError
from cache.programs.parts import Values


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
