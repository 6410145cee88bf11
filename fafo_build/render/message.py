"""One message of one item: templates and a row in, text out. All that a run needs of Jinja."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Template, TemplateRuntimeError

from fafo_build.render.environment import FILE_PREFIX, PromptEnvironment
from fafo_build.render.marks import Marked
from fafo_build.render.values import RowFields, check_repeatable

FAILURES = (
    TemplateRuntimeError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    AssertionError,
    RuntimeError,
    SyntaxError,
)
"""What rendering raises when a value isn't what the template needs: filters assert and raise as they like.
The last comes of blocks that are nested too deeply for Python.
"""


class RowError(Exception):
    """This row can't be rendered; the message says why in one line."""


class MessageRenderer:
    """Renders messages from their templates. The templates are normalised, see `sources.normalised`."""

    def __init__(
        self,
        templates: Mapping[str, str],
        variables: Mapping[str, Any],
        examples: tuple[Mapping[str, Any], ...],
    ) -> None:
        self._environment = PromptEnvironment(templates)
        self._templates = templates
        self._constants = {**variables, "vars": variables, "examples": examples}
        self._ready: dict[str, Template] = {}

    def render(self, template: str, fields: Mapping[str, Any], source: str, key: str) -> Marked:
        """Return a message as its template gives it, before the chat template sees it.

        Raises `RowError` for a null or missing field, or a value of another kind than the template needs.
        """
        context = {**self._constants, "item": RowFields(fields), "item_source": source, "item_key": key}
        try:
            rendered = self._template(template).render(context)
            check_repeatable(rendered, self._templates, self._constants, fields)
            return self._environment.marks.read(rendered)
        except FAILURES as error:
            place = location(error)
            inside = f" (in {place[0]})" if place and not place[0].startswith("#") else ""
            raise RowError(reason(error) + inside) from error

    def _template(self, name: str) -> Template:
        found = self._ready.get(name)
        if found is None:
            found = self._ready[name] = self._environment.get_template(name)
            # Jinja copies these for every rendering, and takes half of its time to copy the chain that they
            # come as.
            found.globals = dict(found.globals)
        return found


def reason(error: BaseException) -> str:
    """Return what went wrong in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, TemplateRuntimeError) else f"{type(error).__name__}: {text}"


def location(error: BaseException) -> tuple[str, int] | None:
    """Return the template and the 1-based line in which an error came up, if it came up in one."""
    found = None
    trail = error.__traceback__
    while trail is not None:
        file = trail.tb_frame.f_code.co_filename
        if file.startswith(FILE_PREFIX):
            found = (file.removeprefix(FILE_PREFIX), trail.tb_lineno)
        trail = trail.tb_next
    return found
