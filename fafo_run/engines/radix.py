"""A radix tree of token ids: which beginnings of prompts a server would still hold. It holds no tensors.

It is the honest half of the fake engine: what it says is cached was really seen before, page by page, and
not evicted since.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from attrs import define, field

from fafo_run.item import Ids


@define(eq=False)
class _Node:
    """An edge of the tree and what hangs below it."""

    ids: Ids
    """The ids of this edge: one or more whole pages."""
    parent: _Node | None
    children: dict[Ids, _Node] = field(factory=dict)
    """By the first page of their edge."""


class RadixCache:
    """Remembers sequences of ids in whole pages, and forgets the least recently used beyond `capacity`."""

    def __init__(self, *, page_size: int = 1, capacity: int | None = None) -> None:
        """`capacity` is in tokens; None means without bound. Raises `ValueError` for a page below 1."""
        if page_size < 1:
            raise ValueError(f"page_size is {page_size}, a page holds at least one token")
        self._page = page_size
        self._capacity = capacity
        self._root = _Node((), None)
        # Oldest first. A use touches a node before its parent, so the oldest node is always a leaf.
        self._order: OrderedDict[_Node, None] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """How many tokens it holds."""
        return self._size

    def match(self, ids: Ids) -> int:
        """Return how many of the first tokens of `ids` are held: whole pages. Counts as a use of them."""
        node, held, inside, further = self._walk(ids)
        self._touch(inside or node)
        return held + further

    def insert(self, ids: Ids) -> None:
        """Hold the whole pages of `ids` from now on."""
        ids = ids[: len(ids) // self._page * self._page]
        node, held, inside, further = self._walk(ids)
        if inside is not None:
            node = self._split(node, inside, further)
            held += further
        if held < len(ids):
            leaf = _Node(ids[held:], node)
            node.children[leaf.ids[: self._page]] = leaf
            self._size += len(leaf.ids)
            node = leaf
        self._touch(node)
        while self._capacity is not None and self._size > self._capacity:
            self._evict()

    def clear(self) -> None:
        """Forget everything."""
        self._root.children.clear()
        self._order.clear()
        self._size = 0

    def check_integrity(self) -> None:
        """Raise `RuntimeError` if the tree contradicts itself; for tests."""
        nodes = list(self._nodes())
        if sum(len(node.ids) for node in nodes) != self._size:
            raise RuntimeError("size isn't the sum of the edges")
        if set(nodes) != set(self._order):
            raise RuntimeError("the order of use doesn't list exactly the nodes of the tree")
        if self._capacity is not None and self._size > self._capacity:
            raise RuntimeError("more tokens than the capacity")
        rank = {node: place for place, node in enumerate(self._order)}
        for node in nodes:
            if not node.ids or len(node.ids) % self._page:
                raise RuntimeError("an edge isn't whole pages")
            if node.parent is None or node.parent.children.get(node.ids[: self._page]) is not node:
                raise RuntimeError("a node isn't where its first page says")
            if node.parent is not self._root and rank[node.parent] < rank[node]:
                raise RuntimeError("a node was used later than its parent")

    def _walk(self, ids: Ids) -> tuple[_Node, int, _Node | None, int]:
        """Return the deepest node that `ids` covers whole, and how many ids lead to it; then the child that
        `ids` leaves half-way, if any, and how many ids of its edge they share."""
        node, held = self._root, 0
        while child := node.children.get(ids[held : held + self._page]):
            edge = len(child.ids)
            if ids[held : held + edge] == child.ids:
                node, held = child, held + edge
                continue
            common = self._page
            while ids[held + common : held + common + self._page] == child.ids[common : common + self._page]:
                common += self._page
            return node, held, child, common
        return node, held, None, 0

    def _split(self, parent: _Node, node: _Node, length: int) -> _Node:
        """Put a new node with the first `length` ids of `node` between it and `parent`, and return it."""
        upper = _Node(node.ids[:length], parent)
        parent.children[upper.ids[: self._page]] = upper
        node.ids, node.parent = node.ids[length:], upper
        upper.children[node.ids[: self._page]] = node
        return upper

    def _touch(self, node: _Node | None) -> None:
        """Make the path from `node` to the root the most recently used."""
        while node is not None and node is not self._root:
            self._order[node] = None
            self._order.move_to_end(node)
            node = node.parent

    def _evict(self) -> None:
        leaf, _ = self._order.popitem(last=False)
        if leaf.parent is not None:
            del leaf.parent.children[leaf.ids[: self._page]]
        self._size -= len(leaf.ids)

    def _nodes(self) -> Iterator[_Node]:
        pending = list(self._root.children.values())
        while pending:
            node = pending.pop()
            pending.extend(node.children.values())
            yield node
