"""JSONL: what a line may be, and that a bad one costs itself only."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fafo_run.item import BrokenRow, Row
from tests.source_harness import broken, declare, good, read, refusal

GOOD = b'{"id": "a"}'
LAST = b'{"id": "z"}'


def rows_of(root: Path, data: bytes) -> list[Row | BrokenRow]:
    (root / "rows.jsonl").write_bytes(data)
    return read(root, declare("jsonl"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "b"', "no JSON: "),
        (b'{"id": "b"} {"id": "c"}', "no JSON: "),
        (b"hello", "no JSON: "),
        (b'["b"]', "expected a JSON object, got a list"),
        (b'"b"', "expected a JSON object, got a text"),
        (b"17", "expected a JSON object, got a number"),
        (b"null", "expected a JSON object, got null"),
        (b"true", "expected a JSON object, got true or false"),
        (b'{"id": "b", "x": NaN}', "no JSON: "),
        (b'{"id": "b", "x": -Infinity}', "no JSON: "),
        (b'{"id": "caf\xe9"}', "not UTF-8: byte 0xe9 at position 12"),
        (b'{"id": "b", "x": "\\ud800"}', "no JSON: "),
        (b"[" * 100_000, "nested more than 200 levels deep"),
        (b'{"id": "b", "x": ' + b"[" * 2000 + b"]" * 2000 + b"}", "nested more than 200 levels deep"),
        (b'{"id": "b", "x": 18446744073709551616}', "a whole number doesn't fit 64 bits"),
        (b'{"id": "b", "x": [{"y": -9223372036854775809}]}', "a whole number doesn't fit 64 bits"),
        (b'{"name": "b"}', 'the key column "id" is missing'),
        (b'{"id": null}', 'the key column "id" is null'),
        (b'{"id": ""}', 'the key column "id" is empty'),
        (b'{"id": true}', 'the key column "id" is neither text nor a whole number'),
        (b'{"id": 1.0}', 'the key column "id" is neither text nor a whole number'),
        (b'{"id": ["b"]}', 'the key column "id" is neither text nor a whole number'),
        (b"\0\0\0\0", "no JSON: "),
    ],
)
def test_a_bad_line_costs_itself_only(line: bytes, message: str, tmp_path: Path) -> None:
    rows = rows_of(tmp_path, GOOD + b"\n" + line + b"\n" + LAST + b"\n")
    assert [row.key for row in good(rows)] == ["a", "z"]
    bad = rows[1]
    assert isinstance(bad, BrokenRow)
    assert message in bad.message
    assert bad.where == "rows.jsonl:2"
    assert bad.content_hash == hashlib.sha256(line).digest()


def test_the_limit_of_nesting_does_not_depend_on_the_caller(tmp_path: Path) -> None:
    def line(levels: int) -> bytes:
        return b'{"id": "b", "x": ' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}\n"

    wide = b'{"id": "w", "x": [' + b",".join([b"[{}]"] * 500) + b"]}\n"

    def deep(frames: int) -> list[Row | BrokenRow]:
        return deep(frames - 1) if frames else rows_of(tmp_path, line(200) + line(201) + line(900) + wide)

    for frames in (0, 500):
        assert [isinstance(row, BrokenRow) for row in deep(frames)] == [False, True, True, False]


def test_a_broken_row_has_its_key_where_that_could_be_read(tmp_path: Path) -> None:
    bad, torn = broken(rows_of(tmp_path, b'{"id": 7, "x": 99999999999999999999}\n{"id": 8\n' + GOOD))
    assert bad.key == "7"
    assert torn.key == f"!{torn.content_hash.hex()[:16]}"


@pytest.mark.parametrize(
    "data",
    [
        GOOD + b"\n" + LAST,
        GOOD + b"\r\n" + LAST + b"\r\n",
        b"\xef\xbb\xbf" + GOOD + b"\n" + LAST + b"\n",
        b"\n\n" + GOOD + b"\n   \n\r\n" + LAST + b"\n\n",
        b"  " + GOOD + b"\t\n" + LAST + b"\n",
    ],
    ids=["no newline at the end", "CRLF", "BOM", "empty lines", "spaces"],
)
def test_what_ends_and_fills_lines_does_not_matter(data: bytes, tmp_path: Path) -> None:
    rows = rows_of(tmp_path, data)
    assert [row.key for row in rows] == ["a", "z"]
    assert [row.content_hash for row in rows] == [
        row.content_hash for row in rows_of(tmp_path, GOOD + b"\n" + LAST)
    ]


def test_empty_lines_count_as_lines(tmp_path: Path) -> None:
    assert [row.where for row in rows_of(tmp_path, b"\n\n" + GOOD)] == ["rows.jsonl:3"]


def test_rows_may_differ_in_their_columns(tmp_path: Path) -> None:
    one, two = good(rows_of(tmp_path, b'{"id": 1, "a": [1, {"b": null}]}\n{"id": 2, "c": 0.5}\n'))
    assert one.fields == {"id": 1, "a": [1, {"b": None}]}
    assert two.fields == {"id": 2, "c": 0.5}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_another_encoding_is_refused_with_a_cure(encoding: str, tmp_path: Path) -> None:
    text = '{"id": "a"}\n'
    data = ("\ufeff" + text if encoding.endswith("be") else text).encode(encoding)
    (tmp_path / "rows.jsonl").write_bytes(data)
    shown = refusal(tmp_path, declare("jsonl"))
    name = encoding.upper().removesuffix("-BE")
    assert shown == f"rows.jsonl: is {name}, not UTF-8\n  cure: convert it: iconv -f {name} -t UTF-8"


def test_of_a_name_that_stands_twice_the_last_value_is_taken(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, b'{"id": "b", "text": "x", "text": "y"}\n')
    assert isinstance(row, Row) and row.fields == {"id": "b", "text": "y"}


def test_a_key_that_no_row_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"torn\n" + GOOD + b'\n{"ID": 1, "name": 2}\n')
    shown = refusal(tmp_path, declare("jsonl", key=("Id",)))
    assert 'rows.jsonl has no column "Id"' in shown
    assert 'its columns are "id", "ID", "name"' in shown


def test_a_key_that_turns_up_late_is_no_reason_to_refuse(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b'{"name": "x"}\n' * 5 + GOOD)
    assert len(broken(rows)) == 5
    assert len(good(rows)) == 1
