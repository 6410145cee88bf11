"""The nouns of an explanation: what a class's conversation is made of, where its prefix ends, and what would
lengthen it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import frozen

from fafo_build.bake.artifact import Artifact
from fafo_build.project.declaration import PromptClass
from fafo_build.render.sources import Prompts
from fafo_build.tokens.encoder import TextEncoder

PartKind = Literal["prefix", "glue", "hole", "late", "span", "tail"]
AdviceKind = Literal["text", "block", "message", "fragment"]


@frozen
class Part:
    """A piece of the rendered conversation."""

    kind: PartKind
    """`late` is constant text of a hole: it stands after the first look at the item."""
    text: str
    """As it is rendered; of a hole the template's own text, `{{ item.text }}`."""
    tokens: int | None
    """How many; of `glue` and `late` when encoded alone. None for a hole."""
    message: int | None
    """0-based, of a hole and its late text; else None."""


@frozen
class Boundary:
    """Where the prefix ends."""

    reason: Literal["special token", "piece"]
    """What it ends after: a special token, or a piece of text that no following text can change."""
    last: str
    """The text of its last token."""
    glue: str
    """The constant text between this place and the hole; it is encoded with each item."""
    glue_tokens: int
    """How many tokens of constant text the prefix lacks for that."""


@frozen
class Advice:
    """Constant text that isn't in the prefix, or not shared, and would be if it stood elsewhere."""

    kind: AdviceKind
    """`text` stands after a hole in its message, `block` inside a block that looks at the item, `message` in
    messages after the hole; `fragment` is in the prefix, and in those of other classes at another place.
    """
    tokens: int
    """How many of its tokens the cache would serve; of `block` at most."""
    text: str
    message: int | None
    """0-based: where the hole is; None for a fragment."""
    hole: str
    """The template's text with which the hole begins; empty for a fragment."""
    messages: tuple[int, ...] = ()
    """0-based: the later messages in which the text of a `message` stands."""
    classes: tuple[str, ...] = ()
    """The other classes that have a fragment."""
    prompts: tuple[str, ...] = ()
    """Prompt files that stand whole in a fragment."""


@frozen
class Explanation:
    """What there is to say of a class."""

    parts: tuple[Part, ...]
    """In the order of the conversation."""
    boundary: Boundary
    advice: tuple[Advice, ...]
    """What would bring most comes first."""


@frozen
class Subject:
    """What is explained."""

    declared: PromptClass
    prompts: Prompts
    examples: tuple[Mapping[str, Any], ...]
    artifact: Artifact
    encoder: TextEncoder
