"""Exact prefix reuse: a radix tree of all computed prompts, with splits at any token.

A path from the root is a prefix of a prompt: placed modules (named by key, without memory here) and runs of computed
tokens (with the extents of their KV). The rows of a run are valid for every prompt with the same path, because a token
sees only what is before it. After the radix cache of SGLang (Zheng et al., 2024), with placed modules as additional
edges.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

from cache.memory.arena import Extent, part_of, total_length
from cache.memory.eviction import Marks

Edge = tuple[int, int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStep:
    """One piece of a path: `tokens` at position ids from `start`. key: names the module that supplies them, if any.
    sources: modules whose text is among the computed tokens.
    """

    start: int
    tokens: tuple[int, ...]
    key: str | None = None
    sources: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def edge(self) -> Edge:
        return (self.start, self.tokens[0] if self.key is None else f"{self.key}/{len(self.tokens)}")

    def cut(self, first: int, last: int) -> "PathStep":
        return replace(self, start=self.start + first, tokens=self.tokens[first:last])

    def comes_from(self, keys: Set[str]) -> bool:
        return not self.sources.isdisjoint(keys) or (self.key is not None and module_of(self.key) in keys)


def step_key(module: str, row: int) -> str:
    return f"{module}/{row}"


def module_of(step_key: str) -> str:
    return step_key.rpartition("/")[0]


@dataclass(slots=True, eq=False)
class PrefixNode:
    """A computed step of a prompt. owner: the session that computed it; for a root, its tenant. refs: requests in
    flight whose path includes the node. hits: requests that found it. marks: see `eviction`. is_detached: it is in no
    tree, and only requests in flight read it.
    """

    step: PathStep
    parent: "PrefixNode | None"
    extents: tuple[Extent, ...] = ()
    owner: str | None = None
    children: "dict[Edge, PrefixNode]" = field(default_factory=dict)
    refs: int = 0
    hits: int = 0
    marks: Marks | None = None
    is_detached: bool = False

    @property
    def is_leaf(self) -> bool:
        """Return whether it may be evicted now: it has no children and no request needs it."""
        return self.parent is not None and not (self.children or self.refs or self.is_detached)

    def path(self) -> "Iterator[PrefixNode]":
        """Return this node and its ancestors without the root, innermost first."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


def common_length(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:  # far faster than the loop, and the usual case
        return shorter
    return next(i for i in range(shorter) if a[i] != b[i])


class PrefixTree:
    """One tree per tenant; tenants share nothing. An empty tree is dropped, because every visitor is a tenant.
    evictable_slots: slots that no request in flight needs. on_leaf: called with each node that becomes evictable.
    """

    def __init__(self, on_leaf: Callable[[PrefixNode], None] = lambda _: None) -> None:
        self.evictable_slots = 0
        self._on_leaf = on_leaf
        self._roots: dict[str, PrefixNode] = {}
        self._by_start: dict[int, PrefixNode] = {}  # of each extent
        self._by_end: dict[int, PrefixNode] = {}

    def root(self, tenant: str) -> PrefixNode:
        return self._roots.get(tenant) or PrefixNode(PathStep(start=0, tokens=()), None, owner=tenant)

    def match(self, tenant: str, steps: Sequence[PathStep]) -> PrefixNode:
        """Return the last node of the longest known prefix of `steps`, not pinned. A partly matching run is split."""
        node = self.root(tenant)
        for step in steps:
            while step.tokens:
                child = self._child(node, step)
                if child is None:
                    return node
                node = child
                step = step.cut(len(node.step.tokens), len(step.tokens))
        return node

    def insert(
        self, node: PrefixNode, steps: Iterable[tuple[PathStep, Sequence[Extent]]], owner: str | None
    ) -> tuple[PrefixNode, list[Extent]]:
        """Append computed steps below `node`; the tree owns their extents. Returns the last node, and extents for the
        caller to free: extents of tokens that another request has computed first, or all for a detached node.
        """
        surplus: list[Extent] = []
        if node.is_detached:
            return node, [extent for _, extents in steps for extent in extents]
        top = node
        if node.parent is None:
            assert node.owner is not None
            node = top = self._roots.setdefault(node.owner, node)
        for step, extents in steps:
            while step.tokens:
                child = self._child(node, step)
                if child is None:
                    child = PrefixNode(step, node, tuple(extents), owner)
                    self._attach(child)
                else:
                    child.step = replace(child.step, sources=child.step.sources | step.sources)
                    surplus.extend(part_of(extents, 0, len(child.step.tokens)) if step.key is None else ())
                node, common = child, len(child.step.tokens)
                step = step.cut(common, len(step.tokens))
                extents = extents if step.key is not None else part_of(extents, common, total_length(extents))
        self._drop_if_empty(top)
        self._announce(node)
        return node, surplus

    def pin(self, node: PrefixNode) -> None:
        for step in node.path():
            if not step.refs and not step.is_detached:
                self.evictable_slots -= total_length(step.extents)
            step.refs += 1

    def unpin(self, node: PrefixNode) -> list[Extent]:
        freed: list[Extent] = []
        for step in node.path():
            assert step.refs > 0, step
            step.refs -= 1
            if not step.refs and step.is_detached:
                freed.extend(step.extents)
            elif not step.refs:
                self.evictable_slots += total_length(step.extents)
        if left := next((step for step in node.path() if not step.is_detached), None):
            self._announce(left)
        return freed

    def leaves(self, tenant: str | None = None) -> Iterator[PrefixNode]:
        return (node for node in self.nodes(tenant) if node.is_leaf)

    def leaf_beside(self, slot: int, *, before: bool) -> PrefixNode | None:
        node = (self._by_end if before else self._by_start).get(slot)
        return node if node is not None and node.is_leaf else None

    def nodes(self, tenant: str | None = None) -> Iterator[PrefixNode]:
        roots = self._roots.values() if tenant is None else [self.root(tenant)]
        for root in roots:
            for child in root.children.values():
                yield from subtree(child)

    def modules(self) -> frozenset[str]:
        placed = (module_of(node.step.key) for node in self.nodes() if node.step.key is not None)
        return frozenset(placed).union(*(node.step.sources for node in self.nodes()))

    def evict(self, leaf: PrefixNode) -> tuple[Extent, ...]:
        """Remove a leaf, and placed modules above it without other children. Returns the leaf's extents."""
        assert leaf.is_leaf, leaf
        for node in [*leaf.path()]:
            if node is not leaf and (not node.is_leaf or node.step.key is None):
                break
            self._detach(node)
        return leaf.extents

    def clear(self, tenant: str) -> list[Extent]:
        freed: list[Extent] = []
        while leaves := list(self.leaves(tenant)):
            freed.extend(extent for leaf in leaves for extent in self.evict(leaf))
        return freed

    def forget(self, modules: Set[str]) -> list[Extent]:
        """Remove everything computed with modules or with their text: all paths through them, and everything computed
        in the same sessions, whose later turns may quote them. Prefixes of other sessions stay up to these modules.
        Returns the extents that no request in flight reads.
        """
        touched = [node for node in self.nodes() if node.step.comes_from(modules)]
        below = [node for top in touched for node in subtree(top)]
        sessions = {node.owner for node in below if node.owner is not None}
        tops = [*touched, *(node for node in self.nodes() if node.step.key is None and node.owner in sessions)]
        freed: list[Extent] = []
        for node in [node for top in tops for node in subtree(top)]:
            if not node.is_detached:
                freed.extend(() if node.refs else node.extents)
                self._detach(node)
        return freed

    def check_integrity(self) -> None:
        free = [node for node in self.nodes() if not node.refs]
        assert self.evictable_slots == sum(total_length(node.extents) for node in free), "evictable slots"
        extents = [(extent, node) for node in self.nodes() for extent in node.extents]
        assert self._by_start == {extent.start: node for extent, node in extents}
        assert self._by_end == {extent.end: node for extent, node in extents}

    def _attach(self, node: PrefixNode) -> None:
        assert node.parent is not None
        node.parent.children[node.step.edge] = node
        self._enter(node)
        self.evictable_slots += total_length(node.extents)

    def _enter(self, node: PrefixNode) -> None:
        for extent in node.extents:
            self._by_start[extent.start] = self._by_end[extent.end] = node

    def _detach(self, node: PrefixNode) -> None:
        assert node.parent is not None
        node.is_detached = True
        for extent in node.extents:
            del self._by_start[extent.start], self._by_end[extent.end]
        if not node.refs:
            self.evictable_slots -= total_length(node.extents)
        del node.parent.children[node.step.edge]
        self._drop_if_empty(node.parent)
        self._announce(node.parent)

    def _announce(self, node: PrefixNode) -> None:
        if node.is_leaf:
            self._on_leaf(node)

    def _drop_if_empty(self, node: PrefixNode) -> None:
        """Drop an empty tree; `insert` restores it for a request that still has its root."""
        if node.parent is None and not node.children:
            assert node.owner is not None
            self._roots.pop(node.owner, None)

    def _child(self, node: PrefixNode, step: PathStep) -> PrefixNode | None:
        """Return the child that `step` starts with, split where the two differ; None if there is none."""
        child = node.children.get(step.edge)
        if child is None or step.key is not None:
            return child
        return self._split(child, common_length(child.step.tokens, step.tokens))

    def _split(self, node: PrefixNode, length: int) -> PrefixNode:
        """Split a node. `node` keeps the tokens from `length` on; the new node, with the tokens before, is returned."""
        if length == len(node.step.tokens):
            return node
        parent = node.parent
        assert parent is not None
        step, extents = node.step, node.extents
        before, behind = part_of(extents, 0, length), part_of(extents, length, total_length(extents))
        upper = replace(node, step=step.cut(0, length), extents=tuple(before), children={})
        parent.children[upper.step.edge] = upper
        node.step, node.extents, node.parent = step.cut(length, len(step.tokens)), tuple(behind), upper
        upper.children[node.step.edge] = node
        self._enter(upper)
        self._enter(node)
        return upper


def subtree(node: PrefixNode) -> Iterator[PrefixNode]:
    stack = [node]
    while stack:
        node = stack.pop()
        stack.extend(node.children.values())
        yield node
