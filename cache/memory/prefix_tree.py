"""Exact prefix reuse: a radix tree over everything the engine has computed, which can be split at any token.

A path from the root is the beginning of a prompt, such as the earlier turns of a conversation: placed modules (named
by key, they own no memory here) and runs of computed tokens (they own the extents of their KV). The rows of a run are
valid for every prompt that begins with the same path, because a computed token sees only what stands before it. After
the radix cache of SGLang (Zheng et al., 2024), with placed modules as edges of their own. What is removed hands its
extents back: at once, or when the last request in flight that reads them ends.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

from cache.memory.arena import Extent, part_of, total_length
from cache.memory.eviction import Marks

Edge = tuple[int, int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStep:
    """One piece of a path: `tokens` at position ids from `start`. key: names the module they come from, if any.
    sources: the modules whose text is among the tokens although they are computed here.
    """

    start: int
    tokens: tuple[int, ...]
    key: str | None = None
    sources: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def edge(self) -> Edge:
        """What a parent finds its child by."""
        return (self.start, self.tokens[0] if self.key is None else f"{self.key}/{len(self.tokens)}")

    def cut(self, first: int, last: int) -> "PathStep":
        """Tokens `first` .. `last`-1."""
        return replace(self, start=self.start + first, tokens=self.tokens[first:last])

    def comes_from(self, keys: Set[str]) -> bool:
        """Whether any of its text is of these modules."""
        return not self.sources.isdisjoint(keys) or (self.key is not None and module_of(self.key) in keys)


def step_key(module: str, row: int) -> str:
    """What names the rows of a module from `row` on in a path."""
    return f"{module}/{row}"


def module_of(step_key: str) -> str:
    """The module that a step's key names."""
    return step_key.rpartition("/")[0]


@dataclass(slots=True, eq=False)
class PrefixNode:
    """A step of a prompt that was computed. owner: the session that computed it; of a root, its tenant. refs: requests
    in flight whose path goes through the node. hits: requests that found it. marks: see `cache.memory.eviction`.
    is_detached: it is in no tree any more, requests in flight still read it.
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
        """Whether it may be evicted now: nothing goes on behind it, and no request needs it."""
        return self.parent is not None and not (self.children or self.refs or self.is_detached)

    def path(self) -> "Iterator[PrefixNode]":
        """This node and its ancestors, the root left out, innermost first."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


def common_length(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Length of the longest common beginning."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:  # far faster than the loop, and the usual case
        return shorter
    return next(i for i in range(shorter) if a[i] != b[i])


def ignore(_: PrefixNode) -> None:
    """Nobody evicts."""


class PrefixTree:
    """One tree per tenant; nothing is shared between tenants. A tree is kept while it holds anything: there may be as
    many tenants as visitors. evictable_slots: how many slots are not needed by requests in flight. on_leaf: called
    with every node that may be evicted from now on.
    """

    def __init__(self, on_leaf: Callable[[PrefixNode], None] = ignore) -> None:
        self.evictable_slots = 0
        self._on_leaf = on_leaf
        self._roots: dict[str, PrefixNode] = {}
        self._by_start: dict[int, PrefixNode] = {}  # of each extent
        self._by_end: dict[int, PrefixNode] = {}

    def root(self, tenant: str) -> PrefixNode:
        """The empty prefix of a tenant."""
        return self._roots.get(tenant) or PrefixNode(PathStep(start=0, tokens=()), None, owner=tenant)

    def match(self, tenant: str, steps: Sequence[PathStep]) -> PrefixNode:
        """The node at the end of the longest known prefix of `steps`, not pinned; a run that partly matches is cut."""
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
        """Append computed steps below `node`; the tree owns their extents from now on. Returns the last node of the
        path, and the extents that the caller frees: of tokens that another request computed meanwhile, or all of them
        if the node was detached.
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
        """Keep the path to `node` until it is unpinned."""
        for step in node.path():
            if not step.refs and not step.is_detached:
                self.evictable_slots -= total_length(step.extents)
            step.refs += 1

    def unpin(self, node: PrefixNode) -> list[Extent]:
        """Undo one `pin`. Returns the extents of what was removed meanwhile and nobody reads any more."""
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
        """Nodes that may be evicted now, of one tenant or of all."""
        return (node for node in self.nodes(tenant) if node.is_leaf)

    def leaf_beside(self, slot: int, *, before: bool) -> PrefixNode | None:
        """The leaf with an extent that ends right before a slot, or that begins with it."""
        node = (self._by_end if before else self._by_start).get(slot)
        return node if node is not None and node.is_leaf else None

    def nodes(self, tenant: str | None = None) -> Iterator[PrefixNode]:
        """All nodes of one tenant or of all, but the roots."""
        roots = self._roots.values() if tenant is None else [self.root(tenant)]
        for root in roots:
            for child in root.children.values():
                yield from subtree(child)

    def modules(self) -> frozenset[str]:
        """The modules that anything here was computed with, or with their text, whether they are in a tier or not."""
        placed = (module_of(node.step.key) for node in self.nodes() if node.step.key is not None)
        return frozenset(placed).union(*(node.step.sources for node in self.nodes()))

    def evict(self, leaf: PrefixNode) -> tuple[Extent, ...]:
        """Remove a leaf, and placed modules above it that nothing else needs; returns the leaf's extents."""
        assert leaf.is_leaf, leaf
        for node in [*leaf.path()]:
            if node is not leaf and (not node.is_leaf or node.step.key is None):
                break
            self._detach(node)
        return leaf.extents

    def clear(self, tenant: str) -> list[Extent]:
        """Remove what no request in flight needs, of one tenant."""
        freed: list[Extent] = []
        while leaves := list(self.leaves(tenant)):
            freed.extend(extent for leaf in leaves for extent in self.evict(leaf))
        return freed

    def forget(self, modules: Set[str]) -> list[Extent]:
        """Remove everything computed with modules or with their text: all paths through them, and what was computed in
        the same sessions, whose later turns may quote them. Placed modules have no words of a session: other sessions
        may go on behind them. Returns the extents that no request in flight reads.
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
        """Assert that the books of the tree agree with its nodes."""
        free = [node for node in self.nodes() if not node.refs]
        assert self.evictable_slots == sum(total_length(node.extents) for node in free), "evictable slots"
        extents = [(extent, node) for node in self.nodes() for extent in node.extents]
        assert self._by_start == {extent.start: node for extent, node in extents}
        assert self._by_end == {extent.end: node for extent, node in extents}

    def _attach(self, node: PrefixNode) -> None:
        """Enter a node without references below its parent."""
        assert node.parent is not None
        node.parent.children[node.step.edge] = node
        self._enter(node)
        self.evictable_slots += total_length(node.extents)

    def _enter(self, node: PrefixNode) -> None:
        for extent in node.extents:
            self._by_start[extent.start] = self._by_end[extent.end] = node

    def _detach(self, node: PrefixNode) -> None:
        """Take a node out of its tree."""
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
        """Drop the tree of this root if it holds nothing; `insert` puts it back for a request that still has it."""
        if node.parent is None and not node.children:
            assert node.owner is not None
            self._roots.pop(node.owner, None)

    def _child(self, node: PrefixNode, step: PathStep) -> PrefixNode | None:
        """The child that `step` begins with, cut where the two part; None if there is none."""
        child = node.children.get(step.edge)
        if child is None or step.key is not None:
            return child
        return self._split(child, common_length(child.step.tokens, step.tokens))

    def _split(self, node: PrefixNode, length: int) -> PrefixNode:
        """Let `node` keep the tokens from `length` on and return the new node that holds those before it."""
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
    """A node and all below it."""
    stack = [node]
    while stack:
        node = stack.pop()
        stack.extend(node.children.values())
        yield node
