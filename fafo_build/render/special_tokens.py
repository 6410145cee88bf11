"""The author's own special tokens in messages with holes: they must be asked for, each where it stands.

In the beginning of such a message they would be special tokens, in its hole plain text. Which of the two a
template's text gets into is seen only by rendering it, so the rule doesn't depend on that.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attrs import evolve
from jinja2 import nodes

from fafo_build.errors import Problem, TemplateError
from fafo_build.render.sources import Prompts, Template
from fafo_build.render.used import vars_key
from fafo_build.render.values import texts

_NEVER_PUT_OUT = (nodes.Compare, nodes.Test, nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)
"""Nodes of which no part gets into the text: they compare, or name templates."""

_ASKED_FOR = re.compile(
    r"\{#.*?#\}|\{\{(?:(?!\}\}).)*\bhole\(\s*special_tokens\s*=\s*[Tt]rue\s*\)\s*[-+]?\}\}"
)


def check_special_tokens(
    prompts: Prompts,
    names: Collection[str],
    variables: Mapping[str, Any],
    examples: tuple[Mapping[str, Any], ...],
    control: Collection[str],
) -> None:
    """Check the templates `names`: all that messages with a hole reach.

    Their text, string constants, and the variables and examples that they name may hold a special token
    (one of the texts `control`) only inside `... | hole(special_tokens=true)`. Raises `TemplateError` with
    every other place.
    """
    values = {**variables, "vars": variables, "examples": examples}
    problems = [
        _problem(parsed.template, *place)
        for parsed in map(prompts.templates.__getitem__, names)
        for place in sorted(set(_places(parsed.tree, values, control)))
    ]
    if problems:
        raise TemplateError(problems)


def asks_for_special_tokens(prompts: Prompts, names: Collection[str]) -> bool:
    """Tell whether a hole in one of the templates `names` lets special tokens of an item through."""
    trees = (prompts.templates[name].tree for name in names)
    return any(_asks(node) for tree in trees for node in tree.find_all(nodes.Filter))


def _places(
    tree: nodes.Template, values: Mapping[str, Any], control: Collection[str]
) -> Iterator[tuple[int, str, str]]:
    """Yield the line of each special token that isn't asked for, the variable that holds it, the token."""
    for node, name, text in _put_out(tree, values):
        # Some models have thousands, and making a pattern of one takes longer than looking for it.
        for token in (token for token in control if token in text):
            for match in re.finditer(re.escape(token), text):
                before = text[: match.start()] if isinstance(node, nodes.TemplateData) else ""
                yield node.lineno + before.count("\n"), name, token


def _put_out(node: nodes.Node, values: Mapping[str, Any]) -> Iterator[tuple[nodes.Node, str, str]]:
    """Yield the author's texts that may be put out where they aren't asked for: node, variable, text."""
    key = vars_key(node)
    if isinstance(node, _NEVER_PUT_OUT) or _asks(node):
        return
    if isinstance(node, nodes.TemplateData):
        yield node, "", node.data
    elif isinstance(node, nodes.Const):
        yield from ((node, "", text) for text in texts(node.value))
    elif key is not None and key in values["vars"]:
        yield from ((node, key, text) for text in texts(values["vars"][key]))
    elif isinstance(node, nodes.Name) and node.ctx == "load":
        yield from ((node, node.name, text) for text in texts(values.get(node.name)))
    else:
        taken_out = node.args[:1] if isinstance(node, nodes.Filter) and node.name == "replace" else ()
        for child in node.iter_child_nodes(exclude=("test",)):
            if not any(child is sought for sought in taken_out):
                yield from _put_out(child, values)


def _asks(node: nodes.Node) -> bool:
    return (
        isinstance(node, nodes.Filter)
        and node.name == "hole"
        and any(
            isinstance(option.value, nodes.Const) and option.value.value is True for option in node.kwargs
        )
    )


def _problem(template: Template, line: int, name: str, token: str) -> Problem:
    where = f" in '{name}'" if name else ""
    problem = template.problem(
        f"the special token {token}{where} stands as mere text in a message that looks at the item",
        line,
        name or None,
        "write {{ '" + token + "' | hole(special_tokens=true) }}, or put it into a message that doesn't look "
        "at the item",
    )
    if name or problem.source_line is None:
        return problem
    # The same token may stand on the line where it is asked for, or in a comment.
    rest = _ASKED_FOR.sub(lambda found: " " * len(found.group()), problem.source_line)
    return evolve(problem, column=rest.find(token) + 1 or None)
