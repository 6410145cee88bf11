"""Lines of a text file as bytes, for JSONL and CSV: a byte order mark is dropped, other encodings refused."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from fafo_build.errors import Problem, SourceError
from fafo_run.sources.paths import DataFile, cant_read

# UTF-32 first: its mark begins with that of UTF-16.
_FOREIGN = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def read_lines(file: DataFile) -> Iterator[bytes]:
    """Yield the file's lines with their ends. Raises `SourceError`."""
    try:
        with file.path.open("rb") as stream:
            for number, line in enumerate(stream):
                yield _first(line, file) if number == 0 else line
    except OSError as error:
        raise cant_read(file.shown, error) from error


def not_utf8(line: bytes) -> str | None:
    """Return what makes a line no UTF-8, or None when it is."""
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte 0x{line[error.start]:02x} at position {error.start + 1}"
    return None


def _first(line: bytes, file: DataFile) -> bytes:
    for mark, encoding in _FOREIGN.items():
        if line.startswith(mark):
            raise SourceError(
                Problem(
                    f"is {encoding}, not UTF-8",
                    file=file.shown,
                    cure=f"convert it: iconv -f {encoding} -t UTF-8",
                )
            )
    return line.removeprefix(codecs.BOM_UTF8)
