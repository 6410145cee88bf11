"""Stands in for Triton, the GPU kernel compiler, on a machine without a GPU. It compiles and runs nothing.

SGLang imports Triton and decorates kernels with it when its modules load, also where a CPU path is taken
later. So every module below `triton` exists here, every lower-case name in it can be called and is a
decorator that changes nothing, and every capitalised name is a class. Launching a kernel fails, since a
decorated function stays a plain function, which can't be indexed by a grid.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "3.0.0"  # PyTorch compares it; any release that it knows will do.

# Names that appear in `except` clauses, where Python insists on exceptions.
_EXCEPTIONS = {"CompilationError", "OutOfResources", "PTXASError"}


class _Class:
    """The base of every stand-in class: takes any arguments, may be subclassed, may be a generic."""

    def __init__(self, *args, **kwargs):
        self.args, self.kwargs = args, kwargs
        self.value = args[0] if args else None  # what a `tl.constexpr` is read for

    def __class_getitem__(cls, _):
        return cls


class _Module(types.ModuleType):
    """A module in which every name exists."""

    __path__ = ()  # makes it a package, whose submodules the finder below is asked for

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)  # a made-up __wrapped__ or __bases__ would mislead inspection
        if name[0].isupper() or name == "constexpr":
            base = Exception if name in _EXCEPTIONS else _Class
            made = type(name, (base,), {"__module__": self.__name__})
        else:
            made = importlib.import_module(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made

    def __call__(self, *args, **kwargs):
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]  # @triton.jit
        return lambda function: function  # @triton.autotune(...)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module below `triton`."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.startswith("triton."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def cdiv(a, b):
    """Return a / b, rounded up: computed on the host, also on CPU paths."""
    return -(-a // b)


def next_power_of_2(n):
    """Return the smallest power of two that isn't below `n`: computed on the host, also on CPU paths."""
    return 1 << (n - 1).bit_length()


sys.meta_path.insert(0, _Finder())
sys.modules[__name__].__class__ = _Module
