"""What stands for the item at the build: it can be passed on, and stops the rendering when looked at."""

from __future__ import annotations

from typing import Any, NoReturn

from jinja2.runtime import Context, Macro
from jinja2.utils import Namespace

from fafo_build.render.environment import PromptEnvironment


class Touched(BaseException):
    """The item was looked at. Not an `Exception`, so that no filter or test can swallow it."""


def _touch(*_: Any, **__: Any) -> NoReturn:
    raise Touched


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_NUMBERS = tuple(f"__{side}{name}__" for name in _ARITHMETIC for side in ("", "r"))
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__", "__bool__")
_TEXTS = ("__str__", "__repr__", "__format__")
_WHOLES = ("__int__", "__index__", "__len__", "__hash__", "__round__")
_OTHERS = (
    "__getattribute__",
    "__getitem__",
    "__iter__",
    "__reversed__",
    "__call__",
    "__neg__",
    "__pos__",
    "__abs__",
    "__float__",
)

Tracer = type("Tracer", (), dict.fromkeys((*_NUMBERS, *_COMPARISONS, *_TEXTS, *_WHOLES, *_OTHERS), _touch))
"""The item, its source or its key. It can be passed on, and nothing else."""


class TracingEnvironment(PromptEnvironment):
    """Renders as a run does, and stops where a function would look at a tracer without its noticing."""

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function; one of Python's own looks at its arguments in ways that a tracer can't feel."""
        if not isinstance(__obj, Macro) and __obj is not Namespace:
            for value in (*args, *kwargs.values()):
                if type(value) is Tracer:
                    raise Touched
        return super().call(__context, __obj, *args, **kwargs)
