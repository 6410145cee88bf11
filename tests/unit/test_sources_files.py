"""Which files a source reads, in which order, and how those that can't be read are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fafo_build.errors import SourceError
from fafo_build.project.declaration import Source as Declared
from fafo_run.sources.view import Survey, open_source, survey
from tests.source_harness import declare, read, refusal


def write(root: Path, name: str, *keys: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f'{{"id": "{key}"}}\n' for key in keys))


def keys(root: Path, *paths: str, **more: str) -> list[str]:
    return [row.key for row in read(root, declare("jsonl", path=paths, **more))]


def test_globs_are_sorted_and_paths_keep_their_order(tmp_path: Path) -> None:
    for name in ("b", "c", "a"):
        write(tmp_path, f"data/{name}.jsonl", name)
    write(tmp_path, "first.jsonl", "z")
    assert keys(tmp_path, "first.jsonl", "data/*.jsonl") == ["z", "a", "b", "c"]


def test_a_file_that_two_patterns_match_is_read_once(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "a")
    write(tmp_path, "b.jsonl", "b")
    assert keys(tmp_path, "b.jsonl", "*.jsonl") == ["b", "a"]


def test_globs_go_into_folders(tmp_path: Path) -> None:
    write(tmp_path, "data/x/one.jsonl", "1")
    write(tmp_path, "data/y/z/two.jsonl", "2")
    assert keys(tmp_path, "data/**/*.jsonl") == ["1", "2"]


def test_a_name_with_brackets_is_a_name_where_such_a_file_is(tmp_path: Path) -> None:
    write(tmp_path, "rows[1].jsonl", "a")
    assert keys(tmp_path, "rows[1].jsonl") == ["a"]


def test_absolute_paths_and_globs(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere, "a.jsonl", "a")
    project = tmp_path / "project"
    project.mkdir()
    assert keys(project, str(elsewhere / "a.jsonl")) == ["a"]
    assert keys(project, f"{elsewhere}/*.jsonl") == ["a"]
    (row,) = read(project, declare("jsonl", path=(str(elsewhere / "a.jsonl"),)))
    assert row.where == f"{elsewhere}/a.jsonl:1"


def test_a_glob_without_a_match_is_refused_by_name(tmp_path: Path) -> None:
    shown = refusal(tmp_path, declare("jsonl", path=("data/*.jsonl",)))
    assert shown.startswith("fafo.toml: source.things.path: no file matches data/*.jsonl\n")
    shown = refusal(tmp_path, declare("jsonl", path=("data/*.jsonl", "[ab].jsonl")))
    assert shown.startswith("fafo.toml: source.things.path: no file matches data/*.jsonl, [ab].jsonl\n")


def test_a_glob_without_a_match_beside_others_is_told_and_no_hindrance(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "a")
    source = open_source(declare("jsonl", path=("data/*.jsonl", "a.jsonl")), tmp_path)
    assert survey(source, tmp_path) == Survey("things", 1, 0, 0, ("data/*.jsonl",))
    write(tmp_path, "data/b.jsonl", "b")
    assert survey(source, tmp_path) == Survey("things", 2, 0, 0)


def test_a_file_that_isnt_there_is_refused_though_a_glob_matches(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "a")
    assert "b.jsonl isn't there" in refusal(tmp_path, declare("jsonl", path=("*.jsonl", "b.jsonl")))


@pytest.mark.parametrize("name", ["ROWS.JSONL", "rows.ndjson"])
def test_the_ending_says_the_format(name: str, tmp_path: Path) -> None:
    write(tmp_path, name, "a")
    assert keys(tmp_path, name) == ["a"]


def test_an_unknown_ending_needs_a_declared_format(tmp_path: Path) -> None:
    write(tmp_path, "rows.txt", "a")
    shown = refusal(tmp_path, declare("jsonl", path=("rows.txt",)))
    assert shown.startswith("fafo.toml: source.things.format: the ending of rows.txt says no format\n")
    assert keys(tmp_path, "rows.txt", format="jsonl") == ["a"]


def test_several_formats_in_one_source_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "a")
    (tmp_path / "a.csv").write_text("id\na\n")
    assert "files of several formats: csv, jsonl" in refusal(tmp_path, declare("jsonl", path=("a.*",)))


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    shown = refusal(tmp_path, declare("jsonl", path=("data",)))
    assert "data is a folder" in shown
    assert 'type = "dataset"' in shown


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    assert "isn't a regular file" in refusal(tmp_path, declare("jsonl"))


def test_a_remote_path_is_refused(tmp_path: Path) -> None:
    assert "isn't a local path" in refusal(tmp_path, declare("jsonl", path=("s3://bucket/rows.jsonl",)))


def test_one_empty_file_of_many_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "a")
    write(tmp_path, "b.jsonl")
    assert refusal(tmp_path, declare("jsonl", path=("*.jsonl",))) == (
        "b.jsonl: source.things.path: is empty\n  cure: put rows into it, or leave it out of the source"
    )
    (tmp_path / "b.jsonl").write_text(" \n\n")
    assert refusal(tmp_path, declare("jsonl", path=("*.jsonl",))).startswith(
        "b.jsonl: source.things.path: has no rows\n  cure: put rows into it, or leave it out"
    )


def test_an_only_file_that_is_empty_cannot_be_left_out(tmp_path: Path) -> None:
    write(tmp_path, "rows.jsonl")
    assert refusal(tmp_path, declare("jsonl")) == (
        "rows.jsonl: source.things.path: is empty\n  cure: put rows into it, or name another file"
    )


def test_parquet_may_have_no_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([], pa.string())}), tmp_path / "rows.parquet")
    assert read(tmp_path, declare("parquet")) == []


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "rows.jsonl", "a")

    def forbidden(*_: object, **__: object) -> None:
        # Tests may run as root, whom no mode bits stop.
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", forbidden)
    assert refusal(tmp_path, declare("jsonl")) == "rows.jsonl: can't be read: Permission denied"


@pytest.mark.parametrize(
    "declared",
    [
        declare("jsonl", path=("x" * 300 + ".jsonl",)),
        declare("jsonl", path=("x" * 300 + "*.jsonl",)),
        declare("dataset", path=("x" * 300,)),
        declare("sql", url="sqlite:///" + "x" * 300),
    ],
    ids=["file", "glob", "dataset", "sql"],
)
def test_what_the_system_doesnt_look_for_is_refused(declared: Declared, tmp_path: Path) -> None:
    # As a folder that may not be searched, whoever runs the test.
    assert "File name too long" in refusal(tmp_path, declared)


def test_csv_files_of_one_source_have_the_same_columns_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,x\n")
    (tmp_path / "b.csv").write_text("text,id\ny,2\n")
    rows = read(tmp_path, declare("csv", path=("*.csv",)))
    assert [row.key for row in rows] == ["1", "2"]
    (tmp_path / "c.csv").write_text("id,note\n3,z\n")
    shown = refusal(tmp_path, declare("csv", path=("*.csv",)))
    assert shown.startswith('c.csv: its columns aren\'t those of a.csv: "note", "text" stand in one')


def test_a_sample_opens_no_more_files_than_it_needs(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,x\n2,y\n")
    (tmp_path / "b.csv").write_text("id,id\n3,z\n")
    source = open_source(declare("csv", path=("*.csv",)), tmp_path)
    assert [row.key for row in source.sample(2)] == ["1", "2"]
    with pytest.raises(SourceError, match="is there twice"):
        list(source.sample(3))


def test_parquet_reads_row_groups_of_several_files(tmp_path: Path) -> None:
    for name, ids in (("a", range(2500)), ("b", range(2500, 2600))):
        pq.write_table(pa.table({"id": list(ids)}), tmp_path / f"{name}.parquet", row_group_size=700)
    rows = read(tmp_path, declare("parquet", path=("*.parquet",)))
    assert [row.key for row in rows] == [str(n) for n in range(2600)]
    assert [rows[0].where, rows[2499].where, rows[2500].where] == [
        "a.parquet row 1",
        "a.parquet row 2500",
        "b.parquet row 1",
    ]


def test_parquet_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    table = pa.table([pa.array([1]), pa.array([2])], names=["id", "id"])
    pq.write_table(table, tmp_path / "rows.parquet")
    assert 'rows.parquet: the column "id" is there twice' in refusal(tmp_path, declare("parquet"))


def test_parquet_damaged_in_the_middle_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [f"key-{n}" * 9 for n in range(999)]}), tmp_path / "rows.parquet")
    data = bytearray((tmp_path / "rows.parquet").read_bytes())
    data[4 : len(data) // 2] = b"\xff" * (len(data) // 2 - 4)
    (tmp_path / "rows.parquet").write_bytes(data)
    with pytest.raises(Exception, match="damaged") as caught:
        read(tmp_path, declare("parquet"))
    assert type(caught.value).__name__ == "SourceError"
