"""Names in templates that nobody defines: of variables, of keys in these, and of what is imported.

A name may be absent where the template asks first: `{% if tone is defined %}`, `{{ tone | default('dry') }}`.
So one prompt can serve classes that declare a variable and classes that don't.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import meta, nodes

from fafo_build.errors import Problem
from fafo_build.project.values import did_you_mean
from fafo_build.render.environment import CONSTANT_NAMES, ITEM_NAMES, VOLATILE, PromptEnvironment
from fafo_build.render.sources import Parsed, Prompts
from fafo_build.render.used import key_of

_Route = tuple[str | int, ...]
"""A variable and the keys that lead into it. `vars.x.y` and `x.y` are the same."""

_ASKING = (nodes.If, nodes.CondExpr, nodes.And, nodes.Or, nodes.For)
"""Nodes that may ask for a name before they use it."""


def check_names(prompts: Prompts, variables: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield every use of a name that can't be there, whatever the row."""
    functions = set(PromptEnvironment({}).globals)
    inherited = _inherited_names(prompts)
    visible = {*ITEM_NAMES, *CONSTANT_NAMES, *variables}
    bare = _imported_without_context(prompts)
    for name, parsed in prompts.templates.items():
        hidden = visible if name in bare else set()
        known = (visible | inherited[name]) - hidden
        yield from _undefined(parsed, known, functions, hidden)
        yield from _keys(parsed, variables, inherited[name] | set(set_names(parsed.tree)))
        yield from _imports(parsed, prompts)


def set_names(tree: nodes.Template) -> Iterator[str]:
    """Yield the names that a template sets anywhere: variables, parameters, macros and imports."""
    for node in tree.find_all(nodes.Name):
        if node.ctx in ("store", "param"):
            yield node.name
    for macro in tree.find_all(nodes.Macro):
        yield macro.name
    for imported in tree.find_all(nodes.Import):
        yield imported.target
    for chosen in tree.find_all(nodes.FromImport):
        for name in chosen.names:
            yield name if isinstance(name, str) else name[1]


def _undefined(parsed: Parsed, known: set[str], functions: set[str], hidden: set[str]) -> Iterator[Problem]:
    used: dict[str, int] = {}
    for node in _unasked(parsed.tree, frozenset()):
        if isinstance(node, nodes.Name):
            used[node.name] = min(node.lineno, used.get(node.name, node.lineno))
    for name in sorted(meta.find_undeclared_variables(parsed.tree) - known - functions):
        line = used.get(name)
        if name in hidden:
            # Even where it is asked for: the answer would be no, although the class has it.
            message, cure = f"'{name}' isn't visible in an imported prompt", "import it `with context`"
            line = line or 1
        elif line is None:
            continue
        elif name in VOLATILE:
            message = f"'{name}' doesn't exist here: {VOLATILE[name]}"
            cure = "put the text itself into [vars]"
        else:
            message = f"'{name}' is undefined"
            cure = did_you_mean(name, sorted(known), what="a prompt sees")
            cure += f" (a column of the row is item.{name})"
        yield parsed.template.problem(message, line, name, cure)


def _keys(parsed: Parsed, variables: Mapping[str, Any], set_here: set[str]) -> Iterator[Problem]:
    """Yield the keys that a class variable lacks, at any depth."""
    for node in _unasked(parsed.tree, frozenset()):
        root, route = _route(node)
        if root in set_here or len(route) < (1 if root == "vars" else 2) or root not in ("vars", *variables):
            continue
        holder: Any = variables
        for key in route[:-1]:
            within = isinstance(holder, Mapping) and key in holder
            holder = holder[key] if within else None
        last = route[-1]
        if isinstance(holder, Mapping) and last not in holder and not hasattr(dict, str(last)):
            place = ".".join(str(key) for key in route)
            table = ".".join(("vars", *(str(key) for key in route[:-1])))
            cure = did_you_mean(str(last), holder, what=f"[{table}] has")
            yield parsed.template.problem(f"'vars.{place}' is undefined", node.lineno, str(last), cure)


def _unasked(node: nodes.Node, asked: frozenset[_Route]) -> Iterator[nodes.Node]:
    """Yield the names that are read, and the keys, but those that the template asks for first."""
    if isinstance(node, _ASKING):
        asked |= set(_asked_in(node if isinstance(node, nodes.And | nodes.Or) else node.test))
    elif isinstance(node, nodes.Test | nodes.Filter):
        asked |= set(_asks(node))
    root, route = _route(node)
    is_name = isinstance(node, nodes.Name) and node.ctx == "load"
    if (is_name or (root and route)) and route not in asked:
        yield node
    for child in node.iter_child_nodes():
        yield from _unasked(child, asked)


def _asked_in(test: nodes.Node | None) -> Iterator[_Route]:
    if test is not None:
        yield from _asks(test)
        for node in test.find_all((nodes.Test, nodes.Filter)):
            yield from _asks(node)


def _asks(node: nodes.Node) -> Iterator[_Route]:
    """Yield what `… is defined` and `… | default(…)` ask for."""
    names = {nodes.Test: ("defined", "undefined"), nodes.Filter: ("default", "d")}
    if isinstance(node, nodes.Test | nodes.Filter) and node.name in names[type(node)]:
        route = _route(node.node)[1] if node.node is not None else ()
        if route:
            yield route


def _route(node: nodes.Node) -> tuple[str, _Route]:
    """Return the name from which an expression `a.b['c']` starts, and its route; "" for other expressions."""
    if isinstance(node, nodes.Name):
        return node.name, () if node.name == "vars" else (node.name,)
    key = key_of(node)
    if key is None:
        return "", ()
    root, route = _route(node.node)  # type: ignore[attr-defined]
    return (root, (*route, key)) if root else ("", ())


def _inherited_names(prompts: Prompts) -> dict[str, set[str]]:
    """Per template, the names that a template which includes it may have set before."""
    own = {name: set(set_names(parsed.tree)) for name, parsed in prompts.templates.items()}
    inherited: dict[str, set[str]] = {name: set() for name in own}
    for name in own:
        for below in prompts.reach(name):
            if below != name:
                inherited[below] |= own[name]
    return inherited


def _imported_without_context(prompts: Prompts) -> set[str]:
    """Return the templates that Jinja runs without the caller's names, and those that are reached from
    there.
    """
    bare: set[str] = set()
    for parsed in prompts.templates.values():
        for name, node in parsed.references:
            if isinstance(node, nodes.Import | nodes.FromImport) and not node.with_context:
                bare.update(prompts.reach(name))
    return bare


def _imports(parsed: Parsed, prompts: Prompts) -> Iterator[Problem]:
    """Yield the names that are taken from an imported prompt and aren't in it."""
    modules: dict[str, str] = {}
    for name, node in parsed.references:
        if isinstance(node, nodes.FromImport):
            for chosen in node.names:
                wanted = chosen if isinstance(chosen, str) else chosen[0]
                yield from _absent(parsed, prompts, name, wanted, node.lineno)
        elif isinstance(node, nodes.Import):
            # Of a name that is set twice it isn't known here what it means.
            modules[node.target] = "" if node.target in modules else name
    names = list(set_names(parsed.tree))
    for node in parsed.tree.find_all((nodes.Getattr, nodes.Getitem)):
        root, route = _route(node)
        if len(route) == 2 and modules.get(root) and names.count(root) == 1:
            yield from _absent(parsed, prompts, modules[root], str(route[1]), node.lineno)


def _absent(parsed: Parsed, prompts: Prompts, name: str, wanted: str, line: int) -> Iterator[Problem]:
    imported = prompts.templates[name]
    inside = {each for each in set_names(imported.tree) if not each.startswith("_")}
    # A prompt that extends another has what that one has; whoever wants that is left to Jinja.
    if wanted in inside or any(isinstance(node, nodes.Extends) for _, node in imported.references):
        return
    cure = did_you_mean(wanted, sorted(inside), what="it has")
    yield parsed.template.problem(f"there is no '{wanted}' in {imported.template.file}", line, wanted, cure)
