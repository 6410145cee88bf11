"""A template cut at its top level: which parts look at the item, and which are the same for every item.

For explanations alone; what is constant in an artifact is found by `trace`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve, frozen
from jinja2 import Environment, nodes

from fafo_build.render.environment import ITEM_NAMES, PromptEnvironment
from fafo_build.render.sources import Parsed, Prompts

_OPENING = ("if", "for", "macro", "call", "filter", "block", "with", "autoescape")


@frozen
class Segment:
    """A piece of a template that is a template of its own: text, a `{{ }}`, or a whole `{% %}` block."""

    source: str
    """Joined, the segments render as the template does."""
    looks: bool
    """Whether it may look at the item, itself or through a name that was set from it."""
    inside: str
    """The text that stands literally in a block, all branches together; of text, itself."""


def segments(prompts: Prompts, name: str) -> tuple[Segment, ...] | None:
    """Return the segments of a template; None if it extends another, whose blocks it only fills.

    A prompt that it includes and that looks at the item is opened up in its place.
    """
    if _extends(prompts, name):
        return None
    parser = PromptEnvironment({})
    tainted = set(ITEM_NAMES)
    found = []
    for source in _opened(prompts, name, parser, (name,)):
        tree = parser.parse(source)
        looks = _looks(prompts, tree, tainted)
        if looks:
            tainted |= set(_defined(tree))
        found.append(
            Segment(
                source=source,
                looks=looks,
                inside="".join(data.data for data in tree.find_all(nodes.TemplateData)),
            )
        )
    return tuple(found)


def with_source(prompts: Prompts, message: int, source: str) -> Prompts:
    """Return the prompts of a class whose `message` (0-based) has another template of its own."""
    name = "#explained"
    before = prompts.templates[prompts.messages[message]]
    template = evolve(before.template, name=name, source=source)
    return evolve(
        prompts,
        messages=tuple(name if at == message else each for at, each in enumerate(prompts.messages)),
        templates={**prompts.templates, name: Parsed(template, before.tree, before.references)},
    )


def _opened(prompts: Prompts, name: str, parser: Environment, above: tuple[str, ...]) -> Iterator[str]:
    for source in _cut(parser, prompts.templates[name].template.source):
        tree = parser.parse(source)
        included = _included(tree)
        openable = included in prompts.templates and included not in above
        if openable and not _extends(prompts, included) and _looks(prompts, tree, set(ITEM_NAMES)):
            yield from _opened(prompts, included, parser, (*above, included))
        else:
            yield source


def _cut(parser: Environment, source: str) -> Iterator[str]:
    """Yield the pieces of a source: each closes the blocks that it opens. Comments are left out."""
    piece: list[str] = []
    depth = 0
    tag: list[tuple[str, str]] | None = None
    for _, kind, text in parser.lex(source):
        if kind in ("comment_begin", "comment", "comment_end"):
            continue
        piece.append(text)
        if kind == "block_begin":
            tag = []
        elif kind == "block_end" and tag is not None:
            depth += _opens(tag)
            tag = None
        elif kind in ("raw_begin", "raw_end"):
            depth += 1 if kind == "raw_begin" else -1
        elif tag is not None and kind != "whitespace":
            tag.append((kind, text))
        if depth == 0 and kind in ("data", "variable_end", "block_end", "raw_end"):
            yield "".join(piece)
            piece = []


def _opens(tag: Sequence[tuple[str, str]]) -> int:
    """Return 1 for a tag that opens a block, -1 for one that closes it, 0 for others."""
    name = tag[0][1]
    if name.startswith("end"):
        return -1
    # `set` opens a block where it isn't given a value.
    return int(name in _OPENING or (name == "set" and ("operator", "=") not in tag))


def _included(tree: nodes.Template) -> str:
    """Return the name of the prompt that a piece includes, if that is all it does; else nothing."""
    match tree.body:
        case [nodes.Include(template=nodes.Const(value=str(name)), with_context=True)]:
            return name
    return ""


def _extends(prompts: Prompts, name: str) -> bool:
    return any(isinstance(node, nodes.Extends) for _, node in prompts.templates[name].references)


def _looks(prompts: Prompts, tree: nodes.Template, tainted: set[str]) -> bool:
    pulled = (
        const.value
        for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport))
        for const in (node.template, *node.template.find_all(nodes.Const))  # type: ignore[attr-defined]
        if isinstance(const, nodes.Const)
    )
    trees = [tree]
    trees += (
        prompts.templates[reached].tree
        for name in pulled
        if name in prompts.templates
        for reached in prompts.reach(name)
    )
    return any(node.name in tainted for each in trees for node in each.find_all(nodes.Name))


def _defined(tree: nodes.Template) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, nodes.Macro):
            yield node.name
        elif isinstance(node, nodes.Import):
            yield node.target
        elif isinstance(node, nodes.FromImport):
            yield from (name if isinstance(name, str) else name[1] for name in node.names)
    yield from (node.name for node in tree.find_all(nodes.Name) if node.ctx == "store")
    yield from (node.name for node in tree.find_all(nodes.NSRef))
