"""docs/durability.md names tests that exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.helpers import REPO

PAGE = (REPO / "docs" / "durability.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def test_every_promise_names_a_test() -> None:
    section = PAGE[PAGE.index("## Fault by fault") : PAGE.index("## What check and repair say")]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    promises = [row for row in rows if not re.match(r"\|(---| promised)", row)]
    assert len(promises) > 20 and all("::test_" in row for row in promises)
    assert section.count("::") == len(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", section))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_every_named_test_exists(file: str, name: str) -> None:
    tree = ast.parse((REPO / file).read_text("utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
