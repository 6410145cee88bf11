"""SQL: one SELECT, nothing written, and clear lines for all else."""

from __future__ import annotations

import signal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fafo_build.errors import SourceError
from fafo_run.item import BrokenRow, Row
from fafo_run.sources import sql
from fafo_run.sources.view import open_source
from tests.source_harness import broken, declare, good, read, refusal


@pytest.fixture
def root(tmp_path: Path) -> Path:
    connection = sqlite3.connect(tmp_path / "rows.db")
    connection.execute("create table thing (id integer primary key, name text, data blob, score real)")
    connection.executemany(
        "insert into thing values (?, ?, ?, ?)", [(1, "one", b"\0\xff", 0.5), (2, "two", None, None)]
    )
    connection.commit()
    connection.close()
    return tmp_path


def query(root: Path, text: str, **more: Any) -> list[Row | BrokenRow]:
    return read(root, declare("sql", query=text, **more))


def test_values(root: Path) -> None:
    rows = good(query(root, "select * from thing order by id"))
    assert [dict(row.fields) for row in rows] == [
        {"id": 1, "name": "one", "data": "AP8=", "score": 0.5},
        {"id": 2, "name": "two", "data": None, "score": None},
    ]


def test_a_query_may_compute_and_end_with_a_semicolon(root: Path) -> None:
    rows = good(
        query(
            root,
            """
            with recursive n(id) as (select 1 union all select id + 1 from n where id < 3000)
            select n.id, upper(coalesce(name, 'x')) as name from n left join thing using (id) order by id;
            """,
        )
    )
    assert len(rows) == 3000
    assert rows[0].fields == {"id": 1, "name": "ONE"}
    assert rows[2999].where == "rows.db row 3000"


def test_absolute_urls_have_a_fourth_slash(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    project = tmp_path_factory.mktemp("project")
    declared = declare("sql", url=f"sqlite:///{root}/rows.db", query="select * from thing")
    assert declared.url.startswith("sqlite:////")
    assert len(read(project, declared)) == 2


def test_odd_file_names(root: Path) -> None:
    (root / "rows.db").rename(root / "a b?c#d%20.db")
    assert len(query(root, "select * from thing", url="sqlite:///a b?c#d%20.db")) == 2


def test_an_infinite_number_breaks_its_row(root: Path) -> None:
    first, second = query(root, "select 1 as id, 9e999 as x union all select 2, 1.5 order by id")
    assert isinstance(first, BrokenRow)
    assert first.message == 'column "x": an infinite number has no JSON value'
    assert first.key == "1"
    assert isinstance(second, Row)


def test_text_that_is_not_utf8_breaks_its_row(root: Path) -> None:
    rows = query(root, "select id, cast(x'636166e9' as text) as name from thing where id = 1 union all "
                       "select id, name from thing where id = 2 order by id")  # fmt: skip
    assert [row.message for row in broken(rows)] == ["not UTF-8"]
    assert broken(rows)[0].key == "1"
    assert [row.key for row in good(rows)] == ["2"]


def test_a_key_that_is_not_utf8_breaks_its_row(root: Path) -> None:
    (row,) = query(root, "select cast(x'ff' as text) as id")
    assert isinstance(row, BrokenRow)
    assert row.key == f"!{row.content_hash.hex()[:16]}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("select id form thing", "near"),
        ("select id from things", "no such table: things"),
        ("select idd from thing", "no such column: idd"),
        ("select 1 as id; select 2 as id", "one statement at a time"),
        ("", "only a SELECT is allowed"),
        ("-- nothing", "only a SELECT is allowed"),
        ("delete from thing", "only a SELECT is allowed"),
        ("insert into thing (id) values (3) returning id", "only a SELECT is allowed"),
        ("create table other (id)", "only a SELECT is allowed"),
        ("pragma table_info(thing)", "only a SELECT is allowed"),
        ("attach 'other.db' as other", "only a SELECT is allowed"),
        ("begin", "only a SELECT is allowed"),
        ("select id from thing order by random()", "random gives other rows each time"),
        ("select current_timestamp as id", "current_timestamp gives other rows each time"),
    ],
)
def test_a_query_that_is_no_select_is_refused(root: Path, text: str, message: str) -> None:
    before = (root / "rows.db").read_bytes()
    shown = refusal(root, declare("sql", query=text))
    assert shown.startswith("fafo.toml: source.things.query: rows.db: ")
    assert message in shown
    assert text in shown
    assert (root / "rows.db").read_bytes() == before
    assert sorted(path.name for path in root.iterdir()) == ["rows.db"]


def test_a_query_that_fails_is_told_the_tables(root: Path) -> None:
    with closing(sqlite3.connect(root / "rows.db")) as connection:
        connection.execute("create view ids as select id from thing")
        connection.commit()
        columns = ", ".join(row[1] for row in connection.execute("pragma table_info(thing)"))
    shown = refusal(root, declare("sql", query="select id from things"))
    assert shown.endswith(f"  cure: mend the query; the tables are ids (id), thing ({columns})")


def test_a_database_without_tables_says_so(root: Path) -> None:
    with closing(sqlite3.connect(root / "bare.db")) as connection:
        connection.execute("pragma user_version = 1")
    shown = refusal(root, declare("sql", url="sqlite:///bare.db", query="select id from thing"))
    assert shown.endswith("  cure: name another database: this one has no tables")


def test_a_query_may_give_no_row(root: Path) -> None:
    assert query(root, "select * from thing where 0") == []


def test_two_columns_of_one_name_are_refused(root: Path) -> None:
    shown = refusal(root, declare("sql", query="select id, name, name from thing"))
    assert 'the column "name" is there twice' in shown


@pytest.mark.parametrize("url", ["postgresql://host/db", "sqlite://rows.db", "sqlite:///", "rows.db"])
def test_another_url_is_refused(root: Path, url: str) -> None:
    shown = refusal(root, declare("sql", url=url))
    assert shown.startswith(f'fafo.toml: source.things.url: "{url}" is no SQLite database')


def test_a_folder_is_refused(root: Path) -> None:
    (root / "data").mkdir()
    assert "data is no file" in refusal(root, declare("sql", url="sqlite:///data"))


def test_a_database_damaged_in_the_middle_is_refused(root: Path) -> None:
    connection = sqlite3.connect(root / "rows.db")
    connection.executemany("insert into thing (name) values (?)", [("x" * 500,)] * 5000)
    connection.commit()
    connection.close()
    data = bytearray((root / "rows.db").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40_000] = b"\xff" * 40_000
    (root / "rows.db").write_bytes(data)
    with pytest.raises(SourceError, match="malformed"):
        query(root, "select * from thing")


def test_a_reading_goes_on_in_another_thread(root: Path) -> None:
    import threading

    rows = open_source(declare("sql", query="select * from thing order by id"), root).rows()
    assert next(rows).key == "1"
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(row.key for row in rows))
    thread.start()
    thread.join()
    assert found == ["2"]


def test_a_reading_that_is_given_up_leaves_nothing_open(root: Path) -> None:
    rows = open_source(declare("sql", query="select * from thing"), root).rows()
    next(rows)
    del rows
    connection = sqlite3.connect(root / "rows.db", timeout=0)
    assert connection.execute("delete from thing").rowcount > 0
    connection.commit()
    connection.close()


ENDLESS = "with recursive n(id) as (select 1 union all select id + 1 from n) select max(id) as id from n"


def test_a_query_that_computes_for_long_gives_no_sample(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "PATIENCE", 0.1)
    source = open_source(declare("sql", query=ENDLESS), root)
    with pytest.raises(SourceError, match=r"no rows within 0\.1 s"):
        list(source.sample(1))
    assert len(list(open_source(declare("sql", query="select * from thing"), root).sample(1))) == 1


def test_a_query_that_computes_for_long_heeds_an_interrupt(root: Path) -> None:
    threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        list(open_source(declare("sql", query=ENDLESS), root).rows())
