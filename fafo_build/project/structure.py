"""A TOML table becomes one of the nouns of `declaration`, or a list of everything that is wrong with it.

cattrs builds the nouns and gathers the errors; what a value may be stands in `values`, `checks` and `rules`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin

import attrs
from cattrs import ClassValidationError, Converter, ForbiddenExtraKeysError, IterableValidationError
from cattrs.gen import make_dict_structure_fn, override

from fafo_build.project import checks, rules, values
from fafo_build.project.declaration import Engine, Message, Model, PromptClass
from fafo_build.project.values import At, MistakeError, Path

Noun = TypeVar("Noun")

_DOUBLE_BRACKETS = "write its head with double brackets, as in [[message]]"

# No key of a TOML file that anybody wrote by hand begins with NUL.
_GIVEN = "\0"

_KEYS: Mapping[type, Mapping[str, str]] = {
    Model: {"name": _GIVEN + "name"},
    Engine: {"name": _GIVEN + "name"},
    Message: {"line": _GIVEN + "line"},
    PromptClass: {"name": _GIVEN + "name", "file": _GIVEN + "file", "messages": "message"},
}
"""The keys of fields that are called otherwise in a file, or that a file doesn't say."""


@attrs.frozen
class Complaint:
    """One thing that is wrong in a table."""

    path: Path
    """From the top of the file."""
    message: str
    cure: str | None
    at: At


def fields_by_key(noun: type) -> dict[str, attrs.Attribute[Any]]:
    """Return the fields that a table of this noun may say, by their keys, in the order of the noun."""
    names = _KEYS.get(noun, {})
    keys = {names.get(field.name, field.name): field for field in attrs.fields(noun)}
    return {key: field for key, field in keys.items() if not key.startswith(_GIVEN)}


def keys_of(noun: type) -> tuple[str, ...]:
    """Return the keys that a table of this noun may have, in the order of the noun's fields."""
    return tuple(fields_by_key(noun))


def given(table: Any, **fields: Any) -> Any:
    """Return a table with fields that its file doesn't say; what isn't a table comes back as it is."""
    if not isinstance(table, Mapping):
        return table
    return {**table, **{_GIVEN + name: value for name, value in fields.items()}}


def structure(table: Any, noun: type[Noun], path: Path) -> tuple[Noun | None, list[Complaint]]:
    """Return the noun that a table declares, and no complaint; or None, and all complaints.

    `path` is the table's own, from the top of its file.
    """
    try:
        return _converter().structure(table, noun), []
    except (ClassValidationError, IterableValidationError, MistakeError) as error:
        found = list(_complaints(error, path, noun))
        return None, sorted(found, key=lambda complaint: complaint.at == "table")


@cache
def _converter() -> Converter:
    converter = Converter(forbid_extra_keys=True, detailed_validation=True)
    converter.register_structure_hook(str, values.text)
    converter.register_structure_hook(int, values.whole)
    converter.register_structure_hook(float, values.number)
    converter.register_structure_hook(bool, values.flag)
    converter.register_structure_hook(datetime.date, values.date)
    converter.register_structure_hook_func(
        _is_literal, lambda value, kind: values.one_of(value, get_args(kind))
    )
    converter.register_structure_hook_func(
        _is_tuple,
        lambda value, kind: tuple(_listed(converter, value, get_args(kind)[0])),
    )
    converter.register_structure_hook_func(_is_mapping, lambda value, _: values.plain(_table(value)))
    converter.register_structure_hook_factory(attrs.has, lambda noun: _hook(converter, noun))
    return converter


def _is_literal(kind: Any) -> bool:
    return bool(get_origin(kind) is Literal)


def _is_tuple(kind: Any) -> bool:
    return bool(get_origin(kind) is tuple)


def _is_mapping(kind: Any) -> bool:
    return bool(get_origin(kind) is Mapping)


def _hook(converter: Converter, noun: type) -> Any:
    """Return the function that makes a noun: cattrs' own, and the rules over the table's keys."""
    names = _KEYS.get(noun, {})
    overrides: dict[str, Any] = {
        field.name: override(
            rename=names.get(field.name), struct_hook=_field_hook(converter, noun, field.name)
        )
        for field in attrs.fields(noun)
    }
    make: Any = make_dict_structure_fn(noun, converter, **overrides)
    rule = rules.RULES.get(noun)

    def hook(value: Any, kind: type) -> Any:
        table = _table(value)
        wrong: list[Exception] = []
        made = None
        try:
            made = make(table, kind)
        except ClassValidationError as error:
            wrong.extend(error.exceptions)
        if rule is not None:
            wrong.extend(rule(table))
        if wrong:
            raise ClassValidationError(noun.__name__, wrong, noun)
        return made

    return hook


def _field_hook(converter: Converter, noun: type, name: str) -> Any:
    parse = checks.PARSERS.get(noun, {}).get(name)
    check = checks.CHECKS.get(noun, {}).get(name)

    def hook(value: Any, kind: Any) -> Any:
        made = parse(value) if parse else converter.structure(value, kind)
        if check is not None:
            check(made)
        return made

    return hook


def _table(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        raise MistakeError(
            "expected one table, got a list of tables", cure="write its head with single brackets, and once"
        )
    raise MistakeError(
        f"expected a table, got {values.describe(value)}",
        cure="a table is a head such as [sampling], and its keys below",
    )


def _listed(converter: Converter, value: Any, kind: Any) -> list[Any]:
    """Return a list's values; a single string stands for a list of one."""
    if attrs.has(kind) and not isinstance(value, list):
        raise MistakeError(f"expected a list of tables, got {values.describe(value)}", cure=_DOUBLE_BRACKETS)
    if kind is str and isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        what = "a string or a list of strings" if kind is str else "a list"
        raise MistakeError(f"expected {what}, got {values.describe(value)}", cure=values.as_list(value, kind))
    made: list[Any] = converter.structure(value, list[kind])
    return made


def _complaints(error: Exception, path: Path, noun: type) -> Iterator[Complaint]:
    """Yield what an exception of `structure` says, with the paths that cattrs noted on it."""
    if isinstance(error, ClassValidationError):
        noted, others = error.group_exceptions()
        names = _KEYS.get(error.cl, {})
        misspelt = _misspelt(others, error.cl)
        for inner, attribute in noted:
            key = names.get(attribute.name, attribute.name)
            if isinstance(inner, KeyError) and key in misspelt:
                continue
            if isinstance(inner, KeyError):
                yield Complaint(path, f"{key} is missing", rules.MISSING[error.cl, attribute.name], "table")
            else:
                for complaint in _complaints(inner, (*path, key), error.cl):
                    yield (
                        complaint
                        if complaint.cure
                        else attrs.evolve(complaint, cure=_default(attribute.name, error.cl))
                    )
        for inner in others:
            if not (isinstance(inner, MistakeError) and misspelt.intersection(inner.lacks)):
                yield from _complaints(inner, path, error.cl)
    elif isinstance(error, IterableValidationError):
        for inner, element in error.group_exceptions()[0]:
            yield from _complaints(inner, (*path, element.index), noun)
    elif isinstance(error, ForbiddenExtraKeysError):
        for key in sorted(error.extra_fields):
            yield Complaint((*path, key), "there is no such key", unknown(key, error.cl), "key")
    elif isinstance(error, MistakeError):
        yield Complaint((*path, *error.path), error.message, error.cure, error.at)
    else:
        raise error


def _misspelt(errors: Sequence[Exception], noun: type) -> set[str]:
    """Return the keys that are there under a wrong name: that they are missing too is no news."""
    unknown_keys = (
        key for error in errors if isinstance(error, ForbiddenExtraKeysError) for key in error.extra_fields
    )
    meant = (values.nearest(key, keys_of(noun)) for key in unknown_keys if _hint(key, noun) is None)
    return {key for key in meant if key is not None}


def _default(name: str, noun: type) -> str:
    """Return the cure where nothing better is known: another example, or no value at all."""
    default = attrs.fields_dict(noun)[name].default
    if default is attrs.NOTHING:
        return "write another value"
    if default is None or isinstance(default, tuple | attrs.Factory):
        return "write another value, or leave it out"
    shown = values.describe(default).removesuffix(".0")
    return f"write another value, or leave it out for the default, {shown}"


def unknown(key: str, noun: type) -> str:
    """Return the cure for a key that a table of this noun doesn't have."""
    return _hint(key, noun) or values.did_you_mean(key, keys_of(noun), what="the keys here")


def _hint(key: str, noun: type) -> str | None:
    """Return what is known of a key that this noun doesn't have, None where it may be misspelt."""
    hint = rules.HINTS.get((noun, key))
    if hint is not None:
        return hint
    elsewhere = [
        place
        for home in rules.HOMES
        if noun in home
        for other, place in home.items()
        if other is not noun and key in keys_of(other)
    ]
    return f"{key} belongs {elsewhere[0]}" if elsewhere else None


def meant_table(key: str, tables: Sequence[str]) -> str | None:
    """Return the table of `fafo.toml` that a wrong head probably means, None if it means none of them."""
    if key in rules.TABLE_HINTS:
        return "source" if key == "sources" else None
    return values.nearest(key, tables)


def unknown_table(key: str, tables: Sequence[str]) -> str:
    """Return the cure for a key at the top of `fafo.toml`, which has only tables there."""
    if key in rules.TABLE_HINTS:
        return rules.TABLE_HINTS[key]
    near = meant_table(key, tables)
    if near is not None:
        return f"did you mean {near}?"
    for other, place in rules.HOMES[1].items():
        if key in keys_of(other):
            return f"{key} belongs {place}"
    return f"the tables of this file: {', '.join(tables)}"
