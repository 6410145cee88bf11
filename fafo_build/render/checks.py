"""What can be said of templates without rendering them: names that nobody defines, misused holes, used
variables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from jinja2 import meta, nodes

from fafo_build.errors import Problem, TemplateError
from fafo_build.project.values import did_you_mean, nearest
from fafo_build.render.environment import CONSTANT_NAMES, ITEM_NAMES, PromptEnvironment
from fafo_build.render.sources import Parsed, Prompts

_VOLATILE = {
    "now": "a prompt must be the same on every day",
    "random": "a prompt must be the same at every build",
    "lipsum": "a prompt must be the same at every build",
}


def check(prompts: Prompts, variables: Mapping[str, Any]) -> None:
    """Raise `TemplateError` with every mistake that can be found before a row is seen."""
    environment = PromptEnvironment({})
    inherited = _inherited_names(prompts)
    visible = {*ITEM_NAMES, *CONSTANT_NAMES, *variables}
    bare = _imported_without_context(prompts)
    problems: list[Problem] = []
    for name, parsed in prompts.templates.items():
        hidden = visible if name in bare else set()
        known = (visible | inherited[name]) - hidden
        problems += _undefined(parsed, environment, known, hidden)
        problems += _vars(parsed, variables)
        problems += _filters(parsed, environment)
        problems += _holes(parsed)
    if problems:
        raise TemplateError(problems)


def used_vars(prompts: Prompts, names: tuple[str, ...], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the class variables that the named templates look at, sorted; all, in order, if they use
    `vars` whole.
    """
    used: set[str] = set()
    for name in names:
        tree = prompts.templates[name].tree
        whole, keys = _vars_keys(tree)
        if whole:
            return dict(variables)
        used |= {key for key, _ in keys}
        used |= {node.name for node in tree.find_all(nodes.Name)}
    return {name: variables[name] for name in sorted(used) if name in variables}


def uses_examples(prompts: Prompts, names: tuple[str, ...]) -> bool:
    """Tell whether the named templates look at `examples`."""
    trees = (prompts.templates[name].tree for name in names)
    return any(node.name == "examples" for tree in trees for node in tree.find_all(nodes.Name))


def _undefined(
    parsed: Parsed, environment: PromptEnvironment, known: set[str], hidden: set[str]
) -> Iterator[Problem]:
    names = meta.find_undeclared_variables(parsed.tree) - known - set(environment.globals)
    for name in sorted(names):
        line = _line_of(parsed.tree, name)
        if name in hidden:
            message, cure = f"'{name}' isn't visible in an imported prompt", "import it `with context`"
        elif name in _VOLATILE:
            message, cure = (
                f"'{name}' doesn't exist here: {_VOLATILE[name]}",
                "put the text itself into [vars]",
            )
        else:
            message = f"'{name}' is undefined"
            cure = did_you_mean(name, sorted(known), what="a prompt sees")
            cure += f" (a column of the row is item.{name})"
        yield parsed.template.problem(message, line, name, cure)


def _line_of(tree: nodes.Template, name: str) -> int:
    lines = (node.lineno for node in tree.find_all(nodes.Name) if node.name == name and node.ctx == "load")
    return min(lines, default=1)


def _inherited_names(prompts: Prompts) -> dict[str, set[str]]:
    """Per template, the names that a template which includes it may have set before."""
    own = {name: set(_set_names(parsed.tree)) for name, parsed in prompts.templates.items()}
    inherited: dict[str, set[str]] = {name: set() for name in own}
    for name in own:
        for below in prompts.reach(name):
            if below != name:
                inherited[below] |= own[name]
    return inherited


def _set_names(tree: nodes.Template) -> Iterator[str]:
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


def _vars_keys(tree: nodes.Template) -> tuple[bool, list[tuple[str, int]]]:
    """Return whether `vars` is used whole, and the keys (with lines) by which it is used otherwise."""
    keys: list[tuple[str, int]] = []
    for node in tree.find_all((nodes.Getattr, nodes.Getitem)):
        key = vars_key(node)
        if key is not None:
            keys.append((key, node.lineno))
    uses = sum(node.name == "vars" and node.ctx == "load" for node in tree.find_all(nodes.Name))
    return uses > len(keys) or any(hasattr(dict, key) for key, _ in keys), keys


def vars_key(node: nodes.Node) -> str | None:
    """Return NAME of a node `vars.NAME` or `vars['NAME']`, None for others."""
    target = getattr(node, "node", None)
    if not isinstance(target, nodes.Name) or target.name != "vars":
        return None
    if isinstance(node, nodes.Getattr):
        return node.attr
    inner = getattr(node, "arg", None)
    return inner.value if isinstance(inner, nodes.Const) and isinstance(inner.value, str) else None


def _vars(parsed: Parsed, variables: Mapping[str, Any]) -> Iterator[Problem]:
    if "vars" in _set_names(parsed.tree):
        return
    for key, line in _vars_keys(parsed.tree)[1]:
        if key not in variables and not hasattr(dict, key):
            cure = did_you_mean(key, variables, what="[vars] has")
            yield parsed.template.problem(f"'vars.{key}' is undefined", line, key, cure)


def _filters(parsed: Parsed, environment: PromptEnvironment) -> Iterator[Problem]:
    pairs: tuple[tuple[str, type[nodes.Filter] | type[nodes.Test], Collection[str]], ...] = (
        ("filter", nodes.Filter, environment.filters),
        ("test", nodes.Test, environment.tests),
    )
    for kind, node_type, known in pairs:
        for node in parsed.tree.find_all(node_type):
            if node.name not in known:
                near = nearest(node.name, known)
                cure = f"did you mean {near}?" if near else _VOLATILE.get(node.name)
                yield parsed.template.problem(
                    f"there is no {kind} '{node.name}'", node.lineno, node.name, cure
                )


def _holes(parsed: Parsed) -> Iterator[Problem]:
    """Yield holes whose marks a filter could change, and holes with unknown options."""
    # What these gather up can go through filters later.
    gathering = parsed.tree.find_all((nodes.FilterBlock, nodes.AssignBlock, nodes.Macro, nodes.CallBlock))
    gathered = {id(node) for block in gathering for node in block.find_all(nodes.Filter)}
    outermost = {
        id(child) for output in parsed.tree.find_all(nodes.Output) for child in output.nodes
    } - gathered
    for node in parsed.tree.find_all(nodes.Filter):
        if node.name != "hole":
            continue
        if id(node) not in outermost:
            message = (
                "hole(...) must be the last filter of a {{ }}, outside of macros and blocks that gather text"
            )
            yield parsed.template.problem(message, node.lineno, "hole")
        elif not _plain_options(node):
            message = "hole takes special_tokens=true or special_tokens=false, and nothing else"
            yield parsed.template.problem(message, node.lineno, "hole")


def _plain_options(node: nodes.Filter) -> bool:
    if node.args or node.dyn_args or node.dyn_kwargs:
        return False
    return all(
        option.key == "special_tokens"
        and isinstance(option.value, nodes.Const)
        and isinstance(option.value.value, bool)
        for option in node.kwargs
    )
