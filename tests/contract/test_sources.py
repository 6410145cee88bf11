"""What every source promises, whatever it reads from (fafo_run/sources/base.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fafo_build.errors import SourceError
from fafo_run.identity import content_hash
from fafo_run.item import BrokenRow, Row
from fafo_run.sources.view import open_source, survey
from tests.source_harness import KINDS, broken, declare, good, opened, read, refusal, write

TYPED = tuple(kind for kind in KINDS if kind != "csv")
"""CSV knows texts only."""

TEXTS = [
    {"id": "a", "name": "plain", "text": "one, two"},
    {"id": "b", "name": "quotes", "text": 'she said "no"'},
    {"id": "c", "name": "lines", "text": "first\nsecond\r\nthird\n"},
    {"id": "d", "name": "unicode", "text": "naïve 日本語 👩‍👩‍👧 é e\u0301 \u200b\ufeff"},
    {"id": "e", "name": "", "text": "  spaces  "},
    {"id": "Ä/ö", "name": "template", "text": "{{ item }} <|im_end|>"},
    {"id": "g", "name": "null-like", "text": "null"},
]

NUMBERS = [
    {"id": 1, "score": 0.1, "big": 2**63 - 1, "name": None},
    {"id": -7, "score": 1e300, "big": -(2**63), "name": "x"},
    {"id": 0, "score": 2.0, "big": 0, "name": ""},
]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_keys_and_hashes_are_the_same_in_every_kind(kind: str, tmp_path: Path) -> None:
    source = opened(kind, tmp_path, TEXTS)
    rows = list(source.rows())
    assert [row.key for row in rows] == [row["id"] for row in TEXTS]
    assert [dict(row.fields) for row in good(rows)] == TEXTS
    assert [row.content_hash for row in rows] == [content_hash(row) for row in TEXTS]
    assert {row.source for row in rows} == {"things"}


@pytest.mark.parametrize("kind", TYPED)
def test_numbers_and_nulls_are_the_same_in_every_kind_that_has_them(kind: str, tmp_path: Path) -> None:
    rows = list(opened(kind, tmp_path, NUMBERS).rows())
    assert [row.key for row in rows] == ["1", "-7", "0"]
    assert [row.content_hash for row in rows] == [content_hash(row) for row in NUMBERS]
    assert [[type(value) for value in row.fields.values()] for row in good(rows)] == [
        [type(value) for value in row.values()] for row in NUMBERS
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_reads_in_the_same_order_twice(kind: str, tmp_path: Path) -> None:
    source = opened(kind, tmp_path, TEXTS)
    assert list(source.rows()) == list(source.rows())
    iterator = source.rows()
    next(iterator)
    assert len(list(source.rows())) == len(TEXTS), "one reading must not disturb another"
    assert len(list(iterator)) == len(TEXTS) - 1


@pytest.mark.parametrize("kind", KINDS)
def test_says_its_columns(kind: str, tmp_path: Path) -> None:
    source = opened(kind, tmp_path, TEXTS)
    assert source.name == "things"
    assert source.columns() == (None if kind == "jsonl" else ("id", "name", "text"))


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_plain_json(kind: str, tmp_path: Path) -> None:
    for row in opened(kind, tmp_path, TEXTS).rows():
        assert isinstance(row, Row)
        assert json.loads(json.dumps(row.fields)) == row.fields


@pytest.mark.parametrize("kind", KINDS)
def test_limit_is_the_most_rows(kind: str, tmp_path: Path) -> None:
    write(kind, tmp_path, TEXTS)
    assert [row.key for row in read(tmp_path, declare(kind, limit=2))] == ["a", "b"]
    assert len(read(tmp_path, declare(kind, limit=100))) == len(TEXTS)


@pytest.mark.parametrize("kind", KINDS)
def test_where_names_the_file_and_the_row(kind: str, tmp_path: Path) -> None:
    first, *_, last = opened(kind, tmp_path, TEXTS).rows()
    shown = {
        "jsonl": ("rows.jsonl:1", "rows.jsonl:7"),
        # The header is line 1, and a cell of the third row holds three line breaks.
        "csv": ("rows.csv:2", "rows.csv:11"),
        "parquet": ("rows.parquet row 1", "rows.parquet row 7"),
        "sql": ("rows.db row 1", "rows.db row 7"),
        "dataset": ("rows row 1", "rows row 7"),
    }
    assert (first.where, last.where) == shown[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_of_several_columns_is_a_json_array(kind: str, tmp_path: Path) -> None:
    rows = list(opened(kind, tmp_path, TEXTS[:3], key=("id", "name")).rows())
    assert [row.key for row in rows] == ['["a","plain"]', '["b","quotes"]', '["c","lines"]']


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_can_be_the_content(kind: str, tmp_path: Path) -> None:
    rows = list(opened(kind, tmp_path, TEXTS, key=("content",)).rows())
    assert [row.key for row in rows] == [content_hash(row).hex()[:32] for row in TEXTS]


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_key_breaks_its_row_only(kind: str, tmp_path: Path) -> None:
    rows = list(opened(kind, tmp_path, TEXTS, key=("name",)).rows())
    (bad,) = broken(rows)
    assert isinstance(rows[4], BrokenRow)
    assert len(rows) == len(TEXTS)
    assert bad.message == 'the key column "name" is empty'
    assert bad.key == f"!{bad.content_hash.hex()[:16]}"


@pytest.mark.parametrize("kind", TYPED)
def test_a_null_key_breaks_its_row_only(kind: str, tmp_path: Path) -> None:
    rows = list(opened(kind, tmp_path, NUMBERS, key=("id", "name")).rows())
    assert [row.message for row in broken(rows)] == [
        'the key column "name" is null',
        'the key column "name" is empty',
    ]
    assert [row.key for row in good(rows)] == ['[-7,"x"]']


@pytest.mark.parametrize("kind", TYPED)
def test_a_key_is_text_or_a_whole_number(kind: str, tmp_path: Path) -> None:
    rows = list(opened(kind, tmp_path, NUMBERS, key=("score",)).rows())
    assert {row.message for row in broken(rows)} == {
        'the key column "score" is neither text nor a whole number'
    }
    assert len(broken(rows)) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_key_column_is_refused_with_the_columns_there_are(kind: str, tmp_path: Path) -> None:
    shown = refusal(tmp_path, write(kind, tmp_path, TEXTS, key=("nmae",)))
    assert shown.startswith("fafo.toml: source.things.key: ")
    assert 'has no column "nmae"' in shown
    assert 'did you mean "name"? its columns are "id", "name", "text"' in shown


@pytest.mark.parametrize("kind", KINDS)
def test_an_absent_source_is_refused(kind: str, tmp_path: Path) -> None:
    shown = refusal(tmp_path, declare(kind))
    assert shown.startswith(f"fafo.toml: source.things.{'url' if kind == 'sql' else 'path'}: ")
    assert "isn't there" in shown


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_file_is_refused(kind: str, tmp_path: Path) -> None:
    declared = write(kind, tmp_path, TEXTS)
    for path in tmp_path.rglob("rows.*" if kind != "dataset" else "data-*"):
        path.write_bytes(b"")
    shown = refusal(tmp_path, declared)
    assert "is empty" in shown


@pytest.mark.parametrize("kind", ["parquet", "sql", "dataset"])
def test_a_file_of_another_kind_is_refused(kind: str, tmp_path: Path) -> None:
    declared = write(kind, tmp_path, TEXTS)
    for path in tmp_path.rglob("rows.*" if kind != "dataset" else "data-*"):
        path.write_bytes(b"id,text\na,b\n" * 500)
    shown = refusal(tmp_path, declared)
    assert ("database" if kind == "sql" else "damaged") in shown
    assert str(tmp_path) not in shown, "paths are relative to the project"


@pytest.mark.parametrize("kind", ["parquet", "dataset"])
def test_a_truncated_file_is_refused(kind: str, tmp_path: Path) -> None:
    declared = write(kind, tmp_path, TEXTS)
    for path in tmp_path.rglob("rows.*" if kind != "dataset" else "data-*"):
        path.write_bytes(path.read_bytes()[:-200])
    assert "damaged" in refusal(tmp_path, declared)


@pytest.mark.parametrize("kind", KINDS)
def test_survey_counts_and_finds_contradictions(kind: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    declared = write(kind, tmp_path, [*TEXTS, TEXTS[0], {**TEXTS[1], "id": ""}])
    found = survey(open_source(declared, tmp_path), work)
    assert (found.source, found.rows, found.broken, found.repeated) == ("things", 7, 1, 1)
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_the_first_rows(kind: str, tmp_path: Path) -> None:
    source = opened(kind, tmp_path, TEXTS)
    assert list(source.sample(3)) == list(source.rows())[:3]
    assert list(source.sample(100)) == list(source.rows())
    assert len(list(open_source(declare(kind, limit=2), tmp_path).sample(3))) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_an_absent_source_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        list(open_source(declare(kind), tmp_path).sample(3))
