"""The Jinja environment of prompts: sandboxed, strict, and without anything that changes from day to day."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import FunctionLoader, StrictUndefined, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fafo_build.render.marks import Marks
from fafo_build.render.values import NullField, field_of, missing_field, printable

ITEM_NAMES = ("item", "item_source", "item_key")
"""The names by which a template looks at the item; everything else that it sees is the same for every
item.
"""

CONSTANT_NAMES = ("vars", "examples")

VOLATILE = {
    "now": "a prompt must be the same on every day",
    "random": "a prompt must be the same at every build",
    "lipsum": "a prompt must be the same at every build",
}
"""Functions and filters that people know from elsewhere and that don't exist here, with the reason."""

FILE_PREFIX = "prompt "
"""Before a template's name in the file names of Jinja's tracebacks; no file of Python's has it."""


class PromptEnvironment(ImmutableSandboxedEnvironment):
    """Renders templates by name from `templates`. Templates are normalised, see `sources.normalised`."""

    def __init__(self, templates: Mapping[str, str]) -> None:
        super().__init__(
            loader=FunctionLoader(_from(templates)),
            undefined=StrictUndefined,
            autoescape=False,
            # `sources.normalised` has dropped the one newline that ends a file; a second one is meant.
            keep_trailing_newline=True,
            finalize=printable,
            cache_size=-1,
            auto_reload=False,
        )
        self.marks = Marks()
        del self.filters["random"]
        del self.globals["lipsum"]
        self.filters["hole"] = self.marks.hole
        self.filters["tojson"] = _tojson
        self.tests["none"] = _is_none

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `obj.attribute`; a field of a mapping wins over a method of the same name."""
        if isinstance(obj, Mapping):
            if attribute in obj:
                return field_of(obj, attribute)
            if attribute.startswith("_") or not hasattr(obj, attribute):
                return missing_field(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return `obj[argument]`; of a mapping only its fields."""
        if isinstance(obj, Mapping):
            return field_of(obj, argument) if argument in obj else missing_field(obj, argument)
        value = super().getitem(obj, argument)
        return NullField(hint=f"element {argument} is null") if value is None else value


def _from(templates: Mapping[str, str]) -> Callable[[str], tuple[str, str, Callable[[], bool]] | None]:
    def load(name: str) -> tuple[str, str, Callable[[], bool]] | None:
        return (templates[name], FILE_PREFIX + name, lambda: True) if name in templates else None

    return load


def _is_none(value: Any) -> bool:
    return value is None or isinstance(value, NullField)


def _tojson(value: Any, indent: int | None = None) -> str:
    """Jinja's own `tojson` is made for HTML: it turns `<` into a JSON escape and sorts the keys."""

    def plain(inner: Any) -> Any:
        if isinstance(inner, Mapping):
            return dict(inner)
        if isinstance(inner, Undefined):
            str(inner)  # raises and says its name
        raise TypeError(f"a {type(inner).__name__} has no JSON form")

    return json.dumps(value, ensure_ascii=False, indent=indent, default=plain)
