"""JSON Schema of `fafo.toml` and of class files, for editors: made of the nouns and the reader's own checks.

Knows none of the nouns' keys by name. A schema may take what the reader refuses, as where two values must
fit each other, but never refuses what the reader takes.
"""

from __future__ import annotations

import ast
import datetime
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs

from fafo_build.errors import DeclarationError, Problem
from fafo_build.project import checks, rules
from fafo_build.project.declaration import PromptClass
from fafo_build.project.main_file import TABLES
from fafo_build.project.structure import fields_by_key

Schema = dict[str, Any]

FILES: Mapping[str, str] = {"fafo": "fafo.schema.json", "class": "class.schema.json"}
"""The schemas there are, of `fafo.toml` and of a class, and the files beside `fafo.toml` that hold them."""

# The newest draft that all of the editors' TOML servers know.
_DRAFT = "http://json-schema.org/draft-07/schema#"

_PLAIN: Mapping[type, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    datetime.date: {"type": "string", "format": "date"},
}


def schema_text(which: str) -> str:
    """Return one of the schemas of `FILES` as JSON text."""
    schema, title = (_main(), "fafo.toml") if which == "fafo" else (_table(PromptClass), "A class of fafo")
    head = {"$schema": _DRAFT, "$comment": "Written by `fafo schema`.", "title": title}
    return json.dumps(head | schema, indent=2, ensure_ascii=False) + "\n"


def write_schemas(root: Path) -> list[Path]:
    """Write both schemas into a project's folder, over older ones; return their files.

    Raises `DeclarationError` when the disk refuses.
    """
    written = []
    for which, name in FILES.items():
        try:
            (root / name).write_text(schema_text(which), encoding="utf-8")
        except OSError as error:
            raise DeclarationError(
                Problem(
                    f"can't be written: {error.strerror}",
                    file=str(root / name),
                    cure="check that you may write to its folder, and that the disk isn't full",
                )
            ) from error
        written.append(root / name)
    return written


def _main() -> Schema:
    """Return the schema of `fafo.toml`: its tables, of which models and engines have two forms."""
    tables = {}
    for key, noun in TABLES.items():
        if key == "source":
            tables[key] = {"type": "array", "minItems": 1, "items": _table(noun)}
        elif key.removesuffix("s") in TABLES.keys() - {key}:
            tables[key] = {
                "type": "object",
                "description": "One table for each, by name.",
                "patternProperties": {f"^{checks.NAME.pattern}$": _table(noun)},
                "additionalProperties": False,
            }
        else:
            tables[key] = _table(noun)
    tables["models"]["minProperties"] = 1
    return {
        "type": "object",
        "properties": tables,
        "required": ["project", "source"],
        "additionalProperties": False,
        "allOf": [
            {"if": {"required": ["model"]}, "then": {"properties": {"models": False}}},
            {"if": {"required": ["engine"]}, "then": {"properties": {"engines": False}}},
            {"if": {"required": ["models"]}, "else": {"required": ["model"]}},
        ],
    }


def _table(noun: type) -> Schema:
    """Return the schema of a table that declares this noun."""
    kinds = get_type_hints(noun)
    fields = fields_by_key(noun)
    schema: Schema = {
        "type": "object",
        "description": inspect.cleandoc(noun.__doc__ or ""),
        "properties": {key: _field(noun, field, kinds[field.name]) for key, field in fields.items()},
        "required": [key for key, field in fields.items() if field.default is attrs.NOTHING],
        "additionalProperties": False,
    }
    rule = _noted(rules.RULES.get(noun))
    # Within allOf, since tombi takes a condition beside the properties for a table of its own.
    return schema | {"allOf": [rule]} if rule else schema


def _field(noun: type, field: attrs.Attribute[Any], kind: Any) -> Schema:
    parser = checks.PARSERS.get(noun, {}).get(field.name)
    check = _noted(checks.CHECKS.get(noun, {}).get(field.name))
    schema = _noted(parser) | check if parser else _value(kind, check)
    if field.name in _descriptions(noun):
        schema["description"] = _descriptions(noun)[field.name]
    if isinstance(field.default, str | bool | int | float):
        schema["default"] = field.default
    elif isinstance(field.default, tuple) and field.default:
        schema["default"] = list(field.default)
    return schema


def _value(kind: Any, check: Schema) -> Schema:
    """Return the schema of values of a type that pass a check, as `structure` reads them."""
    if get_origin(kind) in (Union, UnionType):
        (kind,) = set(get_args(kind)) - {NoneType}
    origin = get_origin(kind)
    if origin is Literal:
        return {"type": "string", "enum": list(get_args(kind))} | check
    if origin is tuple:
        item = _value(get_args(kind)[0], check.get("items", {}))
        listed = {"type": "array"} | check | {"items": item}
        # One string may stand for a list of one.
        return listed | item | {"type": ["string", "array"]} if get_args(kind)[0] is str else listed
    if origin is Mapping:
        return {"type": "object", "additionalProperties": True} | check
    return (_table(kind) if attrs.has(kind) else _PLAIN[kind]) | check


def _noted(function: Callable[..., Any] | None) -> Schema:
    """Return what `values.in_schema` noted on a function."""
    return dict(vars(function).get("schema", {})) if function is not None else {}


@cache
def _descriptions(noun: type) -> Mapping[str, str]:
    """Return what stands in the source below each field of a noun, by the field's name."""
    tree = ast.parse(inspect.getsource(sys.modules[noun.__module__]))
    classes = {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}
    found = {}
    for field, below in pairwise(classes[noun.__name__]):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                found[name] = " ".join(said.split())
    return found
