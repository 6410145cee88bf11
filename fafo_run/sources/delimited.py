"""CSV as RFC 4180 has it, in UTF-8: a header, commas, cells in double quotes that may hold line breaks.

All values are text, and an empty cell is an empty text. A row that can't be read costs that row only: reading
goes on at the next line, also where a quote that nobody closed would swallow the rest of the file.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from itertools import islice

from attrs import frozen

from fafo_build.errors import Problem, SourceError
from fafo_run.item import BrokenRow, Row
from fafo_run.sources.lines import not_utf8, read_lines
from fafo_run.sources.paths import DataFile
from fafo_run.sources.rows import RowMaker

MAX_RECORD = 16 * 1024 * 1024
"""Bytes that one row with line breaks in its cells may have. Ends the search for a closing quote."""

# Possessive, so that a doubled quote is never taken for the end of a cell.
_QUOTED = re.compile(r'"([^"]*+(?:""[^"]*+)*+)"')


class Csv:
    """Reads CSV."""

    def columns(self, file: DataFile, maker: RowMaker) -> tuple[str, ...]:
        """Return the names in the header."""
        for record in _records(file, None):
            return _header(record, file, maker)
        raise SourceError(Problem("has no header", file=file.shown, cure="put the column names in line 1"))

    def has_rows(self, file: DataFile) -> bool:
        """Tell whether anything follows the header."""
        return next(islice(_records(file, None), 1, None), None) is not None

    def rows(self, file: DataFile, maker: RowMaker) -> Iterator[Row | BrokenRow]:
        """Read what follows the header."""
        columns = self.columns(file, maker)
        for record in islice(_records(file, len(columns)), 1, None):
            where = f"{file.shown}:{record.line}"
            if record.problem:
                yield maker.broken({}, where, record.problem, record.raw)
            else:
                yield maker.row(dict(zip(columns, record.cells, strict=True)), where, record.raw)


@frozen
class _Record:
    line: int
    """1-based, where it begins."""
    raw: bytes
    cells: tuple[str, ...] = ()
    problem: str = ""


def _header(record: _Record, file: DataFile, maker: RowMaker) -> tuple[str, ...]:
    problem = record.problem
    if "\r" in "".join(record.cells):
        problem = "lines end with CR alone"
    if problem:
        raise SourceError(Problem(f"the header can't be read: {problem}", file=file.shown, line=record.line))
    maker.check_columns(record.cells, file.shown)
    return record.cells


def _records(file: DataFile, columns: int | None) -> Iterator[_Record]:
    """Yield the records, the header first; with `columns`, others of another width are broken."""
    lines = enumerate(read_lines(file), start=1)
    # Lines that were read in search of a closing quote, and are to be read again by themselves.
    again: deque[tuple[int, bytes]] = deque()
    while True:
        first = again.popleft() if again else next(lines, None)
        if first is None:
            return
        if not first[1].strip(b"\r\n"):
            continue
        record = _parse(first[0], first[1], columns)
        if record is None:
            taken, record = _gather(first, again, lines, columns)
            again.extendleft(reversed(taken))
        yield record


def _gather(
    first: tuple[int, bytes],
    again: deque[tuple[int, bytes]],
    lines: Iterator[tuple[int, bytes]],
    columns: int | None,
) -> tuple[list[tuple[int, bytes]], _Record]:
    """Read on to the end of a record that line `first` leaves open: (lines to read again, the record)."""
    number, raw = first
    taken: list[tuple[int, bytes]] = []
    parts, size, quotes = [raw], len(raw), raw.count(b'"')
    while size <= MAX_RECORD:
        line = again.popleft() if again else next(lines, None)
        if line is None:
            break
        taken.append(line)
        parts.append(line[1])
        size += len(line[1])
        quotes += line[1].count(b'"')
        if quotes % 2 == 0:
            record = _parse(number, b"".join(parts), columns)
            if record is None or record.problem:
                break
            return [], record
    return taken, _Record(
        number, raw, problem=not_utf8(raw) or f"line {number} has a quote that isn't closed"
    )


def _parse(number: int, raw: bytes, columns: int | None) -> _Record | None:
    """Return the record in `raw`, or None when a quoted cell is open at its end."""
    # Surrogates stand for bytes that aren't UTF-8, so that the cells can be told apart all the same.
    text = raw.decode("utf-8", "surrogateescape").removesuffix("\n").removesuffix("\r")
    try:
        cells = split(text)
    except ValueError as error:
        return _Record(number, raw, problem=f"line {number}: {error}")
    if cells is None:
        return None
    problem = not_utf8(raw) or ""
    if b"\0" in raw:
        problem = "a NUL byte"
    elif columns is not None and len(cells) != columns:
        problem = f"line {number} has {_count(len(cells))}, the header has {columns}"
    return _Record(number, raw, tuple(cells), problem)


def split(text: str) -> list[str] | None:
    """Return the cells of a record, or None when it ends within a quoted cell.

    A quote inside an unquoted cell is text. Raises `ValueError` for what no record can be.
    """
    if '"' not in text:
        return text.split(",")
    cells: list[str] = []
    at = 0
    while True:
        if text.startswith('"', at):
            match = _QUOTED.match(text, at)
            if match is None:
                return None
            cells.append(match[1].replace('""', '"'))
            at = match.end()
            if at < len(text) and text[at] != ",":
                raise ValueError(f"text after the closing quote of column {len(cells)}")
        else:
            end = text.find(",", at)
            cell = text[at:] if end < 0 else text[at:end]
            if "\n" in cell:
                raise ValueError(f"a line break in column {len(cells) + 1}, which isn't quoted")
            cells.append(cell)
            at += len(cell)
        if at >= len(text):
            return cells
        at += 1


def _count(columns: int) -> str:
    return "1 column" if columns == 1 else f"{columns} columns"
