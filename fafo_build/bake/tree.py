"""The tree of common prefixes: which classes begin alike, for how many tokens, and in which order a cache
serves them best. Knows ids and names, nothing of projects and files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, field, frozen

from fafo_build.bake.artifact import Artifact


@frozen
class Branch:
    """A beginning that two or more prefixes have in common, and no longer one that all of them have."""

    tokens: int
    """Its length, from the first token on; 1 or more."""
    added: int
    """How many of these the branch that this one grows from doesn't have."""
    begin: int
    """Its classes are `PrefixTree.order[begin:end]`."""
    end: int
    parent: int | None
    """The branch that it grows from, by its number in `PrefixTree.branches`."""


@frozen
class PrefixTree:
    """The prefixes of one model's classes as a radix tree."""

    model: str
    """The model's declared path, with `@revision` if it has one."""
    order: tuple[str, ...]
    """All classes, depth first: those that share a beginning follow each other, and a tie goes by name."""
    branches: tuple[Branch, ...]
    """Depth first as well, so that a parent comes before its children; none when no two begin alike."""

    def classes(self, branch: Branch) -> tuple[str, ...]:
        """Return the classes that have this beginning."""
        return self.order[branch.begin : branch.end]


def prefix_trees(artifacts: Mapping[str, Artifact]) -> tuple[PrefixTree, ...]:
    """Return one tree per model, since no cache holds one model's states for another."""
    models: dict[str, dict[str, Sequence[int]]] = {}
    labels: dict[str, str] = {}
    for name, artifact in sorted(artifacts.items()):
        model = artifact.model
        models.setdefault(model.digest, {})[name] = artifact.prefix
        labels[model.digest] = f"{model.name}@{model.revision}" if model.revision else model.name
    return tuple(prefix_tree(prefixes, labels[digest]) for digest, prefixes in models.items())


def prefix_tree(prefixes: Mapping[str, Sequence[int]], model: str = "") -> PrefixTree:
    """Return the tree of these prefixes, by class name."""
    order: list[str] = []
    branches: list[Branch] = []
    # A stack instead of recursion: 300 classes may each begin with the whole of the one before.
    waiting: list[tuple[_Node, int | None]] = [(_grown(prefixes), None)]
    while waiting:
        node, parent = waiting.pop()
        if node.name is not None:
            order.append(node.name)
            continue
        if node.tokens:
            added = node.tokens - (branches[parent].tokens if parent is not None else 0)
            branches.append(Branch(node.tokens, added, len(order), len(order) + node.size, parent))
            parent = len(branches) - 1
        waiting += ((child, parent) for child in sorted(node.children, key=_first, reverse=True))
    return PrefixTree(model, tuple(order), tuple(branches))


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many ids both begin with."""
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


@define
class _Node:
    """A class, or a beginning with what grows from it."""

    tokens: int
    name: str | None = None
    """Of the class; None for a beginning."""
    first: str = ""
    """The first class name in it."""
    size: int = 1
    """How many classes are in it."""
    children: list[_Node] = field(factory=list)

    def close(self) -> None:
        self.first = min((child.first for child in self.children), default="")
        self.size = sum(child.size for child in self.children)


def _first(node: _Node) -> str:
    return node.first


def _grown(prefixes: Mapping[str, Sequence[int]]) -> _Node:
    """Return the root. Sorted by their ids, only neighbours have to be compared."""
    path = [_Node(0)]
    last: _Node | None = None
    before: Sequence[int] = ()
    for name in sorted(prefixes, key=lambda name: (tuple(prefixes[name]), name)):
        if last is not None:
            _hang(path, last, common(before, prefixes[name]))
        before = prefixes[name]
        last = _Node(len(before), name, name)
    if last is not None:
        _hang(path, last, 0)
    path[0].close()
    return path[0]


def _hang(path: list[_Node], node: _Node, tokens: int) -> None:
    """Hang a finished node where it shares `tokens` with what comes next, and finish what is deeper."""
    while path[-1].tokens > tokens:
        path[-1].children.append(node)
        node = path.pop()
        node.close()
    if path[-1].tokens < tokens:
        path.append(_Node(tokens))
    path[-1].children.append(node)
