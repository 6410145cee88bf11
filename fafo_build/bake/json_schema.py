"""The JSON Schema of a class: reads its file, and finds what is wrong with it. Knows nothing of engines.

An engine writes the members of an object in the order of the schema's `properties`, so the order is kept: it
decides the output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

from attrs import frozen

from fafo_build.errors import BakeError, Problem
from fafo_build.project.declaration import Project, PromptClass

Steps = tuple[str | int, ...]
"""Names and 0-based indices from the top of a JSON value down."""

_DATA = ("const", "default", "enum", "examples")
"""Keywords whose values are no schemas."""

_raw_decode = json.JSONDecoder().raw_decode


@frozen
class Schema:
    """A file with a JSON object."""

    file: str
    """As declared."""
    field: str
    """The key that names it: `class.exam.sampling.json_schema`."""
    text: str
    """As it stands in the file."""
    compact: str
    """The same JSON without white space, in the same order: what engines get."""

    def problem(self, steps: Steps, message: str, cure: str) -> Problem:
        """Return a problem with one value of it."""
        before = self.text[: _offset(self.text, steps)]
        return _at(self, before.count("\n") + 1, len(before) - before.rfind("\n"), message, cure)


def read_schema(project: Project, declared: PromptClass) -> Schema:
    """Return the schema that a class declares.

    Raises `BakeError` when the file can't be read, isn't JSON, isn't one object, or says a name twice.
    """
    file, field = declared.sampling.json_schema or "", f"class.{declared.name}.sampling.json_schema"
    schema = Schema(file, field, _text(project.root / file, declared, field), "")
    line: int | None = None
    column: int | None = None
    try:
        value = json.loads(schema.text, object_pairs_hook=_once, parse_constant=_no_number)
        if isinstance(value, dict):
            compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            # Half a surrogate pair can be written in JSON, and is no text.
            compact.encode("utf-8")
            return Schema(file, field, schema.text, compact)
        message, line, column = "expected a JSON object", 1, 1
    except json.JSONDecodeError as error:
        message, line, column = (
            f"not JSON: {error.msg[:1].lower()}{error.msg[1:]}",
            error.lineno,
            error.colno,
        )
    except UnicodeEncodeError:
        message = "not text: half a surrogate pair"
    except (ValueError, RecursionError) as error:
        message = f"not JSON that can be read: {error}"
    raise BakeError(_at(schema, line, column, message, 'write one JSON object: {"type": "object", …}'))


def problems_of(schema: Schema) -> Iterator[Problem]:
    """Yield where a JSON object is no JSON Schema: a keyword with a value that it can't have, a `$ref` that
    leads nowhere or out of the file.
    """
    # A tenth of a second, and most classes have no schema.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    value = json.loads(schema.text)
    dialect = value if isinstance(value.get("$schema"), str) else {}
    draft = validator_for(dialect, default=Draft202012Validator)
    for error in draft(draft.META_SCHEMA).iter_errors(value):
        steps = tuple(error.absolute_path)
        message = f"no JSON Schema, at {_pointer(steps)}: {error.message}"
        yield schema.problem(steps, message, "look the keyword up at https://json-schema.org")
    for steps, ref in _refs(value, ()):
        if not ref.startswith("#"):
            message = f'"{ref}" leads out of the file, and no engine follows it there'
            yield schema.problem(
                (*steps, "$ref"), message, 'copy what it names under "$defs": "#/$defs/NAME"'
            )
        elif (ref == "#" or ref.startswith("#/")) and not _leads(value, ref):
            message = f'"{ref}" names nothing in this file'
            yield schema.problem((*steps, "$ref"), message, "mend it, or add what it names")


def _at(schema: Schema, line: int | None, column: int | None, message: str, cure: str) -> Problem:
    shown = schema.text.split("\n")[line - 1] if line is not None else None
    return Problem(message, schema.file, line, column, schema.field, shown, cure)


def _text(path: Path, declared: PromptClass, field: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it isn't UTF-8"
        message = f'the JSON Schema "{declared.sampling.json_schema}" can\'t be read: {why}'
        cure = 'name a file in the project: json_schema = "schemas/answer.json"'
        raise BakeError(Problem(message, file=declared.file, field=field, cure=cure)) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f'"{name}" stands twice in one object')
        made[name] = value
    return made


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _pointer(steps: Sequence[str | int]) -> str:
    return "/".join(("#", *(str(step).replace("~", "~0").replace("/", "~1") for step in steps)))


def _refs(value: Any, steps: Steps) -> Iterator[tuple[Steps, str]]:
    """Yield where an object with a `$ref` stands, and what that says."""
    if isinstance(value, Mapping):
        if isinstance(value.get("$ref"), str):
            yield steps, value["$ref"]
        for name, inner in value.items():
            if name not in _DATA:
                yield from _refs(inner, (*steps, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _refs(inner, (*steps, index))


def _leads(value: Any, ref: str) -> bool:
    """Tell whether a reference of the form `#/a/b` names something."""
    for part in ref[1:].split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return False
    return True


def _offset(text: str, steps: Steps) -> int:
    """Return where a value that is there stands in a JSON text, in characters."""
    at = _past_space(text, 0)
    for step in steps:
        is_object, index = text[at] == "{", 0
        at = _past_space(text, at + 1)
        while True:
            name: str | int = index
            if is_object:
                name, end = _raw_decode(text, at)
                at = _past_space(text, _past_space(text, end) + 1)
            if name == step:
                break
            _, end = _raw_decode(text, at)
            at = _past_space(text, _past_space(text, end) + 1)
            index += 1
    return at


def _past_space(text: str, at: int) -> int:
    while text[at] in " \t\n\r":
        at += 1
    return at
