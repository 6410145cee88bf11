"""A radix tree of token ids: which beginnings of prompts a server would still hold. It holds no tensors.

It is the honest half of the fake engine, and of the simulation of a server: what it says is cached was really
seen before, page by page, and not evicted since.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from attrs import define, field, frozen

from fafo_run.item import Ids


@define(eq=False)
class _Node:
    """An edge of the tree and what hangs below it."""

    ids: Ids
    """The ids of this edge: one or more whole pages."""
    parent: _Node | None
    children: dict[Ids, _Node] = field(factory=dict)
    """By the first page of their edge."""
    holds: int = 0
    """How many holds keep it; a parent has at least as many as each of its children."""


@frozen(eq=False)
class Hold:
    """What `RadixCache.hold` keeps: a path from the root down."""

    node: _Node


class RadixCache:
    """Remembers sequences of ids in whole pages, and forgets the least recently used beyond `capacity`."""

    def __init__(self, *, page_size: int = 1, capacity: int | None = None) -> None:
        """`capacity` is in tokens; None means without bound. Raises `ValueError` for a page below 1."""
        if page_size < 1:
            raise ValueError(f"page_size is {page_size}, a page holds at least one token")
        self._page = page_size
        self._capacity = capacity
        self._root = _Node((), None)
        # Oldest first, without what is held. A use touches a node before its parent, so the oldest node is
        # always a leaf.
        self._order: OrderedDict[_Node, None] = OrderedDict()
        self._size = 0
        self._held = 0

    @property
    def size(self) -> int:
        """How many tokens it holds."""
        return self._size

    @property
    def held(self) -> int:
        """How many of these tokens can't be evicted now."""
        return self._held

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
        if self._capacity is not None:
            self.evict(self._size - self._capacity)

    def hold(self, ids: Ids) -> Hold:
        """Keep what is there of `ids` until it is released. Counts as a use."""
        node, _, inside, further = self._walk(ids)
        if inside is not None:
            node = self._split(node, inside, further)
        self._touch(node)
        for each in _path(node):
            if not each.holds:
                del self._order[each]
                self._held += len(each.ids)
            each.holds += 1
        return Hold(node)

    def release(self, hold: Hold) -> None:
        """Let go what `hold` kept; a use, too. Call it once."""
        for each in _path(hold.node):
            each.holds -= 1
            if not each.holds:
                self._held -= len(each.ids)
                self._order[each] = None

    def evict(self, tokens: int) -> int:
        """Forget the least recently used, so many tokens or a little more; less where the rest is held.

        Returns how many.
        """
        before = self._size
        while before - self._size < tokens and self._order:
            leaf, _ = self._order.popitem(last=False)
            if leaf.parent is not None:
                del leaf.parent.children[leaf.ids[: self._page]]
            self._size -= len(leaf.ids)
        return before - self._size

    def clear(self) -> None:
        """Forget everything, what is held included."""
        self._root.children.clear()
        self._order.clear()
        self._size = self._held = 0

    def check_integrity(self) -> None:
        """Raise `RuntimeError` if the tree contradicts itself; for tests."""
        nodes = list(self._nodes())
        if sum(len(node.ids) for node in nodes) != self._size:
            raise RuntimeError("size isn't the sum of the edges")
        if {node for node in nodes if not node.holds} != set(self._order):
            raise RuntimeError("the order of use doesn't list exactly the nodes that aren't held")
        if sum(len(node.ids) for node in nodes if node.holds) != self._held:
            raise RuntimeError("what is held isn't the sum of the edges that are")
        if self._capacity is not None and self._size > max(self._capacity, self._held):
            raise RuntimeError("more tokens than the capacity")
        rank = {node: place for place, node in enumerate(self._order)}
        for node in nodes:
            if not node.ids or len(node.ids) % self._page:
                raise RuntimeError("an edge isn't whole pages")
            if node.parent is None or node.parent.children.get(node.ids[: self._page]) is not node:
                raise RuntimeError("a node isn't where its first page says")
            if node.parent is self._root:
                continue
            if node.parent.holds < node.holds:
                raise RuntimeError("a node is held and its parent isn't")
            if not node.parent.holds and rank[node.parent] < rank[node]:
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
        upper = _Node(node.ids[:length], parent, holds=node.holds)
        parent.children[upper.ids[: self._page]] = upper
        node.ids, node.parent = node.ids[length:], upper
        upper.children[node.ids[: self._page]] = node
        return upper

    def _touch(self, node: _Node | None) -> None:
        """Make the path from `node` to the root the most recently used."""
        for each in _path(node):
            if not each.holds:
                self._order[each] = None
                self._order.move_to_end(each)

    def _nodes(self) -> Iterator[_Node]:
        pending = list(self._root.children.values())
        while pending:
            node = pending.pop()
            pending.extend(node.children.values())
            yield node


def _path(node: _Node | None) -> Iterator[_Node]:
    """Yield a node and what it hangs from, up to the root, which isn't among them."""
    while node is not None and node.parent is not None:
        yield node
        node = node.parent
