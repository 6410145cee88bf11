"""CSV: RFC 4180 and the files that don't keep to it."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fafo_run.item import BrokenRow, Row
from fafo_run.sources import delimited
from fafo_run.sources.delimited import split
from tests.source_harness import broken, declare, good, read, refusal


def rows_of(root: Path, data: bytes) -> list[Row | BrokenRow]:
    (root / "rows.csv").write_bytes(data)
    return read(root, declare("csv"))


def test_all_values_are_texts_and_an_empty_cell_is_an_empty_text(tmp_path: Path) -> None:
    (row,) = good(rows_of(tmp_path, b'id,n,empty,quoted\n1, 2.0 ,,""\n'))
    assert row.fields == {"id": "1", "n": " 2.0 ", "empty": "", "quoted": ""}


@pytest.mark.parametrize(
    "data",
    [
        b"id,text\r\na,x\r\nb,y\r\n",
        b"\xef\xbb\xbfid,text\na,x\nb,y\n",
        b"id,text\na,x\nb,y",
        b"\n\nid,text\n\na,x\n\r\nb,y\n\n",
        b'"id","text"\n"a","x"\n"b","y"\n',
    ],
    ids=["CRLF", "BOM", "no newline at the end", "empty lines", "quoted"],
)
def test_line_ends_marks_and_quotes_do_not_matter(data: bytes, tmp_path: Path) -> None:
    assert [dict(row.fields) for row in good(rows_of(tmp_path, data))] == [
        {"id": "a", "text": "x"},
        {"id": "b", "text": "y"},
    ]


def test_quoted_cells_hold_line_breaks_as_they_are(tmp_path: Path) -> None:
    one, two = good(rows_of(tmp_path, b'id,text\r\na,"1\r\n2\n\n""3"", 4"\r\nb,y\r\n'))
    assert one.fields["text"] == '1\r\n2\n\n"3", 4'
    assert (one.where, two.where) == ("rows.csv:2", "rows.csv:6")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"m", "line 3 has 1 column, the header has 2"),
        (b"m,n,o", "line 3 has 3 columns, the header has 2"),
        (b"m,n,", "line 3 has 3 columns, the header has 2"),
        (b"m,a\0b", "a NUL byte"),
        (b"m,caf\xe9", "not UTF-8: byte 0xe9 at position 6"),
        (b'm,"x" y', "line 3: text after the closing quote of column 2"),
        (b'm,"torn', "line 3 has a quote that isn't closed"),
        (b'"m,torn', "line 3 has a quote that isn't closed"),
        (b'm,"caf\xe9', "not UTF-8: byte 0xe9 at position 7"),
        (b",n", 'the key column "id" is empty'),
    ],
)
def test_a_bad_row_costs_itself_only(line: bytes, message: str, tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b'id,text\na,x\n%s\ny,"1\n2"\nz,"q"\n' % line)
    assert [row.key for row in good(rows)] == ["a", "y", "z"]
    (bad,) = broken(rows)
    assert (bad.where, bad.message) == ("rows.csv:3", message)
    assert rows[1] is bad


def test_two_torn_quotes_do_not_pair_up(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b'id,text\na,"torn\nb,x\nc,y\nd,"torn\ne,z\n')
    assert [row.key for row in good(rows)] == ["b", "c", "e"]
    assert [row.where for row in broken(rows)] == ["rows.csv:2", "rows.csv:5"]


def test_the_search_for_a_closing_quote_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "MAX_RECORD", 100)
    rows = rows_of(tmp_path, b'id,text\na,"torn\n' + b"".join(b"k%d,x\n" % n for n in range(99)))
    assert [row.key for row in good(rows)] == [f"k{n}" for n in range(99)]
    assert len(broken(rows)) == 1


def test_cells_may_be_large(tmp_path: Path) -> None:
    (row,) = good(rows_of(tmp_path, b'id,text\na,"' + b'x""\n' * 100_000 + b'"\n'))
    assert row.fields["text"] == 'x"\n' * 100_000


def test_a_quote_inside_an_unquoted_cell_is_text(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b'id,text\na,5" pipe\nb,6" pipe\n')
    assert [row.fields["text"] for row in good(rows)] == ['5" pipe', '6" pipe']


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"id,text,text\na,x,y\n", 'rows.csv: the column "text" is there twice'),
        (b"id,caf\xe9\na,x\n", "rows.csv:1: the header can't be read: not UTF-8: byte 0xe9 at position 7"),
        (b'id,"text\na,x\n', "rows.csv:1: the header can't be read: line 1 has a quote that isn't closed"),
        (b"id,text\ra,x\rb,y\r", "rows.csv:1: the header can't be read: lines end with CR alone"),
        (b"\n\n\r\n", "rows.csv: has no header"),
        (b"id;text\na;x\n", 'its columns are "id;text"'),
        ("id,text\na,x\n".encode("utf-16"), "rows.csv: is UTF-16, not UTF-8"),
    ],
)
def test_a_file_without_a_usable_header_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(data)
    assert message in refusal(tmp_path, declare("csv"))


@pytest.mark.parametrize("data", [b"id,text\n", b"id,text", b"id,text\n\r\n\n"])
def test_a_header_alone_is_refused_as_an_empty_file_is(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(data)
    assert refusal(tmp_path, declare("csv")) == (
        "rows.csv: source.things.path: has no rows\n  cure: put rows into it, or name another file"
    )


def test_a_broken_row_is_a_row(tmp_path: Path) -> None:
    assert len(rows_of(tmp_path, b"id,text\na\n")) == 1
    assert len(rows_of(tmp_path, b'id,text\n"a\n')) == 1


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0")), min_size=2))
def test_split_reads_what_the_standard_library_writes(cells: list[str]) -> None:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow(cells)
    assert split(stream.getvalue()) == cells


@given(st.text('a,"\n'))
def test_split_never_loses_text(text: str) -> None:
    try:
        cells = split(text)
    except ValueError:
        return
    if cells is not None:
        assert "".join(cells).count("a") == text.count("a")
