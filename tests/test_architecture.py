"""The house rules, read from the imports: who may know whom, and what no file may do."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("app", "retrieval", "cache", "evals", "durable")
ROOMS = {
    "app.cli": "evals app.web app.training app.pml app.desk app.support app.access app.lookups app.storage app.domain "
    "cache retrieval",
    "evals.gpu": "evals.speed evals.peers evals.report app.domain cache",
    "evals.speed": "evals.peers evals.report app.pml app.domain cache retrieval",
    "evals.peers": "app.domain cache durable",
    "evals.answers": "evals.report app.training app.desk app.answering app.lookups app.knowledge app.storage "
    "app.domain cache retrieval",
    "evals.report": "app.domain",
    "app.web": "app.api app.desk app.support app.access app.storage app.domain retrieval.documents retrieval.loaders "
    "retrieval.text",
    "app.api": "app.desk app.access app.domain",
    "app.access": "app.storage app.domain",
    "app.training": "app.desk app.knowledge app.storage app.domain cache retrieval.ranking retrieval.text",
    "app.pml": "app.desk app.knowledge app.storage app.domain cache",
    "app.desk": "app.support app.answering app.lookups app.knowledge app.replies app.privacy app.storage app.domain "
    "cache retrieval",
    "app.support": "app.knowledge app.replies app.privacy app.storage app.domain retrieval.search retrieval.text",
    "app.answering": "app.knowledge app.replies app.privacy app.grounding app.storage app.domain cache "
    "retrieval.answerability retrieval.documents retrieval.statements retrieval.text",
    "app.lookups": "app.websites app.replies app.privacy app.storage app.domain retrieval.text",
    "app.knowledge": "app.websites app.storage app.domain cache durable retrieval",
    "app.websites": "app.domain retrieval",
    "app.replies": "app.domain retrieval.text",
    "app.privacy": "",
    "app.grounding": "retrieval.text",
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


def imported(tree: ast.AST, name: str) -> Iterator[str]:
    """Absolute names, also of imports in functions; `from a import b` gives a.b, because b may be a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: -node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def sources() -> dict[str, ast.Module]:
    """All files of the packages by dotted name; a package's `__init__` keeps that ending."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text("utf-8")) for path in paths
    }


@cache
def edges() -> dict[str, set[str]]:
    files = sources()
    targets = {name.removesuffix(".__init__"): name for name in files}

    def resolve(imported_name: str) -> str | None:
        """The file behind `package.file.Class`, whatever it is that was imported of it."""
        while imported_name and imported_name not in targets:
            imported_name = imported_name.rpartition(".")[0]
        return targets.get(imported_name)

    return {
        name: {target for i in imported(tree, name) if (target := resolve(i)) is not None} - {name}
        for name, tree in files.items()
    }


def room_of(name: str) -> str:
    """The room of a file: the folder or file in its package; a package of one file is a room."""
    parts = name.removesuffix(".__init__").split(".")
    return ".".join(parts[:2])


def test_the_table_lists_every_room_and_points_downwards():
    rooms = {room_of(name) for name in sources()} - set(PACKAGES[:4])
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


def test_files_import_only_rooms_their_room_may_import():
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


def test_there_are_no_import_cycles():
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


def test_the_page_of_architecture_has_the_same_rooms():
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| .+ \| (.*) \|$", page, re.MULTILINE)
    assert dict(rows) == ROOMS
    assert [room for room, _ in rows] == list(ROOMS)


def test_addresses_are_counted_under_the_name_that_one_function_gives():
    """A host has 2^64 addresses of IPv6: where one is counted as it is, there is no limit."""
    users = set[str]()
    for name, tree in sources().items():
        hosts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "host")
        if any(isinstance(of, ast.Attribute) and of.attr == "client" for of in hosts):
            users.add(name)
    assert users == {"app.access.limits", "app.api.metrics"}  # which asks whether it is this machine
