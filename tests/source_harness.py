"""The same rows as each kind of source, for tests."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fafo_build.errors import SourceError
from fafo_build.project.declaration import Source as Declared
from fafo_run.item import BrokenRow, Row
from fafo_run.sources.base import Source
from fafo_run.sources.view import open_source

KINDS = ("jsonl", "csv", "parquet", "sql", "dataset")

Fields = dict[str, Any]


def write(kind: str, root: Path, rows: Sequence[Fields], *, key: tuple[str, ...] = ("id",)) -> Declared:
    """Write rows that all have the same columns, and return the declaration of the source."""
    if kind == "jsonl":
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (root / "rows.jsonl").write_text(text, encoding="utf-8")
    elif kind == "csv":
        with (root / "rows.csv").open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), root / "rows.parquet", row_group_size=3)
    elif kind == "sql":
        _write_sqlite(root / "rows.db", rows)
    elif kind == "dataset":
        from datasets import Dataset

        Dataset.from_list(list(rows)).save_to_disk(root / "rows", num_shards=2)
    return declare(kind, key=key)


def declare(kind: str, *, key: tuple[str, ...] = ("id",), **more: Any) -> Declared:
    """Return the declaration of a source of one kind, of the files that `write` writes unless told."""
    if kind == "sql":
        defaults: dict[str, Any] = {
            "type": "sql",
            "url": "sqlite:///rows.db",
            "query": "select * from rows order by rowid",
        }
    elif kind == "dataset":
        defaults = {"type": "dataset", "path": ("rows",)}
    else:
        defaults = {"type": "files", "path": (f"rows.{kind}",)}
    return Declared(name="things", key=key, **{**defaults, **more})


def opened(kind: str, root: Path, rows: Sequence[Fields], *, key: tuple[str, ...] = ("id",)) -> Source:
    """Write rows and open the source."""
    return open_source(write(kind, root, rows, key=key), root)


def read(root: Path, declared: Declared) -> list[Row | BrokenRow]:
    """Read a declared source whole."""
    return list(open_source(declared, root).rows())


def good(rows: Sequence[Row | BrokenRow]) -> list[Row]:
    return [row for row in rows if isinstance(row, Row)]


def broken(rows: Sequence[Row | BrokenRow]) -> list[BrokenRow]:
    return [row for row in rows if isinstance(row, BrokenRow)]


def refusal(root: Path, declared: Declared) -> str:
    """Return how fafo refuses a source, as people read it; by `columns` and by `rows` alike."""
    shown = []
    for method in ("columns", "rows"):
        source = open_source(declared, root)
        try:
            result = getattr(source, method)()
            if method == "rows":
                list(result)
        except SourceError as error:
            shown.append(error.render())
        else:
            raise AssertionError(f"{method} accepted the source")
    assert shown[0] == shown[1]
    return shown[0]


def _write_sqlite(path: Path, rows: Sequence[Fields]) -> None:
    connection = sqlite3.connect(path)
    names = ", ".join(f'"{name}"' for name in rows[0])
    marks = ", ".join("?" for _ in rows[0])
    connection.execute(f"create table rows ({names})")
    connection.executemany(f"insert into rows values ({marks})", [tuple(row.values()) for row in rows])
    connection.commit()
    connection.close()
