"""Arrow data as plain JSON values. docs/sources.md has the table of what becomes what.

Conversions are by Arrow type and in whole numbers: `as_py` would depend on whether pandas is installed, and
lose nanoseconds.
"""

from __future__ import annotations

import base64
import datetime
import math
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute
from attrs import field, frozen

from fafo_build.errors import Problem, SourceError
from fafo_run.item import BrokenRow, Row, Value
from fafo_run.sources.rows import RowMaker

BATCH = 1024
"""Rows that are in memory at once."""

_compute: Any = pyarrow.compute
"""Its functions are made at import, where no type checker sees them."""

Array = Any
"""A `pyarrow.Array`; pyarrow's own types say less than they promise."""


@frozen
class Plain:
    """An array as plain values."""

    values: list[Value]
    bad: dict[int, str] = field(factory=dict)
    """Positions whose value can't be had, and why; their entry in `values` is None."""


def rows_of(
    batch: Any, maker: RowMaker, first: int, where: Callable[[int], str]
) -> Iterator[Row | BrokenRow]:
    """Yield the rows of a record batch; `first` is the number of its first row, for `where`."""
    names = batch.schema.names
    columns = [plain(column) for column in batch.columns]
    bad: dict[int, str] = {}
    for name, column in zip(names, columns, strict=True):
        for position, message in column.bad.items():
            bad.setdefault(position, f'column "{name}": {message}')
    for position, values in enumerate(zip(*(column.values for column in columns), strict=True)):
        fields = dict(zip(names, values, strict=True))
        if position in bad:
            yield maker.broken(fields, where(first + position), bad[position])
        else:
            yield maker.row(fields, where(first + position))


def check_schema(schema: Any, maker: RowMaker, shown: str) -> tuple[str, ...]:
    """Return the column names. Raises `SourceError` for names or types that can't be used."""
    maker.check_columns(schema.names, shown)
    for column in schema:
        try:
            plain(pa.array([], column.type))
        except (TypeError, pa.ArrowNotImplementedError) as error:
            raise SourceError(
                Problem(
                    f'column "{column.name}" has the type {column.type}, which has no JSON value',
                    file=shown,
                    cure="leave the column out of the file",
                )
            ) from error
    return tuple(schema.names)


def plain(array: Array) -> Plain:
    """Return an array's values. Raises `TypeError` for a type that has no JSON value."""
    kind = array.type
    for is_kind, convert in _CONVERTERS:
        if is_kind(kind):
            return convert(array)
    raise TypeError(f"no JSON value for {kind}")


def _as_is(array: Array) -> Plain:
    return Plain(array.to_pylist())


def _text(array: Array) -> Plain:
    try:
        return Plain(array.to_pylist())
    except UnicodeDecodeError:
        return _each(array.cast(pa.large_binary()), bytes.decode)


def _float(array: Array) -> Plain:
    # NaN is how pandas writes a missing value.
    values = [None if value is None or value != value else float(value) for value in array.to_pylist()]
    bad = {
        position: "an infinite number has no JSON value"
        for position, value in enumerate(values)
        if value is not None and math.isinf(value)
    }
    for position in bad:
        values[position] = None
    return Plain(values, bad)


def _decimal(array: Array) -> Plain:
    return _each(array, str)


def _binary(array: Array) -> Plain:
    return _each(array, lambda value: base64.b64encode(value).decode())


def _date(array: Array) -> Plain:
    if pa.types.is_date32(array.type):
        return _each(array.cast(pa.int32()), _day)
    return _each(array.cast(pa.int64()), lambda value: _day(value // 86_400_000))


def _timestamp(array: Array) -> Plain:
    digits = _DIGITS[array.type.unit]
    zone = "+00:00" if array.type.tz else ""

    def moment(value: int) -> str:
        seconds, rest = divmod(value, 10**digits)
        return (_EPOCH + datetime.timedelta(seconds=seconds)).isoformat() + _fraction(rest, digits) + zone

    return _each(array.cast(pa.int64()), moment)


def _time(array: Array) -> Plain:
    digits = _DIGITS[array.type.unit]

    def moment(value: int) -> str:
        seconds, rest = divmod(value, 10**digits)
        return (_EPOCH + datetime.timedelta(seconds=seconds)).time().isoformat() + _fraction(rest, digits)

    return _each(array.cast(pa.int32() if pa.types.is_time32(array.type) else pa.int64()), moment)


def _duration(array: Array) -> Plain:
    digits = _DIGITS[array.type.unit]

    def span(value: int) -> str:
        seconds, rest = divmod(abs(value), 10**digits)
        return f"{'-' if value < 0 else ''}PT{seconds}{_fraction(rest, digits)}S"

    return _each(array.cast(pa.int64()), span)


def _struct(array: Array) -> Plain:
    names = [array.type.field(number).name for number in range(array.type.num_fields)]
    there = array.is_valid().to_pylist()
    if not names:
        return Plain([{} if valid else None for valid in there])
    children = [plain(child) for child in array.flatten()]
    values = [
        dict(zip(names, row, strict=True)) if valid else None
        for valid, row in zip(there, zip(*(child.values for child in children), strict=True), strict=True)
    ]
    return Plain(values, {position: why for child in children for position, why in child.bad.items()})


def _list(array: Array) -> Plain:
    items = plain(array.flatten())
    values: list[Value] = []
    bad: dict[int, str] = {}
    at = 0
    for position, length in enumerate(_compute.list_value_length(array).to_pylist()):
        if length is None:
            values.append(None)
            continue
        values.append(items.values[at : at + length])
        if items.bad:
            why = next((items.bad[n] for n in range(at, at + length) if n in items.bad), None)
            if why is not None:
                bad[position] = why
        at += length
    return Plain(values, bad)


def _map(array: Array) -> Plain:
    kind = array.type
    pairs = _list(array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))))
    named = pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type)
    values: list[Value] = []
    for position, row in enumerate(pairs.values):
        if row is None or position in pairs.bad:
            values.append(None)
        elif named:
            values.append({pair["key"]: pair["value"] for pair in row})
        else:
            values.append([[pair["key"], pair["value"]] for pair in row])
    return Plain(values, pairs.bad)


def _extension(array: Array) -> Plain:
    if array.type.extension_name == "arrow.uuid":
        return _each(array.storage, lambda value: str(uuid.UUID(bytes=value)))
    return plain(array.storage)


def _each(array: Array, convert: Callable[[Any], Value]) -> Plain:
    values: list[Value] = []
    bad: dict[int, str] = {}
    for position, value in enumerate(array.to_pylist()):
        try:
            values.append(None if value is None else convert(value))
        except UnicodeDecodeError:
            values.append(None)
            bad[position] = "not UTF-8"
        except OverflowError:
            values.append(None)
            bad[position] = "a day outside the years 1 to 9999"
    return Plain(values, bad)


def _day(days: int) -> str:
    return (_EPOCH.date() + datetime.timedelta(days=days)).isoformat()


def _fraction(rest: int, digits: int) -> str:
    """Return `.25` for 250 thousandths: the same text whatever unit the column counts in."""
    return f".{rest:0{digits}d}".rstrip("0") if rest else ""


_EPOCH = datetime.datetime(1970, 1, 1)
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}

# The order matters in one place: a map is a list to some of pyarrow's predicates.
_CONVERTERS: tuple[tuple[Callable[[Any], bool], Callable[[Array], Plain]], ...] = (
    (lambda kind: isinstance(kind, pa.BaseExtensionType), _extension),
    (pa.types.is_dictionary, lambda array: plain(array.dictionary_decode())),
    (pa.types.is_run_end_encoded, lambda array: plain(_compute.run_end_decode(array))),
    (pa.types.is_null, _as_is),
    (pa.types.is_boolean, _as_is),
    (pa.types.is_integer, _as_is),
    (pa.types.is_floating, _float),
    (pa.types.is_string, _text),
    (pa.types.is_large_string, _text),
    (pa.types.is_string_view, _text),
    (pa.types.is_binary, _binary),
    (pa.types.is_large_binary, _binary),
    (pa.types.is_fixed_size_binary, _binary),
    (pa.types.is_binary_view, _binary),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_date, _date),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_time, _time),
    (pa.types.is_duration, _duration),
    (pa.types.is_struct, _struct),
    (pa.types.is_map, _map),
    (pa.types.is_list, _list),
    (pa.types.is_large_list, _list),
    (pa.types.is_fixed_size_list, _list),
)
