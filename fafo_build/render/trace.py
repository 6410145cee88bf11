"""The constant beginning of a message, found by causality: what is put out before the item is looked at.

The message is rendered with an item on which every operation stops the rendering. What came out until then
can't depend on the item.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from fafo_build.errors import Problem, TemplateError
from fafo_build.render.environment import ITEM_NAMES
from fafo_build.render.marks import BrokenMarkError, Marks
from fafo_build.render.message import FAILURES, location, reason
from fafo_build.render.sources import Prompts
from fafo_build.render.tracer import Touched, Tracer, TracingEnvironment
from fafo_build.render.values import FieldError, check_repeatable, holds


class UnrenderableError(TemplateError):
    """A message can't be rendered with the variables and examples of its class."""

    def __init__(self, problem: Problem, reason: str, example: int | None) -> None:
        super().__init__(problem)
        self.reason = reason
        self.example = example
        """The 0-based example that lacks what the template needs; None where it is something else."""


@frozen
class Trace:
    """What a message does before it looks at the item."""

    head: str
    """The constant beginning; the whole text if there is no hole."""
    has_hole: bool


def trace(
    prompts: Prompts,
    number: int,
    variables: Mapping[str, Any],
    examples: tuple[Mapping[str, Any], ...],
) -> Trace:
    """Find the constant beginning of message `number`.

    Raises `UnrenderableError` when it can't be rendered, `TemplateError` for a misused `hole`.
    """
    name = prompts.messages[number]
    templates = {at: each.template.source for at, each in prompts.templates.items()}
    environment = TracingEnvironment(templates)
    context = {**variables, "vars": variables, "examples": examples}
    context |= {item_name: Tracer() for item_name in ITEM_NAMES}
    pieces: list[str] = []
    has_hole = False
    try:
        try:
            pieces.extend(environment.get_template(name).generate(context))
        except Touched:
            has_hole = True
        check_repeatable("".join(pieces), templates, variables, examples)
    except FAILURES as error:
        lacking = error.container if isinstance(error, FieldError) else None
        blamed = (number for number, example in enumerate(examples) if holds(example, lacking))
        problem = _render_problem(prompts, name, error)
        raise UnrenderableError(problem, reason(error), next(blamed, None)) from error
    return Trace(_head(environment.marks, prompts, name, "".join(pieces)), has_hole)


def _head(marks: Marks, prompts: Prompts, name: str, rendered: str) -> str:
    try:
        return marks.read(rendered).text
    except BrokenMarkError as error:
        raise TemplateError(prompts.templates[name].template.problem(str(error), 1)) from error


def _render_problem(prompts: Prompts, name: str, error: BaseException) -> Problem:
    place = location(error)
    at, line = place if place else (name, 1)
    return prompts.templates[at].template.problem(f"can't be rendered: {reason(error)}", line)
