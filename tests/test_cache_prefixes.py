"""The prefix tree against a naive model: a dict from every known path, token by token, to the row that holds
it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tiny import slots_of

from cache.memory.arena import Extent, ExtentAllocator, part_of, total_length
from cache.memory.prefix_tree import PathStep, PrefixNode, PrefixTree, step_key

CAPACITY = 400
MODULES = {"m1": (7, 7), "m2": (7, 8, 9), "m3": (5,)}

Atom = tuple[int, int | str]
"""(position id, token) of a computed token, (position id, key/length) of a placed module."""
Path = tuple[Atom, ...]


def atoms(step: PathStep) -> Iterator[Atom]:
    if step.key is not None:
        yield (step.start, f"{step.key}/{len(step.tokens)}")
    else:
        yield from enumerate(step.tokens, step.start)


def path_of(node: PrefixNode) -> Path:
    return tuple(atom for step in [n.step for n in node.path()][::-1] for atom in atoms(step))


def is_module(atom: Atom) -> bool:
    return isinstance(atom[1], str)


@st.composite
def prompts(draw: st.DrawFn) -> list[PathStep]:
    """Runs and modules one after another; two tokens only, so that beginnings are often shared."""
    steps: list[PathStep] = []
    at = 0
    for part in draw(
        st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5) | st.sampled_from([*MODULES]), max_size=5)
    ):
        tokens, key = (MODULES[part], step_key(part, 0)) if isinstance(part, str) else (tuple(part), None)
        steps.append(PathStep(start=at, tokens=tokens, key=key))
        at = steps[-1].start + len(tokens)
    return steps


@dataclass(eq=False)
class InFlight:
    """A request between its match and its insert, as the engine does it."""

    tenant: str
    node: PrefixNode
    prefix: Path
    rest: list[PathStep]
    own: list[Extent]


@dataclass
class Naive:
    rows: dict[Path, int | None] = field(default_factory=dict)

    def longest(self, path: Path) -> int:
        return next((n for n in range(len(path), 0, -1) if path[:n] in self.rows), 0)

    def has_children(self, path: Path) -> bool:
        return any(len(other) == len(path) + 1 and other[:-1] == path for other in self.rows)


def slots(extents: Iterable[Extent]) -> list[int]:
    """All slots of some extents, sorted; a slot given twice appears twice."""
    return sorted(slot for extent in extents for slot in range(extent.start, extent.end))


class PrefixMachine(RuleBasedStateMachine):
    """Requests of two tenants that overlap in time, evictions and forgetting."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = PrefixTree()
        self.allocator = ExtentAllocator(CAPACITY)
        self.naive = {"a": Naive(), "b": Naive()}
        self.in_flight: list[InFlight] = []

    def pins(self, tenant: str) -> list[Path]:
        """The prefixes of requests in flight, as far as they were not forgotten meanwhile."""
        nodes = [[*one.node.path()] for one in self.in_flight if one.tenant == tenant]
        return [next((path_of(node) for node in path if not node.is_detached), ()) for path in nodes]

    def is_pinned(self, tenant: str, path: Path) -> bool:
        return any(pin[: len(path)] == path for pin in self.pins(tenant))

    @rule(tenant=st.sampled_from(["a", "b"]), steps=prompts())
    def begin(self, tenant: str, steps: list[PathStep]) -> None:
        path = tuple(atom for step in steps for atom in atoms(step))
        known = self.naive[tenant].longest(path)
        node = self.tree.match(tenant, steps)
        assert path_of(node) == path[:known]
        rest: list[PathStep] = []
        matched = sum(len(n.step.tokens) for n in node.path())
        for step in steps:
            cut = min(matched, len(step.tokens))
            matched -= cut
            if cut < len(step.tokens):
                assert cut == 0 or step.key is None, "a module matched in part"
                rest.append(step.cut(cut, len(step.tokens)))
        length = sum(len(step.tokens) for step in rest if step.key is None)
        own = self.allocator.allocate_pieces(length, least=2)
        if own is None:
            return
        self.tree.pin(node)
        self.in_flight.append(InFlight(tenant, node, path[:known], rest, own))

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """All rows or, for a request that was cancelled, only the first of them."""
        request = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        computed = data.draw(st.integers(0, total_length(request.own)))
        naive, path, row = self.naive[request.tenant], request.prefix, 0
        steps: list[tuple[PathStep, list[Extent]]] = []
        surplus: list[int] = []
        waiting: list[PathStep] = []
        for step in request.rest:
            if step.key is not None:
                waiting.append(step)
                continue
            length = min(len(step.tokens), computed - row)
            if length <= 0:
                break
            steps += [(module, []) for module in waiting]
            waiting = []
            steps.append((step.cut(0, length), part_of(request.own, row, row + length)))
            row += length
        is_detached = request.node.is_detached
        for step, extents in steps:
            for i, atom in enumerate(atoms(step)):
                path = (*path, atom)
                if is_detached:
                    surplus += [] if is_module(atom) else [slots_of(extents)[i]]
                elif path not in naive.rows:
                    naive.rows[path] = None if is_module(atom) else slots_of(extents)[i]
                elif not is_module(atom):
                    surplus.append(slots_of(extents)[i])
        self.free(part_of(request.own, computed, total_length(request.own)))
        _, returned = self.tree.insert(request.node, steps, None)
        assert slots(returned) == sorted(surplus)
        self.free(returned)
        self.free(self.tree.unpin(request.node))

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        leaves = list(self.tree.leaves())
        if not leaves:
            return
        leaf = data.draw(st.sampled_from(leaves))
        tenant = next(t for t in self.naive if self.tree.root(t) is [n.parent for n in leaf.path()][-1])
        path, naive = path_of(leaf), self.naive[tenant]
        assert not self.is_pinned(tenant, path)
        assert not naive.has_children(path)
        rows = []
        for length in range(len(path), len(path) - len(list(atoms(leaf.step))), -1):
            row = naive.rows.pop(path[:length])
            rows += [] if row is None else [row]
            path_left = path[: length - 1]
        while path_left and is_module(path_left[-1]) and not naive.has_children(path_left):
            if self.is_pinned(tenant, path_left):
                break
            del naive.rows[path_left]
            path_left = path_left[:-1]
        extents = self.tree.evict(leaf)
        assert slots(extents) == sorted(rows)
        self.free(extents)

    @rule(tenant=st.sampled_from(["a", "b"]))
    def clear(self, tenant: str) -> None:
        """Everything of a tenant goes but what a request in flight stands behind."""
        rows: list[int] = []
        naive = self.naive[tenant]
        for path in sorted(naive.rows, key=len, reverse=True):
            if not self.is_pinned(tenant, path):
                row = naive.rows.pop(path)
                rows += [] if row is None else [row]
        before = {extent for n in self.tree.nodes() for extent in n.extents}
        freed = self.tree.clear(tenant)
        assert before >= set(freed)
        assert slots(freed) == sorted(rows)
        self.free(freed)

    @rule(modules=st.sets(st.sampled_from([*MODULES]), min_size=1))
    def forget(self, modules: set[str]) -> None:
        """Paths through modules go, with what is pinned; that is given back when the last one ends who reads it."""
        pins = {tenant: self.pins(tenant) for tenant in self.naive}
        freed = self.tree.forget(modules)
        placed = {f"{one}/0/{len(MODULES[one])}" for one in modules}
        rows: list[int] = []
        for tenant, naive in self.naive.items():
            for path in [path for path in naive.rows if any(token in placed for _, token in path)]:
                row = naive.rows.pop(path)
                is_read = any(pin[: len(path)] == path for pin in pins[tenant])
                rows += [] if row is None or is_read else [row]
        assert slots(freed) == sorted(rows)
        self.free(freed)

    def free(self, extents: Iterable[Extent]) -> None:
        for extent in extents:
            self.allocator.free(extent)

    @invariant()
    def every_row_is_where_the_model_says(self) -> None:
        seen = {tenant: dict[Path, int | None]() for tenant in self.naive}
        roots = {id(self.tree.root(tenant)): tenant for tenant in self.naive}
        for node in self.tree.nodes():
            top = [n.parent for n in node.path()][-1]
            tenant = roots[id(top)]
            path = path_of(node)
            before = len(path) - len(list(atoms(node.step)))
            assert total_length(node.extents) == (0 if node.step.key else len(node.step.tokens))
            assert node.parent is not None
            assert node.parent.children[node.step.edge] is node
            for i in range(before, len(path)):
                seen[tenant][path[: i + 1]] = None if node.step.key else slots_of(node.extents)[i - before]
            through = sum(pin[: len(path)] == path for pin in self.pins(tenant))
            assert node.refs == through, "references of a node are the requests whose path goes through it"
        assert seen == {tenant: naive.rows for tenant, naive in self.naive.items()}

    @invariant()
    def extents_tile(self) -> None:
        detached = {node for request in self.in_flight for node in request.node.path() if node.is_detached}
        used = [extent for node in (*self.tree.nodes(), *detached) for extent in node.extents]
        self.allocator.check_integrity([*used, *(extent for request in self.in_flight for extent in request.own)])
        self.tree.check_integrity()

    @invariant()
    def pinned_paths_stay(self) -> None:
        for request in self.in_flight:
            assert path_of(request.node) == request.prefix


PrefixMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestPrefixTree = PrefixMachine.TestCase


def run(start: int, *tokens: int) -> PathStep:
    return PathStep(start=start, tokens=tokens)


def module(start: int, key: str) -> PathStep:
    return PathStep(start=start, tokens=(7, 7), key=key)


def test_a_run_is_split_where_prompts_part_and_keeps_its_owner_and_pins():
    tree = PrefixTree()
    tree.insert(tree.root("t"), [(run(0, 1, 2, 3, 4), [Extent(10, 4)])], "alice")
    whole = tree.match("t", [run(0, 1, 2, 3, 4)])
    tree.pin(whole)
    upper = tree.match("t", [run(0, 1, 2, 9)])
    assert [(n.extents, n.owner, n.refs) for n in whole.path()] == [
        ((Extent(12, 2),), "alice", 1),
        ((Extent(10, 2),), "alice", 1),
    ]
    tree.pin(upper)
    assert [n.refs for n in whole.path()] == [1, 2]
    tree.unpin(whole)
    assert [n.refs for n in whole.path()] == [0, 1]
    tree.unpin(upper)
    with pytest.raises(AssertionError):
        tree.unpin(upper)


def test_the_same_tokens_elsewhere_or_from_a_module_are_another_path():
    tree = PrefixTree()
    tree.insert(
        tree.root("t"), [(run(0, 7, 7), [Extent(0, 2)]), (module(2, "k"), []), (run(4, 1), [Extent(2, 1)])], None
    )
    assert tree.match("t", [run(1, 7, 7)]) is tree.root("t")
    assert tree.match("t", [module(0, "k")]) is tree.root("t")
    assert tree.match("t", [run(0, 7, 7), run(2, 7, 7)]).extents == (Extent(0, 2),)
    assert tree.match("t", [run(0, 7, 7), module(2, "other")]).extents == (Extent(0, 2),)
    assert tree.match("t", [run(0, 7, 7), PathStep(start=2, tokens=(7,), key="k")]).extents == (Extent(0, 2),)
    assert tree.match("t", [run(0, 7, 7), module(2, "k"), run(4, 1)]).extents == (Extent(2, 1),)
    assert tree.match("u", [run(0, 7, 7)]).parent is None


def test_what_stands_before_a_forgotten_module_stays_pinned_until_its_reader_ends():
    tree = PrefixTree()
    tree.insert(
        tree.root("t"), [(run(0, 1, 2), [Extent(0, 2)]), (module(2, "k/0"), []), (run(4, 3), [Extent(2, 1)])], None
    )
    reader = tree.match("t", [run(0, 1, 2), module(2, "k/0")])
    tree.pin(reader)
    assert tree.forget({"k"}) == [Extent(2, 1)]
    (before,) = tree.nodes()
    assert (before.step, before.refs, tree.clear("t")) == (run(0, 1, 2), 1, [])
    assert tree.unpin(reader) == []
    assert tree.clear("t") == [Extent(0, 2)]


def test_the_tree_of_a_tenant_ends_with_its_last_node_and_comes_back():
    tree = PrefixTree()
    step = PathStep(start=0, tokens=(1, 2))
    waiting = tree.match("ann", [step])  # a request in flight keeps the root of a tree that is dropped meanwhile
    leaf, _ = tree.insert(tree.match("ann", [step]), [(step, [Extent(0, 2)])], None)
    assert tree.match("bob", [step]).parent is None
    tree.evict(leaf)
    assert tree._roots == {}
    again, surplus = tree.insert(waiting, [(step, [Extent(2, 2)])], None)
    assert tree.match("ann", [step]) is again
    assert surplus == []
    tree.insert(tree.match("eve", []), [], None)
    assert set(tree._roots) == {"ann"}
