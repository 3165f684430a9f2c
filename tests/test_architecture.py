"""The house rules, read from the imports: who may know whom, and what no file may do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("app", "retrieval", "cache", "evals")
MAY_IMPORT = {
    "retrieval": {"retrieval"},
    "cache": {"cache"},
    "app": {"app", "retrieval", "cache", "evals"},
    "evals": {"evals", "app", "retrieval", "cache"},
}
LAYERS_OF_CACHE = (
    *("errors", "pml", "pml_rules", "pml_parser", "pml_writer", "roles", "text_runs", "plan", "layout", "binding"),
    *("program_parts", "program_source", "program_compiler", "prompt_program", "arrangement", "registry", "advice"),
    *("grouping", "keys", "extents", "prefixes", "arena", "disk", "store", "items", "kernels", "distance", "families"),
    *("packing", "attention", "alibi", "chat_template", "tokenizer", "adapters", "model_files", "model"),
    *("lessons", "lesson_model", "adapter_training", "constraints", "sampling", "sequence", "placing", "linking"),
    *("scheduler", "request", "encoder", "admission", "engine", "dry_run"),
)
"""Lowest first. A new file is entered above everything it imports."""

ONLY_IN = {
    "transformers": {"cache.model_files", "cache.model", "cache.lesson_model"},
    "peft": {"cache.adapters", "cache.adapter_training"},
    "faiss": {"retrieval.index"},
    "pdfplumber": {"retrieval.pdf_pages"},
    "pdfminer": {"retrieval.pdf_pages"},
    "mammoth": {"retrieval.docx"},
    "pptx": {"retrieval.pptx"},
    "python_calamine": {"retrieval.spreadsheet"},
    "docutils": {"retrieval.rst"},
    "sentence_transformers": {"retrieval.sentence_embedder", "retrieval.reranker"},
    "sqlalchemy": {
        *("app.tables", "app.database", "app.migrations", "app.library", "app.history"),
        *("app.passage_rows", "app.statistics"),
    },
    "gradio": {"app.chat_page", "app.admin_page", "app.server"},
    "fastapi": {"app.server", "app.document_routes"},
    "evals": {"app.measure_cli"},
    "ray": set[str](),
}
READ_BY_A_FRAMEWORK = {"type_annotation_map"}
MUTABLE_CALLS = {
    "list",
    "dict",
    "set",
    "bytearray",
    "defaultdict",
    "deque",
    "Counter",
    "OrderedDict",
    "ChainMap",
}


@dataclass(frozen=True)
class SourceFile:
    """A file of a package. imports: absolute dotted names, also those inside functions and TYPE_CHECKING
    blocks.
    """

    name: str
    tree: ast.Module
    imports: frozenset[str]

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.name.split(".")[0]


def imported(tree: ast.AST, name: str) -> Iterator[str]:
    """Names a file imports; `from a import b` gives a.b, because b may be a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: -node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def sources() -> dict[str, SourceFile]:
    """All files of the packages by dotted name; a package's `__init__` keeps that ending."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found[name] = SourceFile(name, tree, frozenset(imported(tree, name)))
    return found


def edges() -> dict[str, set[str]]:
    """Which file imports which."""
    files = sources()
    targets = {name.removesuffix(".__init__"): name for name in files}

    def resolve(imported_name: str) -> str | None:
        """The file behind `package.file.Class`, whatever it is that was imported of it."""
        while imported_name and imported_name not in targets:
            imported_name = imported_name.rpartition(".")[0]
        return targets.get(imported_name)

    return {
        name: {target for i in file.imports if (target := resolve(i)) is not None} - {name}
        for name, file in files.items()
    }


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """What runs on import: the file's own statements, also inside if, try, with and for."""
    queue: list[ast.AST] = list(tree.body)
    while queue:
        node = queue.pop(0)
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            queue.extend(
                child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.excepthandler)
            )


def test_the_packages_are_there() -> None:
    names = {file.package for file in sources().values()}
    assert {"app", "retrieval", "cache"} <= names


def test_packages_import_only_whom_they_may_know() -> None:
    wrong = [
        f"{file.name} imports {name}"
        for file in sources().values()
        for name in file.imports
        if name.split(".")[0] in {*PACKAGES, "tests"} - MAY_IMPORT[file.package]
    ]
    assert not wrong


def test_files_of_cache_import_lower_layers_only() -> None:
    level = {f"cache.{name}": i for i, name in enumerate(LAYERS_OF_CACHE)}
    files = {name for name in sources() if name.startswith("cache.") and name != "cache.__init__"}
    assert files == set(level), "LAYERS_OF_CACHE lists every file of cache/, lowest first"
    wrong = [
        f"{name} imports {target}"
        for name, targets in edges().items()
        if name in level
        for target in targets
        if target not in level or level[target] >= level[name]
    ]
    assert not wrong


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_imported_only_where_it_belongs(library: str) -> None:
    users = {
        file.name
        for file in sources().values()
        if file.package != library and any(name.split(".")[0] == library for name in file.imports)
    }
    assert users <= ONLY_IN[library]


def test_there_are_no_import_cycles() -> None:
    """Imports inside functions and TYPE_CHECKING blocks count."""
    graph, done = edges(), set[str]()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for target in sorted(graph[name]):
                walk(target, (*path, name))
            done.add(name)

    for name in graph:
        walk(name, ())


def is_mutable(value: ast.expr | None) -> bool:
    """Whether an expression makes a list, dict or set, or another container known to be mutable."""
    if isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    if not isinstance(value, ast.Call):
        return False
    function = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in MUTABLE_CALLS


def is_constant(name: str) -> bool:
    """Whether a name promises that its value stays as it is."""
    return name.isupper() or name.startswith("__") or name in READ_BY_A_FRAMEWORK


def test_there_is_no_mutable_state_outside_objects() -> None:
    """Containers at module level or in a class body are constants, in capitals; nothing is rebound with
    `global`.
    """
    wrong: list[str] = []
    for file in sources().values():
        bodies = [
            file.tree,
            *(ast.Module(c.body, []) for c in ast.walk(file.tree) if isinstance(c, ast.ClassDef)),
        ]
        for node in (node for body in bodies for node in statements(body)):
            if isinstance(node, ast.Assign):
                names, value = [ast.unparse(target) for target in node.targets], node.value
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                names, value = [ast.unparse(node.target)], node.value
            else:
                continue
            if is_mutable(value) and not all(is_constant(name) for name in names):
                wrong.append(f"{file.name}: {', '.join(names)}")
        wrong += [f"{file.name}: global" for node in ast.walk(file.tree) if isinstance(node, ast.Global)]
    assert not wrong


def test_constants_are_not_changed() -> None:
    """No capital name of a file is appended to, updated or assigned into anywhere."""
    changing = {
        "append",
        "extend",
        "insert",
        "add",
        "update",
        "setdefault",
        "pop",
        "popitem",
        "remove",
        "discard",
        "clear",
    }
    wrong: list[str] = []
    for file in sources().values():
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in changing:
                target: ast.expr = node.func.value
            elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                target = node.value
            else:
                continue
            if isinstance(target, ast.Name) and target.id.isupper() and len(target.id) > 1:
                wrong.append(f"{file.name}:{node.lineno}: {target.id}")
    assert not wrong


@pytest.mark.parametrize("package", ["app", "retrieval", "cache"])
def test_everything_public_has_a_docstring(package: str) -> None:
    """Files, classes and functions; methods too, unless a class of the package documents that method as an
    interface.
    """
    files = [file for file in sources().values() if file.package == package]
    classes = [(file, node) for file in files for node in file.tree.body if isinstance(node, ast.ClassDef)]
    interfaces = {method.name for _, node in classes for method in public(node) if ast.get_docstring(method)}
    missing = [file.name for file in files if ast.get_docstring(file.tree) is None]
    missing += [
        f"{file.name}.{node.name}" for file in files for node in public(file.tree) if not ast.get_docstring(node)
    ]
    missing += [
        f"{file.name}.{node.name}.{method.name}"
        for file, node in classes
        for method in public(node)
        if method.name not in interfaces
    ]
    assert not missing


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public(node: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    """Public definitions directly in a file or class; a private class has none."""
    if isinstance(node, ast.ClassDef) and node.name.startswith("_"):
        return
    for child in node.body:
        if isinstance(child, Definition) and not child.name.startswith("_") and not is_overload(child):
            yield child


def is_overload(node: Definition) -> bool:
    """Signatures for the type checker only."""
    return any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)


def test_there_is_no_dumping_ground() -> None:
    words = {"utils", "util", "helpers", "helper", "misc", "common"}
    assert [name for name in sources() if set(name.split(".")[-1].split("_")) & words] == []


def test_no_star_imports() -> None:
    wrong = [file.name for file in sources().values() if any(name.endswith(".*") for name in file.imports)]
    assert not wrong


def test_no_test_folder_shadows_a_package() -> None:
    assert [path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name in PACKAGES] == []
