"""What can be said of templates without rendering them: names that nobody defines, misused holes, filters
that don't exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attrs import evolve
from jinja2 import nodes

from fafo_build.errors import Problem, TemplateError
from fafo_build.project.declaration import PromptClass
from fafo_build.project.values import nearest
from fafo_build.render.environment import VOLATILE, PromptEnvironment
from fafo_build.render.holes import check_holes
from fafo_build.render.names import check_names
from fafo_build.render.sources import Parsed, Prompts


def check_class(prompts: Prompts, declared: PromptClass) -> None:
    """Raise `TemplateError` with every mistake that can be found in a class's prompts before a row is seen.

    A mistake in a prompt file, which other classes may share, names the class.
    """
    try:
        check(prompts, declared.vars)
    except TemplateError as error:
        raise TemplateError(
            problem if problem.file == declared.file else evolve(problem, field=f"class.{declared.name}")
            for problem in error.problems
        ) from error


def check(prompts: Prompts, variables: Mapping[str, Any]) -> None:
    """Raise `TemplateError` with every mistake that can be found before a row is seen."""
    environment = PromptEnvironment({})
    problems = [*check_names(prompts, variables), *check_holes(prompts)]
    for parsed in prompts.templates.values():
        problems += _filters(parsed, environment)
    if problems:
        raise TemplateError(sorted(problems, key=_place))


def _place(problem: Problem) -> tuple[str, int, int]:
    return problem.file or "", problem.line or 0, problem.column or 0


def _filters(parsed: Parsed, environment: PromptEnvironment) -> Iterator[Problem]:
    pairs: tuple[tuple[str, type[nodes.Filter] | type[nodes.Test], Collection[str]], ...] = (
        ("filter", nodes.Filter, environment.filters),
        ("test", nodes.Test, environment.tests),
    )
    for kind, node_type, known in pairs:
        for node in parsed.tree.find_all(node_type):
            if node.name not in known:
                near = nearest(node.name, known)
                cure = f"did you mean {near}?" if near else VOLATILE.get(node.name)
                yield parsed.template.problem(
                    f"there is no {kind} '{node.name}'", node.lineno, node.name, cure
                )
