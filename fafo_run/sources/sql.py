"""One SELECT on a SQLite database, which is opened read-only."""

from __future__ import annotations

import base64
import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from fafo_build.errors import Problem, SourceError
from fafo_build.project.declaration import Source as Declared
from fafo_run.item import BrokenRow, Row, Value
from fafo_run.sources.base import Source
from fafo_run.sources.paths import shown_path
from fafo_run.sources.rows import RowMaker, declared_error

BATCH = 1024
"""Rows that are fetched at once."""

PATIENCE = 5.0
"""Seconds within which a query gives its first rows, or there is no sample."""

_STEPS = 100_000
"""Instructions of SQLite's machine, some milliseconds, after which it asks whether to go on."""

SCHEME = "sqlite:///"

_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}

# A source must give the same rows each time that it is read.
_VOLATILE = {"random", "randomblob", "current_time", "current_date", "current_timestamp"}

_TABLES = """
select schema.name, group_concat(columns.name, ', ')
from sqlite_master as schema, pragma_table_info(schema.name) as columns
where schema.type in ('table', 'view') and schema.name not like 'sqlite_%'
group by schema.name
order by schema.name
"""
_NO_TABLES = "name another database: this one has no tables"
_SHOWN = 20
"""Tables that a message lists."""


class _Watch:
    """Ends a query at a time. It is asked in Python now and then, so Ctrl-C ends the query too."""

    def __init__(self, within: float) -> None:
        """`within` is in seconds from now."""
        self.within = within
        self._until = time.monotonic() + within
        self.late = False

    def __call__(self) -> bool:
        self.late = time.monotonic() > self._until
        return self.late


class SqlSource(Source):
    """The rows of a query, in the order that the query gives."""

    def __init__(self, declared: Declared, root: Path) -> None:
        self.name = declared.name
        self._declared = declared
        self._root = root
        self._maker = RowMaker.of(declared)

    def columns(self) -> tuple[str, ...]:
        """Return the columns of the query's result."""
        with closing(self._connect()) as connection:
            return self._columns(self._execute(connection, _Watch(math.inf)))

    def rows(self) -> Iterator[Row | BrokenRow]:
        """Run the query."""
        return islice(self._rows(math.inf), self._declared.limit)

    def sample(self, most: int) -> Iterator[Row | BrokenRow]:
        """Run the query for its first rows. Raises `SourceError` too when it takes long to give them."""
        return islice(islice(self._rows(PATIENCE), self._declared.limit), most)

    def _rows(self, within: float) -> Iterator[Row | BrokenRow]:
        shown = shown_path(self._path(), self._root)
        number = 0
        with closing(self._connect()) as connection:
            watch = _Watch(within)
            cursor = self._execute(connection, watch)
            columns = self._columns(cursor)
            while batch := self._fetch(cursor, watch):
                for values in batch:
                    number += 1
                    yield self._row(dict(zip(columns, values, strict=True)), f"{shown} row {number}")

    def _row(self, fields: dict[str, Value], where: str) -> Row | BrokenRow:
        for name, value in fields.items():
            if isinstance(value, bytes):
                fields[name] = base64.b64encode(value).decode()
            elif isinstance(value, float) and math.isinf(value):
                return self._maker.broken(
                    fields, where, f'column "{name}": an infinite number has no JSON value'
                )
        return self._maker.row(fields, where)

    def _path(self) -> Path:
        url = self._declared.url or ""
        if not url.startswith(SCHEME) or url == SCHEME:
            raise declared_error(
                self.name, "url", f'"{url}" is no SQLite database', cure='write "sqlite:///data/name.db"'
            )
        return self._root / url.removeprefix(SCHEME)

    def _connect(self) -> sqlite3.Connection:
        path = self._path()
        shown = shown_path(path, self._root)
        try:
            if not path.is_file():
                message = f"{shown} is no file" if path.exists() else f"{shown} isn't there"
                cure = "paths are relative to the project folder; an absolute one begins with a fourth slash"
                raise declared_error(self.name, "url", message, cure=cure)
            if path.stat().st_size == 0:
                # SQLite takes it for a database without tables.
                raise SourceError(
                    Problem(
                        "is empty",
                        file=shown,
                        field=f"source.{self.name}.url",
                        cure="name a database that has tables",
                    )
                )
            connection = sqlite3.connect(
                f"file:{quote(str(path))}?mode=ro", uri=True, check_same_thread=False
            )
        except (sqlite3.Error, OSError) as error:
            raise SourceError(Problem(f"can't be opened: {error}", file=shown)) from error
        # Text that isn't UTF-8 costs its row only: surrogates are found when the row is hashed.
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        return connection

    def _execute(self, connection: sqlite3.Connection, watch: _Watch) -> sqlite3.Cursor:
        refused: list[str] = []

        def allow(action: int, first: str | None, second: str | None, *_: str | None) -> int:
            if action in _READS:
                return sqlite3.SQLITE_OK
            if action == sqlite3.SQLITE_FUNCTION:
                if str(second).lower() not in _VOLATILE:
                    return sqlite3.SQLITE_OK
                refused.append(f"{second} gives other rows each time")
            else:
                refused.append("only a SELECT is allowed")
            return sqlite3.SQLITE_DENY

        connection.set_authorizer(allow)
        connection.set_progress_handler(watch, _STEPS)
        try:
            cursor = connection.execute(self._declared.query or "")
        except sqlite3.Warning as error:  # Python 3.11's class for several statements
            raise self._wrong_query(str(error)) from error
        except sqlite3.Error as error:
            self._raise_ended(error, watch)
            if refused:
                raise self._wrong_query(refused[0]) from error
            connection.set_authorizer(None)
            connection.set_progress_handler(None, 0)
            raise self._wrong_query(str(error), _tables(connection)) from error
        if cursor.description is None:
            raise self._wrong_query(refused[0] if refused else "only a SELECT is allowed")
        return cursor

    def _columns(self, cursor: sqlite3.Cursor) -> tuple[str, ...]:
        columns = tuple(description[0] for description in cursor.description)
        self._maker.check_columns(columns, f"the query of {self.name}")
        return columns

    def _fetch(self, cursor: sqlite3.Cursor, watch: _Watch) -> list[tuple[Value, ...]]:
        try:
            return cursor.fetchmany(BATCH)
        except sqlite3.Error as error:
            self._raise_ended(error, watch)
            raise self._wrong_query(str(error)) from error

    def _raise_ended(self, error: sqlite3.Error, watch: _Watch) -> None:
        """Raise what ended a query from outside, if something did."""
        # What the module itself refuses has no code.
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
            if watch.late:
                raise self._wrong_query(f"the query gives no rows within {watch.within:g} s") from error
            # SQLite drops the exception that was raised while it asked.
            raise KeyboardInterrupt from error

    def _wrong_query(self, message: str, cure: str | None = None) -> SourceError:
        query = self._declared.query or ""
        shown = shown_path(self._path(), self._root)
        return SourceError(
            Problem(
                f"{shown}: {message}",
                file="fafo.toml",
                field=f"source.{self.name}.query",
                source_line=" ".join(query.split()),
                cure=cure,
            )
        )


def _tables(connection: sqlite3.Connection) -> str:
    """Return the cure for a query that fails: the tables that there are, with their columns."""
    try:
        found = connection.execute(_TABLES).fetchall()
    except sqlite3.Error:
        return "name a SQLite database"
    shown = [f"{table} ({columns})" for table, columns in found]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return "mend the query; the tables are " + ", ".join(shown[:_SHOWN]) + more if shown else _NO_TABLES
