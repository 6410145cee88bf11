"""The constant beginning of a message, found by causality: what is put out before the item is first looked
at.

The message is rendered with an item on which every operation stops the rendering. What came out until then
can't depend on the item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from attrs import frozen
from jinja2 import nodes, pass_context
from jinja2.runtime import Context, Macro
from jinja2.utils import Namespace

from fafo_build.errors import TemplateError
from fafo_build.render.environment import ITEM_NAMES, PromptEnvironment
from fafo_build.render.marks import BrokenMarkError, Marks
from fafo_build.render.message import FAILURES, location, reason
from fafo_build.render.sources import Prompts


class _Touched(BaseException):
    """The item was looked at. Not an `Exception`, so that no filter or test can swallow it."""


def _touch(*_: Any, **__: Any) -> NoReturn:
    raise _Touched


_OPERATIONS = (
    *(
        "__getattribute__",
        "__getitem__",
        "__iter__",
        "__len__",
        "__contains__",
    ),
    *(
        "__call__",
        "__bool__",
        "__hash__",
        "__str__",
        "__repr__",
    ),
    *(
        "__format__",
        "__bytes__",
        "__int__",
        "__float__",
        "__index__",
    ),
    *(
        "__round__",
        "__eq__",
        "__ne__",
        "__lt__",
        "__le__",
    ),
    *(
        "__gt__",
        "__ge__",
        "__add__",
        "__radd__",
        "__sub__",
    ),
    *(
        "__rsub__",
        "__mul__",
        "__rmul__",
        "__truediv__",
        "__rtruediv__",
    ),
    *(
        "__floordiv__",
        "__rfloordiv__",
        "__mod__",
        "__rmod__",
        "__pow__",
    ),
    *(
        "__rpow__",
        "__neg__",
        "__pos__",
        "__abs__",
        "__reversed__",
    ),
)

_Tracer = type("_Tracer", (), dict.fromkeys(_OPERATIONS, _touch))
"""Stands for the item, its source or its key. It can be passed on, and nothing else."""


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
    control: tuple[str, ...],
) -> Trace:
    """Find the constant beginning of message `number`.

    `control` are the texts of special tokens. In the beginning they are encoded as special tokens, in a
    hole they are not; so the author's own text in a hole may contain one only inside `|
    hole(special_tokens=true)`.

    Raises `TemplateError` when the beginning can't be rendered, or for such a text.
    """
    name = prompts.messages[number]
    environment = _TracingEnvironment(prompts, _carriers(variables, examples, control))
    context = {**variables, "vars": variables, "examples": examples}
    context.update((item_name, _Tracer()) for item_name in ITEM_NAMES)
    pieces: list[str] = []
    has_hole = False
    try:
        pieces.extend(environment.get_template(name).generate(context))
    except _Touched:
        has_hole = True
    except FAILURES as error:
        raise TemplateError(_render_problem(prompts, name, error)) from error
    if has_hole:
        environment.check_unseen()
    return Trace(_head(environment.marks, prompts, name, "".join(pieces)), has_hole)


def _head(marks: Marks, prompts: Prompts, name: str, rendered: str) -> str:
    try:
        return marks.read(rendered).text
    except BrokenMarkError as error:
        raise TemplateError(prompts.templates[name].template.problem(str(error), 1)) from error


def _render_problem(prompts: Prompts, name: str, error: BaseException) -> Any:
    place = location(error)
    at, line = place if place else (name, 1)
    return prompts.templates[at].template.problem(f"can't be rendered: {reason(error)}", line)


def _carriers(
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


class _TracingEnvironment(PromptEnvironment):
    """Notes which of the author's texts with special tokens were put out, and stops at the first look at
    the item.
    """

    def __init__(self, prompts: Prompts, carried: Callable[[nodes.Node], str | None]) -> None:
        super().__init__({name: parsed.template.source for name, parsed in prompts.templates.items()})
        self._prompts = prompts
        self._carried = carried
        self._known: list[tuple[str, int, str]] = []
        self._seen: set[int] = set()
        self.filters["__seen"] = self._note

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        self._watch(tree, name or "")
        return tree

    def _watch(self, node: nodes.Node, name: str) -> None:
        """Wrap what brings in the text of a special token into a filter that notes when it is used."""
        for field, value in node.iter_fields():
            if isinstance(value, list):
                value[:] = [self._watched(child, node, name) for child in value]
            elif isinstance(value, nodes.Node):
                setattr(node, field, self._watched(value, node, name))

    def _watched(self, child: Any, parent: nodes.Node, name: str) -> Any:
        if not isinstance(child, nodes.Node) or _opted_in(child):
            return child
        token = self._carried(child)
        if token is None or not isinstance(child, nodes.Expr) or not _replaceable(parent):
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
        self._seen.add(number)
        return value

    def check_unseen(self) -> None:
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
            if number not in self._seen
        ]
        if problems:
            raise TemplateError(problems)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function; one of Python's own looks at its arguments in ways that a tracer can't feel."""
        if not isinstance(__obj, Macro) and __obj is not Namespace:
            for value in (*args, *kwargs.values()):
                if type(value) is _Tracer:
                    raise _Touched
        return super().call(__context, __obj, *args, **kwargs)


def _opted_in(node: nodes.Node) -> bool:
    return (
        isinstance(node, nodes.Filter)
        and node.name == "hole"
        and any(
            isinstance(option.value, nodes.Const) and option.value.value is True for option in node.kwargs
        )
    )


def _replaceable(parent: nodes.Node) -> bool:
    """Tell whether Jinja computes the children of a node; names of templates and parts of names stay as
    they are.
    """
    return not isinstance(
        parent, nodes.Extends | nodes.Include | nodes.Import | nodes.FromImport | nodes.Keyword
    )
