"""Dataset folders, written by the real `datasets` package."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

from tests.source_harness import declare, good, read, refusal

ROWS = {"id": ["a", "b", "c", "d", "e"], "text": ["one", "two", None, "four", "five"]}


def test_shards_are_read_in_order(tmp_path: Path) -> None:
    Dataset.from_dict(ROWS).save_to_disk(tmp_path / "rows", num_shards=3)
    rows = good(read(tmp_path, declare("dataset")))
    assert [row.key for row in rows] == ROWS["id"]
    assert [row.fields["text"] for row in rows] == ROWS["text"]
    assert rows[4].where == "rows row 5"


def test_features(tmp_path: Path) -> None:
    features = Features(
        {
            "id": Value("int64"),
            "label": ClassLabel(names=["no", "yes"]),
            "tags": List(Value("string")),
            "nested": {"when": Value("timestamp[us]"), "points": List({"x": Value("float32")})},
            "nothing": Value("null"),
            "raw": Value("binary"),
        }
    )
    row = {
        "id": 1,
        "label": "yes",
        "tags": ["a", None],
        "nested": {"when": datetime.datetime(2024, 5, 1, 12), "points": [{"x": 0.5}]},
        "nothing": None,
        "raw": b"\0",
    }
    Dataset.from_list([row], features=features).save_to_disk(tmp_path / "rows")
    (found,) = good(read(tmp_path, declare("dataset")))
    assert found.fields == {
        "id": 1,
        # The number, as `datasets` gives it when it is iterated over.
        "label": 1,
        "tags": ["a", None],
        "nested": {"when": "2024-05-01T12:00:00", "points": [{"x": 0.5}]},
        "nothing": None,
        "raw": "AA==",
    }


def test_a_selection_is_saved_as_rows(tmp_path: Path) -> None:
    dataset = Dataset.from_dict(ROWS).select([3, 1])
    dataset.save_to_disk(tmp_path / "rows")
    assert [row.key for row in read(tmp_path, declare("dataset"))] == ["d", "b"]


def test_many_rows_in_one_batch(tmp_path: Path) -> None:
    Dataset.from_dict({"id": list(range(5000))}).save_to_disk(tmp_path / "rows")
    rows = read(tmp_path, declare("dataset"))
    assert [row.key for row in rows] == [str(n) for n in range(5000)]
    assert rows[4999].where == "rows row 5000"


def test_a_folder_of_several_splits_is_refused(tmp_path: Path) -> None:
    DatasetDict(train=Dataset.from_dict(ROWS), test=Dataset.from_dict(ROWS)).save_to_disk(tmp_path / "rows")
    shown = refusal(tmp_path, declare("dataset"))
    assert "rows has several splits: test, train" in shown
    assert 'path = "rows/test"' in shown
    assert len(read(tmp_path, declare("dataset", path=("rows/train",)))) == 5


def test_another_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    assert "rows has no state.json" in refusal(tmp_path, declare("dataset"))


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("")
    assert "rows is a file, not a folder" in refusal(tmp_path, declare("dataset"))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"_data_files": [{"name": 1}]}', '{"_data_files": null}', "\udcff"]
)
def test_a_broken_state_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "state.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert refusal(tmp_path, declare("dataset")).startswith("rows/state.json: ")


def test_a_state_without_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "state.json").write_text('{"_data_files": []}')
    assert refusal(tmp_path, declare("dataset")) == "rows: has no data files"


def test_a_missing_shard_is_refused_by_name(tmp_path: Path) -> None:
    Dataset.from_dict(ROWS).save_to_disk(tmp_path / "rows", num_shards=2)
    (tmp_path / "rows" / "data-00001-of-00002.arrow").unlink()
    shown = refusal(tmp_path, declare("dataset"))
    assert shown == "rows/data-00001-of-00002.arrow: can't be read: No such file or directory"


@pytest.mark.parametrize("kept", [0, 1, 100, -8, -1])
def test_a_shard_that_is_cut_short_is_refused_however_it_is_cut(kept: int, tmp_path: Path) -> None:
    # Without its last 8 bytes it ends between two batches, and Arrow would read it without a word.
    Dataset.from_dict(ROWS).save_to_disk(tmp_path / "rows")
    (shard,) = (tmp_path / "rows").glob("*.arrow")
    shard.write_bytes(shard.read_bytes()[:kept])
    shown = refusal(tmp_path, declare("dataset"))
    assert shown.startswith(f"rows/{shard.name}: source.things.path: is {'damaged' if kept else 'empty'}")


def test_a_selection_beside_the_rows_is_refused(tmp_path: Path) -> None:
    Dataset.from_dict(ROWS).save_to_disk(tmp_path / "rows")
    path = tmp_path / "rows" / "state.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "_indices_data_files": [{"filename": "indices.arrow"}]}))
    assert "holds a selection of rows beside the rows" in refusal(tmp_path, declare("dataset"))
