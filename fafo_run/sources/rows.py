"""What every source does with the columns of one row: finds its key, hashes its content, or says why not.

It knows nothing of files, databases or Arrow.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from attrs import frozen

from fafo_build.errors import Problem, SourceError
from fafo_build.project.declaration import Source as Declared
from fafo_run.identity import content_hash
from fafo_run.item import BrokenRow, Row, Value

CONTENT_KEY = ("content",)
"""The declared key that stands for the hash of the row's content."""

KEY_FROM_CONTENT = 32
"""Hex digits of the content hash that make a key."""


def declared_error(source: str, field: str, message: str, *, cure: str | None = None) -> SourceError:
    """Return the error of something that fafo.toml says about a source."""
    return SourceError(Problem(message, file="fafo.toml", field=f"source.{source}.{field}", cure=cure))


@frozen
class RowMaker:
    """Makes rows of one source out of columns."""

    source: str
    """Its declared name."""
    key: tuple[str, ...]
    """As declared: columns, or `CONTENT_KEY`."""

    @classmethod
    def of(cls, declared: Declared) -> RowMaker:
        """Return the maker for a declared source."""
        return cls(declared.name, declared.key)

    def check_columns(self, columns: Sequence[str], shown: str) -> None:
        """Raise `SourceError` when `columns` of the file `shown` repeat a name or lack a key column."""
        twice = sorted({name for name in columns if columns.count(name) > 1})
        if twice:
            raise SourceError(
                Problem(
                    f"the column {quoted(twice)} is there twice",
                    file=shown,
                    cure="give each column a name of its own",
                )
            )
        self.check_key(columns, shown)

    def check_key(self, columns: Sequence[str], shown: str) -> None:
        """Raise `SourceError` when a key column is none of `columns`, which are those of the file `shown`."""
        if self.key == CONTENT_KEY:
            return
        missing = [name for name in self.key if name not in columns]
        if missing:
            near = difflib.get_close_matches(missing[0], columns, 1)
            hint = f"did you mean {quoted(near)}? " if near else ""
            raise declared_error(
                self.source,
                "key",
                f"{shown} has no column {quoted(missing)}",
                cure=f"{hint}its columns are {quoted(columns)}",
            )

    def row(self, fields: Mapping[str, Value], where: str, raw: bytes | None = None) -> Row | BrokenRow:
        """Return the row of these columns, or a broken one when it has no key or can't be hashed.

        `raw` is the row as it stands in its file, where there is such a thing.
        """
        try:
            content = content_hash(fields)
        except OverflowError:
            return self.broken(fields, where, "a whole number doesn't fit 64 bits", raw)
        except UnicodeEncodeError:
            return self.broken(fields, where, "not UTF-8", raw)
        key = self._key(fields, content)
        if key.problem:
            return self.broken(fields, where, key.problem, raw)
        return Row(self.source, key.text, fields, content, where)

    def broken(
        self, fields: Mapping[str, Value], where: str, message: str, raw: bytes | None = None
    ) -> BrokenRow:
        """Return a broken row; `fields` is what could be read of it, possibly nothing."""
        if raw is None:
            # Not the canonical encoding: the fields may be what that one refuses.
            raw = repr(sorted(fields.items())).encode("utf-8", "surrogateescape")
        content = hashlib.sha256(raw).digest()
        name = f"!{content.hex()[:16]}"
        if self.key != CONTENT_KEY:
            key = self._key(fields, content)
            name = name if key.problem else key.text
        return BrokenRow(self.source, name, content, where, message)

    def _key(self, fields: Mapping[str, Value], content: bytes) -> _Key:
        if self.key == CONTENT_KEY:
            return _Key(content.hex()[:KEY_FROM_CONTENT])
        for name in self.key:
            problem = _key_problem(name, fields.get(name), there=name in fields)
            if problem:
                return _Key("", problem)
        if len(self.key) == 1:
            return _Key(str(fields[self.key[0]]))
        return _Key(msgspec.json.encode([fields[name] for name in self.key]).decode())


@frozen
class _Key:
    text: str
    problem: str = ""
    """Why there is no key; empty when there is."""


def _key_problem(name: str, value: Value, *, there: bool) -> str:
    if not there:
        return f'the key column "{name}" is missing'
    if value is None:
        return f'the key column "{name}" is null'
    if value == "":
        return f'the key column "{name}" is empty'
    if isinstance(value, bool) or not isinstance(value, str | int):
        return f'the key column "{name}" is neither text nor a whole number'
    if isinstance(value, str) and not _is_unicode(value):
        return f'the key column "{name}" is not UTF-8'
    return ""


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def quoted(names: Iterable[str]) -> str:
    """Return names as people read them: `"a", "b"`."""
    return ", ".join(f'"{name}"' for name in names)
