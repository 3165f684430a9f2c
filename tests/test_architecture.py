"""The house rules, read from the imports: who may know whom, and what no file may do."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("app", "retrieval", "cache", "evals", "durable")
ROOMS = {
    "app.cli": "evals app.web app.training app.pml app.desk app.access app.storage app.domain cache retrieval",
    "evals.gpu": "evals.load evals.speed evals.peers evals.report app.domain cache",
    "evals.load": "evals.speed evals.peers evals.report evals.json_lines app.domain cache",
    "evals.speed": "evals.peers evals.report app.pml app.domain cache",
    "evals.peers": "app.domain cache",
    "evals.answers": "evals.report evals.json_lines app.training app.desk app.answering app.knowledge app.storage "
    "app.domain cache retrieval",
    "evals.report": "app.domain",
    "evals.json_lines": "app.domain",
    "app.web": "app.api app.desk app.support app.access app.storage app.domain retrieval.loaders retrieval.text",
    "app.api": "app.desk app.access app.domain",
    "app.access": "app.storage app.domain",
    "app.training": "app.desk app.knowledge app.storage app.domain cache retrieval.ranking retrieval.text",
    "app.pml": "app.desk app.knowledge app.storage app.domain cache",
    "app.desk": "app.support app.answering app.knowledge app.replies app.privacy app.storage app.domain cache "
    "retrieval",
    "app.support": "app.knowledge app.replies app.privacy app.storage app.domain retrieval.search retrieval.text",
    "app.answering": "app.knowledge app.replies app.privacy app.grounding app.storage app.domain cache "
    "retrieval.documents retrieval.statements retrieval.text",
    "app.knowledge": "app.storage app.domain cache retrieval",
    "app.replies": "app.domain retrieval.text",
    "app.privacy": "",
    "app.grounding": "retrieval.statements retrieval.text",
    "app.storage": "app.domain retrieval.search durable",
    "app.domain": "cache.engine cache.prompt",
    "cache.analysis": "cache.engine cache.pml cache.model cache.attention cache.memory cache.prompt",
    "cache.planning": "cache.routing cache.engine cache.decoding cache.model cache.memory cache.prompt",
    "cache.remote": "cache.serving cache.engine cache.decoding cache.model cache.memory cache.prompt",
    "cache.cluster": "cache.routing cache.serving cache.engine cache.decoding cache.model cache.memory cache.prompt",
    "cache.routing": "",
    "cache.serving": "cache.engine cache.decoding cache.model cache.native cache.memory cache.prompt",
    "cache.training": "cache.model cache.attention durable",
    "cache.engine": "cache.decoding cache.model cache.attention cache.memory cache.prompt",
    "cache.decoding": "cache.prompt",
    "cache.model": "cache.native cache.gpu cache.attention cache.memory cache.prompt durable",
    "cache.native": "cache.attention cache.memory durable",
    "cache.gpu": "cache.attention cache.memory",
    "cache.attention": "cache.memory",
    "cache.memory": "cache.prompt",
    "cache.programs": "cache.pml cache.prompt",
    "cache.pml": "cache.prompt",
    "cache.prompt": "",
    "cache.errors": "",
    "retrieval.answerability": "retrieval.ranking retrieval.search retrieval.statements retrieval.text",
    "retrieval.ranking": "retrieval.search retrieval.statements retrieval.text durable",
    "retrieval.search": "retrieval.documents retrieval.text durable",
    "retrieval.statements": "retrieval.text",
    "retrieval.reading": "retrieval.loaders retrieval.documents retrieval.text",
    "retrieval.loaders": "retrieval.documents retrieval.text",
    "retrieval.documents": "",
    "retrieval.errors": "retrieval.text",
    "retrieval.text": "",
    "durable": "",
}
"""The whole architecture: a room, and what it may import besides its own files and its package's errors. A package's
name stands for all of its rooms. Rooms are listed from the top down, and none may import one above it.
"""
LARGEST_ROOM = 0.25
"""No room holds more than this share of its package, neither of its lines nor of its files."""

ONLY_IN = {
    "transformers": {
        "cache.model.loading",
        "cache.model.language_model",
        "cache.training.examples",
        "evals.gpu.child",
        "evals.gpu.sizes",
        "evals.speed.models",
        "evals.peers.transformers_peer",
        "retrieval.ranking.encoder",
    },
    "triton": {"cache.gpu.triton_kernels"},
    "torchao": {"cache.model.loading"},
    "peft": {"cache.model.loading", "cache.training.trainer"},
    "faiss": {"retrieval.search.vector_index"},
    "pdfplumber": {"retrieval.pdf.blocks"},
    "pdfminer": {"retrieval.pdf.blocks"},
    "mammoth": {"retrieval.loaders.load"},
    "pptx": {"retrieval.loaders.load"},
    "python_calamine": {"retrieval.loaders.records"},
    "docutils": {"retrieval.loaders.load"},
    "py3langid": {"retrieval.text.terms"},
    "sentencex": {"retrieval.text.sentences"},
    "Stemmer": {"retrieval.text.terms"},
    "sentence_transformers": {"retrieval.search.sentence_embedder", "retrieval.search.reranker"},
    "babel": {"app.web.rendering"},
    "alembic": {"app.storage.migrate"},
    "sqlalchemy": {
        "app.storage.people",
        *(
            *(f"app.storage.tables.{name}" for name in ("base", "conversations", "documents", "people")),
            "app.storage.database",
            "app.storage.sqlite",
            "app.storage.postgres",
            "app.storage.desks",
            "app.storage.passage_rows",
            "app.storage.migrate",
            "app.storage.library",
            "app.storage.history",
            "app.storage.conversation_care",
            "app.storage.faq",
            "app.storage.conversation_care",
        ),
        *("app.storage.passage_rows", "app.storage.people", "app.storage.people", "app.storage.statistics"),
        *("app.storage.statistics", "app.storage.forgotten", "app.storage.people"),
        *("app.storage.handoffs", "app.storage.handoffs", "app.storage.statistics", "app.storage.document_change"),
        "app.storage.faq",
    },
    "prometheus_client": {"app.api.metrics"},
    "tomlkit": {"app.storage.files"},
    "gradio": {f"app.web.{name}" for name in ("chat_page", "dashboard", "server", "event_gate")},
    "fastapi": {
        "app.web.accounts",
        "app.web.admin_pages",
        "app.web.settings_routes",
        *(
            "app.web.document_routes",
            "app.web.document_routes",
            "app.web.server",
            "app.web.document_routes",
            "app.web.accounts",
            "app.web.document_routes",
        ),
        "app.web.widget_routes",
        *("app.web.serve", "app.web.document_routes", "app.web.middleware", "app.web.admin_pages"),
        *("app.api.chat", "app.api.routes", "app.api.routes", "app.api.routes", "app.api.metrics"),
        *("app.api.wire", "app.api.routes", "app.web.chat_routes", "app.web.quality_routes", "app.api.routes"),
        *("app.web.quality_routes", "app.web.chat_routes"),
    },
    "opening_hours": {"app.domain.setting_values"},
    "jwt": {"app.access.identity"},
    "phonenumbers": {"app.privacy.redaction"},
    "stdnum": {"app.privacy.redaction"},
    "evals": {"app.cli.bench", "app.cli.measure"},
    "xllamacpp": {"evals.peers.llama_cpp_server"},
    "msgspec": {
        *(f"cache.serving.{name}" for name in ("spec", "values", "messages", "engine_process", "engine_server")),
        *(f"cache.cluster.{name}" for name in ("deployment", "frames", "replica")),
        "app.desk.parts",
    },
    "fsspec": {"cache.memory.shared"},
    "ray": {
        *(f"cache.cluster.{name}" for name in ("cluster_engine", "connecting", "deployment", "room", "router")),
    },
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
    num_lines: int

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
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
            found[name] = SourceFile(name, tree, frozenset(imported(tree, name)), len(text.splitlines()))
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


def room_of(name: str) -> str:
    """The room of a file: the folder it is in; a file of a package's own folder is a room."""
    return ".".join(name.removesuffix(".__init__").split(".")[:2])


def test_the_table_lists_every_room_and_points_downwards() -> None:
    rooms = {room_of(name) for name in sources()} - set(PACKAGES)
    assert rooms == set(ROOMS)
    order = list(ROOMS)
    wrong = [
        f"{room} is above {allowed}"
        for room in order
        for target in ROOMS[room].split()
        for allowed in order
        if (allowed == target or allowed.startswith(f"{target}.")) and order.index(allowed) <= order.index(room)
    ]
    assert not wrong


def test_files_import_only_rooms_their_room_may_import() -> None:
    def may_import(name: str, target: str) -> bool:
        room, other = room_of(name), room_of(target)
        allowed = {room, f"{room.split('.')[0]}.errors", *ROOMS.get(room, "").split()}
        return other in allowed or other.split(".")[0] in allowed

    wrong = [
        f"{name} imports {target}"
        for name, targets in edges().items()
        for target in targets
        if not may_import(name, target)
    ]
    assert not wrong


@pytest.mark.parametrize("package", ["app", "cache", "retrieval"])
def test_no_room_is_a_hall(package: str) -> None:
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for name, file in sources().items():
        if file.package == package and not name.endswith("__init__"):
            files[room_of(name)] += 1
            lines[room_of(name)] += file.num_lines
    for counts in (files, lines):
        whole = counts.total()
        assert {room: n for room, n in counts.items() if n > LARGEST_ROOM * whole} == {}


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_imported_only_where_it_belongs(library: str) -> None:
    users = {
        file.name
        for file in sources().values()
        if file.package != library and any(name.split(".")[0] == library for name in file.imports)
    }
    assert users <= ONLY_IN[library]


def test_addresses_are_counted_under_the_name_that_one_function_gives() -> None:
    """A host has 2^64 addresses of IPv6: where one is counted as it is, there is no limit."""
    users = set[str]()
    for name, file in sources().items():
        hosts = (node.value for node in ast.walk(file.tree) if isinstance(node, ast.Attribute) and node.attr == "host")
        if any(isinstance(of, ast.Attribute) and of.attr == "client" for of in hosts):
            users.add(name)
    assert users == {"app.access.addresses", "app.api.metrics"}  # which asks whether it is this machine


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


def test_a_class_has_a_name_of_its_own() -> None:
    homes: dict[str, list[str]] = {}
    for file in sources().values():
        for node in file.tree.body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(file.name)
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_there_is_no_dumping_ground() -> None:
    words = {"utils", "util", "helpers", "helper", "misc", "common"}
    assert [name for name in sources() if set(name.split(".")[-1].split("_")) & words] == []


def test_no_star_imports() -> None:
    wrong = [file.name for file in sources().values() if any(name.endswith(".*") for name in file.imports)]
    assert not wrong


def test_no_test_folder_shadows_a_package() -> None:
    assert [path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name in PACKAGES] == []


def test_the_page_of_architecture_has_the_same_rooms() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| .+ \| (.*) \|$", page, re.MULTILINE)
    assert dict(rows) == ROOMS
    assert [room for room, _ in rows] == list(ROOMS)
