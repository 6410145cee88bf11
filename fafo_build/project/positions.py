"""Where in a TOML file a key or a value stands. Knows the syntax of TOML, and nothing of what keys mean.

Importing this module loads tree-sitter (about 20 ms), so that `document` imports it only when it is asked
for a position.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

import tree_sitter_toml
from attrs import frozen
from tree_sitter import Language, Node, Parser

from fafo_build.project.values import Path

_NOT_VALUES = frozenset({"comment", "[", "]", "{", "}", ",", "=", "ERROR"})
_HEADS = {"table": 1, "table_array_element": 1}


@frozen
class Position:
    """One character of a file."""

    line: int
    """1-based."""
    column: int
    """1-based, in characters."""


@frozen
class Place:
    """Where one key and its value stand; the same position twice for a table with a head."""

    key: Position
    value: Position
    text: Position
    """Where the text of a string begins, after its quotes."""


def places(text: str) -> dict[Path, Place]:
    """Return the place of every key and every value of a TOML text whose lines end in LF.

    A table that is only implied by a longer key stands where it is first named.
    """
    source = text.encode()
    tree = Parser(Language(tree_sitter_toml.language())).parse(source)
    return _Walk(source.split(b"\n")).document(tree.root_node)


class _Walk:
    """One pass over the syntax tree."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self._found: dict[Path, Place] = {}
        self._lengths: dict[Path, int] = {}
        """Of arrays of tables, so far."""

    def document(self, root: Node) -> dict[Path, Place]:
        for node in root.children:
            if node.type == "pair":
                self._pair(node, ())
            elif node.type in _HEADS:
                self._table(node)
        return self._found

    def _table(self, node: Node) -> None:
        keys = [child for child in node.children if child.type.endswith("_key")]
        if not keys:
            return
        head = self._position(node)
        path: Path = ()
        *outer, last = _names(keys[0])
        for name in outer:
            path = self._enter((*path, name), head)
        path = (*path, last)
        if node.type == "table_array_element":
            self._found.setdefault(path, Place(head, head, head))
            self._lengths[path] = self._lengths.get(path, 0) + 1
            path = (*path, self._lengths[path] - 1)
        self._found.setdefault(path, Place(head, head, head))
        for child in node.children:
            if child.type == "pair":
                self._pair(child, path)

    def _enter(self, path: Path, head: Position) -> Path:
        """Return the path of an outer table: of the last one, where it is an array of tables."""
        self._found.setdefault(path, Place(head, head, head))
        return (*path, self._lengths[path] - 1) if path in self._lengths else path

    def _pair(self, node: Node, path: Path) -> None:
        key, *rest = [child for child in node.children if child.type not in _NOT_VALUES]
        start = self._position(key)
        *outer, last = _names(key)
        for name in outer:
            path = (*path, name)
            self._found.setdefault(path, Place(start, start, start))
        if rest:
            self._value(rest[0], (*path, last), start)

    def _value(self, node: Node, path: Path, key: Position) -> None:
        start = self._position(node)
        self._found[path] = Place(key, start, self._text(node, start))
        if node.type == "array":
            values = [child for child in node.children if child.type not in _NOT_VALUES]
            for index, child in enumerate(values):
                self._value(child, (*path, index), self._position(child))
        elif node.type == "inline_table":
            for child in node.children:
                if child.type == "pair":
                    self._pair(child, path)

    def _text(self, node: Node, start: Position) -> Position:
        if node.type != "string":
            return start
        quotes = len(node.children[0].text or b"")
        rest = self._lines[start.line - 1][node.start_point.column + quotes :]
        # TOML drops a line break right after three quotes.
        if quotes == 3 and not rest:
            return Position(start.line + 1, 1)
        return Position(start.line, start.column + quotes)

    def _position(self, node: Node) -> Position:
        row, column = node.start_point
        return Position(row + 1, len(self._lines[row][:column].decode(errors="replace")) + 1)


def _names(key: Node) -> Iterator[str]:
    """Yield the names of a key from left to right, without quotes and dots."""
    if key.type == "dotted_key":
        for child in key.children:
            if child.type.endswith("_key"):
                yield from _names(child)
        return
    written = (key.text or b"").decode()
    yield written if key.type == "bare_key" else next(iter(tomllib.loads(f"{written} = 0")))
