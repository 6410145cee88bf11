"""Which class variables and examples a template looks at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import nodes

from fafo_build.render.sources import Prompts


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
        used |= keys
        used |= {node.name for node in tree.find_all(nodes.Name)}
    return {name: variables[name] for name in sorted(used) if name in variables}


def uses_examples(prompts: Prompts, names: tuple[str, ...]) -> bool:
    """Tell whether the named templates look at `examples`."""
    trees = (prompts.templates[name].tree for name in names)
    return any(node.name == "examples" for tree in trees for node in tree.find_all(nodes.Name))


def vars_key(node: nodes.Node) -> str | None:
    """Return NAME of a node `vars.NAME` or `vars['NAME']`, None for others."""
    target = getattr(node, "node", None)
    if not isinstance(target, nodes.Name) or target.name != "vars":
        return None
    key = key_of(node)
    return key if isinstance(key, str) else None


def key_of(node: nodes.Node) -> str | int | None:
    """Return KEY of a node `….KEY` or `…[KEY]`; None for others, and for a key that is computed."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return node.arg.value if isinstance(node.arg.value, str | int) else None
    return None


def _vars_keys(tree: nodes.Template) -> tuple[bool, set[str]]:
    """Return whether `vars` is used whole, and the keys by which it is used otherwise."""
    found = map(vars_key, tree.find_all((nodes.Getattr, nodes.Getitem)))
    keys = [key for key in found if key is not None]
    uses = sum(node.name == "vars" and node.ctx == "load" for node in tree.find_all(nodes.Name))
    return uses > len(keys) or any(hasattr(dict, key) for key in keys), set(keys)
