"""What stands for the item at the build: a tracer stops at the first look at it, a dummy plays along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


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
)

Tracer = type(
    "Tracer", (), dict.fromkeys((*_NUMBERS, *_COMPARISONS, *_TEXTS, *_WHOLES, *_OTHERS, "__float__"), _touch)
)
"""The item, its source or its key. It can be passed on, and nothing else."""


class Dummy:
    """A value that goes along with most of what a template does; made by `dummy`."""


def dummy(touched: Callable[[], None]) -> Any:
    """Return a `Dummy` that calls `touched` whenever something looks at it."""

    def answering(answer: Callable[[Any], Any]) -> Callable[..., Any]:
        def operation(self: Any, *_: Any, **__: Any) -> Any:
            touched()
            return answer(self)

        return operation

    operations = {
        **dict.fromkeys((*_NUMBERS, "__getitem__", "__call__", "__getattr__"), answering(lambda self: self)),
        **dict.fromkeys(_COMPARISONS, answering(lambda _: True)),
        **dict.fromkeys(_TEXTS, answering(lambda _: "x")),
        **dict.fromkeys(_WHOLES, answering(lambda _: 1)),
        "__iter__": answering(lambda self: iter((self,))),
    }
    return type("Played", (Dummy,), operations)()
