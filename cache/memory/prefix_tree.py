"""Exact prefix reuse: a radix tree over everything the engine has computed, which can be split at any token.

A path from the root is the beginning of a prompt, such as the earlier turns of a conversation: placed modules (named
by key, they own no memory here) and runs of computed tokens (they own the extents of their KV). The rows of a run are
valid for every prompt that begins with the same path, because a computed token sees only what stands before it. After
the radix cache of SGLang (Zheng et al., 2024), with placed modules as edges of their own. Eviction hands extents back.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from cache.memory.allocator import NO_ROWS, Extent

Edge = tuple[int, int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStep:
    """One piece of a path: `tokens` at position ids from `start`; `key` names the module they come from, if any."""

    start: int
    tokens: tuple[int, ...]
    key: str | None = None

    @property
    def edge(self) -> Edge:
        """What a parent finds its child by."""
        return (self.start, self.tokens[0] if self.key is None else f"{self.key}/{len(self.tokens)}")

    def cut(self, first: int, last: int) -> "PathStep":
        """Tokens `first` .. `last`-1."""
        return PathStep(start=self.start + first, tokens=self.tokens[first:last], key=self.key)


@dataclass(slots=True, eq=False)
class PrefixNode:
    """A step of a prompt that was computed. owner: the session that computed it; of a root, its tenant. refs: requests
    in flight whose path goes through the node. hits: requests that found it. age: the store's clock at its last use.
    """

    step: PathStep
    parent: "PrefixNode | None"
    extent: Extent = NO_ROWS
    owner: str | None = None
    children: "dict[Edge, PrefixNode]" = field(default_factory=dict)
    refs: int = 0
    hits: int = 0
    age: float = 0.0

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


class PrefixTree:
    """One tree per tenant; nothing is shared between tenants. A tree is kept while it holds anything: there may be as
    many tenants as visitors.
    """

    def __init__(self) -> None:
        self._roots: dict[str, PrefixNode] = {}

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
        self, node: PrefixNode, steps: Iterable[tuple[PathStep, Extent]], owner: str | None
    ) -> tuple[PrefixNode, list[Extent]]:
        """Append computed steps below `node`; the tree owns their extents from now on. Returns the last node of the
        path, and the extents of tokens that another request computed meanwhile: the caller frees those.
        """
        surplus: list[Extent] = []
        top = node
        if node.parent is None:
            assert node.owner is not None
            node = top = self._roots.setdefault(node.owner, node)
        for step, extent in steps:
            while step.tokens:
                child = self._child(node, step)
                if child is None:
                    child = node.children[step.edge] = PrefixNode(step, node, extent, owner)
                elif step.key is None:
                    surplus.append(extent.part(0, len(child.step.tokens)))
                node, common = child, len(child.step.tokens)
                step = step.cut(common, len(step.tokens))
                extent = extent if step.key is not None else extent.part(common, extent.length)
        self._drop_if_empty(top)
        return node, surplus

    def pin(self, node: PrefixNode) -> None:
        """Keep the path to `node` until it is unpinned."""
        for step in node.path():
            step.refs += 1

    def unpin(self, node: PrefixNode) -> None:
        """Undo one `pin`."""
        for step in node.path():
            assert step.refs > 0, step
            step.refs -= 1

    def leaves(self, tenant: str | None = None) -> Iterator[PrefixNode]:
        """Nodes that may be evicted now: those without children and without references; of one tenant or of all."""
        return (node for node in self.nodes(tenant) if not node.children and not node.refs)

    def nodes(self, tenant: str | None = None) -> Iterator[PrefixNode]:
        """All nodes of one tenant or of all, but the roots."""
        roots = self._roots.values() if tenant is None else [self.root(tenant)]
        stack = [child for root in roots for child in root.children.values()][::-1]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def evict(self, leaf: PrefixNode) -> Extent:
        """Remove a leaf, and placed modules above it that nothing else needs; returns the leaf's extent."""
        assert not leaf.children, leaf
        assert not leaf.refs, leaf
        for node in leaf.path():
            if node is not leaf and (node.children or node.refs or node.step.key is None):
                break
            assert node.parent is not None
            del node.parent.children[node.step.edge]
            self._drop_if_empty(node.parent)
        return leaf.extent

    def clear(self, tenant: str | None = None) -> list[Extent]:
        """Remove what no request in flight needs, of one tenant or of all."""
        freed: list[Extent] = []
        while leaves := list(self.leaves(tenant)):
            freed.extend(self.evict(leaf) for leaf in leaves)
        return freed

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
        upper = replace(
            node, step=node.step.cut(0, length), parent=parent, extent=node.extent.part(0, length), children={}
        )
        parent.children[upper.step.edge] = upper
        node.step = node.step.cut(length, len(node.step.tokens))
        node.extent = node.extent.part(length, node.extent.length)
        node.parent = upper
        upper.children[node.step.edge] = node
        return upper
