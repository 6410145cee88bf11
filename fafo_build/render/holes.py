"""Where `hole(...)` may stand: the text that it marks must reach the message as it is.

A filter, a comparison or a variable would get the marks along with the text. So a hole is the last filter of
a `{{ }}`, and what puts one out (a macro, `caller()`, a block, an included prompt) stands alone in its place
too.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen
from jinja2 import nodes

from fafo_build.errors import Problem
from fafo_build.render.sources import Parsed, Prompts

_GATHERS = (nodes.FilterBlock, nodes.AssignBlock)
"""Blocks whose text goes elsewhere than where they stand."""

_LOOKS = (nodes.Call, nodes.Getattr, nodes.Getitem)
"""What is done to a function here, and leaves nothing of it for later."""


@frozen
class _Source:
    """A node that puts out marks, and where it stands."""

    node: nodes.Node
    alone: bool
    """Whether nothing is done to its text where it stands."""
    above: tuple[nodes.Node, ...]
    """The nodes around it, the outermost first."""


def check_holes(prompts: Prompts) -> Iterator[Problem]:
    """Yield holes whose marks could be changed or looked at, and holes with unknown options."""
    names, files = _marking(prompts)
    for parsed in prompts.templates.values():
        for source in _sources(parsed, names, files):
            node = source.node
            if not source.alone or any(isinstance(each, _GATHERS) for each in source.above):
                yield _misplaced(parsed, node)
            elif isinstance(node, nodes.Filter) and not _plain_options(node):
                message = "hole takes special_tokens=true or special_tokens=false, and nothing else"
                yield parsed.template.problem(message, node.lineno, "hole")


def _marking(prompts: Prompts) -> tuple[set[str], set[str]]:
    """Return what puts out marks when it is called, and the prompts that do when they are included."""
    names: set[str] = set()
    files: set[str] = set()
    while True:
        before = len(names), len(files)
        for name, parsed in prompts.templates.items():
            for source in _sources(parsed, names, files):
                names |= {called for each in source.above for called in _called(each)}
                if not any(isinstance(each, nodes.Macro) for each in source.above):
                    files |= {name, *_extending(prompts, name)}
            names |= set(_aliases(parsed, names))
        if before == (len(names), len(files)):
            return names, files


def _called(around: nodes.Node) -> Iterator[str]:
    """Yield by which names the text inside a node is put out elsewhere."""
    match around:
        case nodes.Macro():
            yield around.name
        case nodes.CallBlock():
            yield "caller"
        case nodes.Block():
            yield from ("super", f"self.{around.name}")
        case nodes.For(recursive=True):
            yield "loop"


def _extending(prompts: Prompts, name: str) -> Iterator[str]:
    for other, parsed in prompts.templates.items():
        if any(target == name and isinstance(node, nodes.Extends) for target, node in parsed.references):
            yield other


def _aliases(parsed: Parsed, names: set[str]) -> Iterator[str]:
    """Yield the names that a template gives to macros which put out marks."""
    for _, node in parsed.references:
        if isinstance(node, nodes.FromImport):
            yield from (pair[1] for pair in node.names if isinstance(pair, tuple) and pair[0] in names)
        elif isinstance(node, nodes.Import):
            yield from (f"{node.target}.{name}" for name in names if "." not in name)


def _sources(parsed: Parsed, names: set[str], files: set[str]) -> Iterator[_Source]:
    included = {id(node) for name, node in parsed.references if name in files}
    # A variable of the same name is another thing: no macro gets into it unseen.
    variables = {node.name for node in parsed.tree.find_all(nodes.Name) if node.ctx != "load"}
    return _below(parsed.tree, names - variables, included, ())


def _below(
    node: nodes.Node, names: set[str], included: set[int], above: tuple[nodes.Node, ...]
) -> Iterator[_Source]:
    inside = (*above, node)
    for child in node.iter_child_nodes():
        if isinstance(node, nodes.CallBlock) and child is node.call:
            # It stands where its block stands, not inside.
            if _calls(child, names):
                yield _Source(child, True, above)
        elif (isinstance(child, nodes.Filter) and child.name == "hole") or _calls(child, names):
            yield _Source(child, isinstance(node, nodes.Output), inside)
        elif isinstance(child, nodes.Include) and id(child) in included:
            yield _Source(child, True, inside)
        elif _read(child) in names and not (isinstance(node, _LOOKS) and node.node is child):
            # Given to a variable or a function, it could be called anywhere.
            yield _Source(child, False, inside)
        yield from _below(child, names, included, inside)


def _calls(node: nodes.Node, names: set[str]) -> bool:
    return isinstance(node, nodes.Call) and _read(node.node) in names


def _read(node: nodes.Node) -> str | None:
    """Return NAME or MODULE.NAME of an expression that reads it, None for others."""
    if isinstance(node, nodes.Name) and node.ctx == "load":
        return node.name
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        return f"{node.node.name}.{node.attr}"
    return None


def _misplaced(parsed: Parsed, node: nodes.Node) -> Problem:
    word = "hole"
    if isinstance(node, nodes.Include):
        word, message = (
            "include",
            "this prompt puts out hole(...), and can't stand in a block that gathers text",
        )
    elif isinstance(node, nodes.Filter):
        message = "hole(...) must be the last filter of a {{ }}, outside of blocks that gather text"
    else:
        shown = _read(node.node if isinstance(node, nodes.Call) else node) or ""
        word = shown.rpartition(".")[2]
        message = (
            f"{shown}(...) puts out hole(...), and must stand alone in a {{{{ }}}}, outside of blocks that "
        )
        message += "gather text"
    cure = "put it out right where it stands: not through {% set %}, {% filter %}, a filter or a variable"
    return parsed.template.problem(message, node.lineno, word, cure)


def _plain_options(node: nodes.Filter) -> bool:
    if node.args or node.dyn_args or node.dyn_kwargs:
        return False
    return all(
        option.key == "special_tokens"
        and isinstance(option.value, nodes.Const)
        and isinstance(option.value.value, bool)
        for option in node.kwargs
    )
