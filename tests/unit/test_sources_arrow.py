"""What Arrow's types become: plain JSON, the same whether or not pandas is installed."""

from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fafo_run.item import BrokenRow
from fafo_run.sources.arrow import plain
from tests.source_harness import declare, good, read, refusal

DAY = datetime.date(2024, 2, 29)
MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 15, 250_000)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([True, None]), [True, None]),
        (pa.array([-128, None], pa.int8()), [-128, None]),
        (pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
        (pa.array([0.5, None, float("nan")]), [0.5, None, None]),
        (pa.array([0.5, float("nan")], pa.float16()), [0.5, None]),
        (pa.array([0.5], pa.float32()), [0.5]),
        (pa.array([None, None]), [None, None]),
        (pa.array(["é", None, ""], pa.large_string()), ["é", None, ""]),
        (pa.array(["é"], pa.string_view()), ["é"]),
        (pa.array([b"\0\xff", None, b""]), ["AP8=", None, ""]),
        (pa.array([b"\0\xff"], pa.large_binary()), ["AP8="]),
        (pa.array([b"\0\xff"], pa.binary(2)), ["AP8="]),
        (pa.array([b"\0\xff"], pa.binary_view()), ["AP8="]),
        (pa.array([decimal.Decimal("-1.50"), None]), ["-1.50", None]),
        (pa.array([decimal.Decimal("1.50")], pa.decimal256(50, 2)), ["1.50"]),
        (pa.array([DAY, None]), ["2024-02-29", None]),
        (pa.array([DAY], pa.date64()), ["2024-02-29"]),
        (pa.array([datetime.date(1, 1, 1)]), ["0001-01-01"]),
        (pa.array([MOMENT, None], pa.timestamp("ms")), ["2024-02-29T12:30:15.25", None]),
        (pa.array([MOMENT], pa.timestamp("us")), ["2024-02-29T12:30:15.25"]),
        (pa.array([MOMENT], pa.timestamp("ns")), ["2024-02-29T12:30:15.25"]),
        (pa.array([1], pa.timestamp("ns")), ["1970-01-01T00:00:00.000000001"]),
        (pa.array([-1], pa.timestamp("s")), ["1969-12-31T23:59:59"]),
        (pa.array([MOMENT], pa.timestamp("s", "Asia/Tokyo")), ["2024-02-29T12:30:15+00:00"]),
        (pa.array([datetime.time(12, 30)], pa.time32("s")), ["12:30:00"]),
        (pa.array([86_399_999_999_999], pa.time64("ns")), ["23:59:59.999999999"]),
        (pa.array([1500, -1500, 0], pa.duration("ms")), ["PT1.5S", "-PT1.5S", "PT0S"]),
        (pa.array([[1, None], None, []]), [[1, None], None, []]),
        (pa.array([["a"], None], pa.large_list(pa.string())), [["a"], None]),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)), [[1, 2], None, [3, 4]]),
        (pa.array([{"a": 1, "b": [DAY]}, None]), [{"a": 1, "b": ["2024-02-29"]}, None]),
        (pa.array([[{"a": b"x"}], None, [None]]), [[{"a": "eA=="}], None, [None]]),
        (
            pa.array([[("k", 1), ("l", None)], None, []], pa.map_(pa.string(), pa.int8())),
            [{"k": 1, "l": None}, None, {}],
        ),
        (pa.array([[(1, DAY)]], pa.map_(pa.int8(), pa.date32())), [[[1, "2024-02-29"]]]),
        (pa.array(["a", "b", None, "a"]).dictionary_encode(), ["a", "b", None, "a"]),
        (pa.array([1, 1, 2]), [1, 1, 2]),
        (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"\x01" * 16], pa.binary(16))),
         ["01010101-0101-0101-0101-010101010101"]),
        (pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"])), ["{}"]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)  # fmt: skip
def test_values(array: Any, expected: list[Any]) -> None:
    found = plain(array)
    assert found.values == expected
    assert json.loads(json.dumps(found.values)) == expected
    assert [type(value) for value in found.values] == [type(value) for value in expected]
    assert found.bad == {}


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[1], [2, 3], None, [4]]),
        pa.array([{"a": [1]}, None, {"a": None}, {"a": [2, 3]}]),
        pa.array([[("k", 1)], None, [], [("l", 2), ("m", 3)]], pa.map_(pa.string(), pa.int8())),
        pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
        pa.array(["a", "b", None, "a"]).dictionary_encode(),
    ],
    ids=lambda array: str(array.type),
)
def test_slices_give_their_own_values(array: Any) -> None:
    whole = plain(array).values
    for start in range(len(array)):
        for length in range(len(array) - start + 1):
            assert plain(array.slice(start, length)).values == whole[start : start + length]


def not_utf8() -> Any:
    return pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffb")]
    )


@pytest.mark.parametrize(
    ("array", "position", "message"),
    [
        (pa.array([0.0, float("-inf")]), 1, "an infinite number has no JSON value"),
        (pa.array([[0.0], None, [1.0, float("inf")]]), 2, "an infinite number has no JSON value"),
        (pa.array([{"a": 1.0}, {"a": float("inf")}]), 1, "an infinite number has no JSON value"),
        (pa.array([0, 2**40], pa.timestamp("s")), 1, "a day outside the years 1 to 9999"),
        (pa.array([0, 2**31 - 1], pa.date32()), 1, "a day outside the years 1 to 9999"),
        (not_utf8(), 1, "not UTF-8"),
    ],
)
def test_a_value_that_json_cannot_hold(array: Any, position: int, message: str) -> None:
    found = plain(array)
    assert found.bad == {position: message}
    assert len(found.values) == len(array)


def test_such_a_value_breaks_its_row_only(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2, 3], "x": [[0.5], [float("inf")], None]})
    pq.write_table(table, tmp_path / "rows.parquet")
    rows = read(tmp_path, declare("parquet"))
    assert [row.key for row in good(rows)] == ["1", "3"]
    assert isinstance(rows[1], BrokenRow)
    assert rows[1].key == "2"
    assert rows[1].message == 'column "x": an infinite number has no JSON value'
    assert rows[1].where == "rows.parquet row 2"


def test_a_type_without_a_json_value_is_refused_by_name(tmp_path: Path) -> None:
    intervals = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    table = pa.table({"id": [1], "span": [None]}).set_column(1, "span", intervals)
    with pa.ipc.new_stream(str(tmp_path / "rows" / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    shown = refusal(tmp_path, declare("dataset"))
    assert 'column "span" has the type month_day_nano_interval, which has no JSON value' in shown
