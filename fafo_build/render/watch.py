"""Finds the author's own special tokens in holes, where they would silently become plain text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.runtime import Context, Macro
from jinja2.utils import Namespace

from fafo_build.errors import TemplateError
from fafo_build.render.environment import PromptEnvironment
from fafo_build.render.sources import Prompts
from fafo_build.render.standins import Dummy, Touched, Tracer
from fafo_build.render.values import printable


def carriers(
    variables: Mapping[str, Any], examples: tuple[Mapping[str, Any], ...], control: tuple[str, ...]
) -> Callable[[nodes.Node], str | None]:
    """Return a function that names the special token whose text a node of a syntax tree brings in, if any."""

    def within(value: Any) -> str | None:
        if isinstance(value, str):
            return next((text for text in control if text in value), None)
        if isinstance(value, Mapping):
            return next(filter(None, map(within, value.values())), None)
        if isinstance(value, list | tuple):
            return next(filter(None, map(within, value)), None)
        return None

    def carried(node: nodes.Node) -> str | None:
        if isinstance(node, nodes.TemplateData):
            return within(node.data)
        if isinstance(node, nodes.Const):
            return within(node.value)
        if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name) and node.node.name == "vars":
            return within(variables.get(node.attr))
        if isinstance(node, nodes.Name) and node.ctx == "load":
            return within(examples if node.name == "examples" else variables.get(node.name))
        return None

    return carried


class WatchingEnvironment(PromptEnvironment):
    """Renders, and notes which of the author's texts with special tokens were used before and after the first
    look at the item.
    """

    def __init__(self, prompts: Prompts, carried: Callable[[nodes.Node], str | None]) -> None:
        super().__init__({name: parsed.template.source for name, parsed in prompts.templates.items()})
        self._prompts = prompts
        self._carried = carried
        self._known: list[tuple[str, int, str]] = []
        self._before: set[int] = set()
        self._after: set[int] = set()
        self._touched = False
        self.finalize = _tolerant
        self.filters["__seen"] = self._note

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        self._watch(tree, name or "")
        return tree

    def _watch(self, node: nodes.Node, name: str) -> None:
        """Wrap what brings in the text of a special token into a filter that notes when it is used."""
        for field, value in node.iter_fields():
            if not _puts_out(node, field):
                continue
            if isinstance(value, list):
                first = _searched(node, field)
                value[first:] = [self._watched(child, node, name) for child in value[first:]]
            elif isinstance(value, nodes.Node):
                setattr(node, field, self._watched(value, node, name))

    def _watched(self, child: Any, parent: nodes.Node, name: str) -> Any:
        if not isinstance(child, nodes.Node) or _opted_in(child):
            return child
        token = self._carried(child)
        if token is None or not isinstance(child, nodes.Expr) or isinstance(parent, nodes.Keyword):
            self._watch(child, name)
            return child
        number = len(self._known)
        before = child.data.partition(token)[0] if isinstance(child, nodes.TemplateData) else ""
        self._known.append((name, child.lineno + before.count("\n"), token))
        inner = (
            nodes.Const(child.data, lineno=child.lineno) if isinstance(child, nodes.TemplateData) else child
        )
        arguments = [nodes.Const(number, lineno=child.lineno)]
        return nodes.Filter(inner, "__seen", arguments, [], None, None, lineno=child.lineno)

    # A filter that takes the context is never computed at compile time.
    @pass_context
    def _note(self, _: Context, value: Any, number: int) -> Any:
        (self._after if self._touched else self._before).add(number)
        return value

    def item_touched(self) -> None:
        """Note that from here on what is put out may depend on the item."""
        self._touched = True

    def check(self) -> None:
        """Raise `TemplateError` for texts with special tokens that may come after the first look at the
        item.
        """
        problems = [
            self._prompts.templates[name].template.problem(
                f"the special token {token} stands in a hole, where text is encoded as plain text",
                line,
                token,
                "write {{ '"
                + token
                + "' | hole(special_tokens=true) }}, or move it before the first item field",
            )
            for number, (name, line, token) in enumerate(self._known)
            if number in self._after or number not in self._before
        ]
        if problems:
            raise TemplateError(problems)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function; one of Python's own looks at its arguments in ways that a tracer can't feel."""
        if not isinstance(__obj, Macro) and __obj is not Namespace:
            for value in (*args, *kwargs.values()):
                if type(value) is Tracer:
                    raise Touched
        return super().call(__context, __obj, *args, **kwargs)


def _opted_in(node: nodes.Node) -> bool:
    return (
        isinstance(node, nodes.Filter)
        and node.name == "hole"
        and any(
            isinstance(option.value, nodes.Const) and option.value.value is True for option in node.kwargs
        )
    )


_LOOKING = (nodes.Compare, nodes.Test, nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)
"""Nodes of which no part is put out: they compare, or name templates."""

_PASSED_ON = ("default", "d", "join", "replace")
"""Filters whose arguments can be put out."""


def _puts_out(parent: nodes.Node, field: str) -> bool:
    """Tell whether what stands in a field of a node can become part of the text."""
    if isinstance(parent, nodes.Filter) and field != "node":
        return parent.name in _PASSED_ON
    return not isinstance(parent, _LOOKING) and field != "test"


def _searched(parent: nodes.Node, field: str) -> int:
    """Return how many of the first values in a field are only looked for: of `replace`, what it takes out."""
    return int(isinstance(parent, nodes.Filter) and parent.name == "replace" and field == "args")


def _tolerant(value: Any) -> Any:
    return str(value) if isinstance(value, Dummy) else printable(value)
