"""JSONL: one JSON object on each line. A line that isn't one is a broken row; empty lines are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from fafo_run.item import BrokenRow, Row
from fafo_run.sources.lines import not_utf8, read_lines
from fafo_run.sources.paths import DataFile
from fafo_run.sources.rows import CONTENT_KEY, RowMaker

_decode = msgspec.json.Decoder().decode

MAX_DEPTH = 200
"""Levels of lists and objects in a row. Python's own limit depends on who calls, and so would the outcome."""

LOOK_AT = 100
"""Rows in which a key column must turn up, so that a misspelt one isn't a failure per row."""


class Jsonl:
    """Reads JSONL."""

    def columns(self, file: DataFile, maker: RowMaker) -> None:
        """Return None: each row decides for itself. Raises `SourceError` when no row at all has the key."""
        if maker.key == CONTENT_KEY:
            return
        seen: dict[str, None] = {}
        for line in islice(_filled(file), LOOK_AT):
            fields, _ = _object(line)
            seen.update(dict.fromkeys(fields))
        if seen:
            maker.check_key(list(seen), file.shown)

    def has_rows(self, file: DataFile) -> bool:
        """Tell whether any line isn't empty."""
        return next(_filled(file), None) is not None

    def rows(self, file: DataFile, maker: RowMaker) -> Iterator[Row | BrokenRow]:
        """Read the lines."""
        for number, line in enumerate(read_lines(file), start=1):
            raw = line.strip()
            if not raw:
                continue
            fields, problem = _object(raw)
            where = f"{file.shown}:{number}"
            if problem:
                yield maker.broken({}, where, problem, raw)
            else:
                yield maker.row(fields, where, raw)


def _filled(file: DataFile) -> Iterator[bytes]:
    return (line for line in read_lines(file) if line.strip())


def _object(line: bytes) -> tuple[dict[str, object], str]:
    """Return the object of a line and why there is none, one of them empty."""
    try:
        value = _decode(line)
    except RecursionError:
        return {}, _TOO_DEEP
    except msgspec.DecodeError as error:
        return {}, not_utf8(line) or f"no JSON: {error}"
    if not isinstance(value, dict):
        return {}, f"expected a JSON object, got {_NAMES.get(type(value), 'a number')}"
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        return {}, _TOO_DEEP
    return value, ""


def _depth(value: object) -> int:
    level, depth = [value], 0
    while level:
        nested = [item for item in level if isinstance(item, list | dict)]
        depth += bool(nested)
        level = [child for item in nested for child in (item.values() if isinstance(item, dict) else item)]
    return depth


_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"

_NAMES = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
