"""The tree of common prefixes as people read it: short for two classes, and still short for three hundred."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fafo_build.bake.tree import Branch, PrefixTree

_LINES = 12
"""Branches that are shown; all are in `--json`."""
_NAMES = 4
"""Classes that a line names."""
_LEAST = 8
"""Tokens that a branch must add to the one it grows from: words that two prompts begin with by chance are no
news.
"""


def lines(trees: Sequence[PrefixTree]) -> list[str]:
    """Return what `fafo build` prints of the trees; nothing when no two classes begin alike."""
    grown = [tree for tree in trees if tree.branches]
    return [line for tree in grown for line in _tree_lines(tree, tree.model if len(trees) > 1 else "")]


def as_json(trees: Sequence[PrefixTree]) -> list[dict[str, Any]]:
    """Return the value of `shared`: per model the whole tree."""
    return [
        {
            "model": tree.model,
            "order": list(tree.order),
            "branches": [
                {
                    "tokens": branch.tokens,
                    "added": branch.added,
                    "parent": branch.parent,
                    "classes": list(tree.classes(branch)),
                }
                for branch in tree.branches
            ],
        }
        for tree in trees
    ]


def _tree_lines(tree: PrefixTree, model: str) -> list[str]:
    parents = _worth_telling(tree.branches)
    shown = sorted(_weightiest(tree.branches, parents))
    of_model = f" ({model})" if model else ""
    if len(parents) == 1:
        return [f"  shared beginning: {_said(tree, shown[0])}{of_model}"]
    children: dict[int | None, list[int]] = {}
    for number in shown:
        children.setdefault(parents[number], []).append(number)
    found = [f"  shared beginnings{of_model}"]
    rails: dict[int, str] = {}
    for number in shown:
        parent = parents[number]
        glyphs = ("", "") if parent is None else ("├─ ", "│  ")
        if parent is not None and number == children[parent][-1]:
            glyphs = ("└─ ", "   ")
        rail = rails[parent] if parent is not None else "    "
        found.append(f"{rail}{glyphs[0]}{_said(tree, number)}")
        rails[number] = rail + glyphs[1]
    if len(shown) < len(parents):
        found.append(f"    and {len(parents) - len(shown)} more; all of them with --json")
    return found


def _worth_telling(branches: Sequence[Branch]) -> dict[int, int | None]:
    """Return the branches that add enough, each with the one of them that it grows from."""
    parents: dict[int, int | None] = {}
    nearest: list[int | None] = []
    for number, branch in enumerate(branches):
        above = None if branch.parent is None else nearest[branch.parent]
        if above is None or branch.tokens - branches[above].tokens >= _LEAST:
            parents[number] = above
            nearest.append(number)
        else:
            nearest.append(above)
    return parents


def _weightiest(branches: Sequence[Branch], parents: dict[int, int | None]) -> set[int]:
    """Return the branches that spare most, with what they grow from, as many as are shown."""

    def spared(number: int) -> int:
        branch = branches[number]
        return branch.added * (branch.end - branch.begin - 1)

    chosen: set[int] = set()
    for number in sorted(parents, key=lambda number: (-spared(number), number)):
        above: int | None = number
        line = set()
        while above is not None:
            line.add(above)
            above = parents[above]
        if len(chosen | line) <= _LINES:
            chosen |= line
    return chosen


def _said(tree: PrefixTree, number: int) -> str:
    branch = tree.branches[number]
    classes = tree.classes(branch)
    if len(classes) == len(tree.order):
        who = "both" if len(classes) == 2 else f"all {len(classes)}"
    else:
        who = some(classes)
    return f"{tokens(branch.tokens)} of {who}"


def tokens(count: int) -> str:
    """Return so many tokens in words."""
    return f"{count} token{'' if count == 1 else 's'}"


def some(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {more} more" if more > 0 else "")
