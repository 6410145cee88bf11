"""Which tokenizers can't be baked, whatever cuts are tried: those that don't give the same ids every time, or
whose control tokens depend on the letters beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fafo_build.tokens.plain import flat, is_control

_CLASS = re.compile(r"\[(?:\\.|[^\]\\])+\]")
_ANYTHING = ("[\\s\\S]", "[\\S\\s]")
_FAR = re.compile(r"\(\?(?:=|!|<=|<!)[^)]*[*+{]|(?<!\\)\.[*+{]")
"""What looks at text any distance away, in a pattern without character classes: around a place, or over any
characters.
"""


def why_refused(content: Mapping[str, Any]) -> str | None:
    """Say what in a tokenizer's JSON keeps it from being baked; None when nothing does."""
    return next(_reasons(content), None)


def _reasons(content: Mapping[str, Any]) -> Iterator[str]:
    if content["model"].get("dropout"):
        yield f"its merges are random (dropout {content['model']['dropout']})"
    for pattern in _patterns(content):
        if _FAR.search(_CLASS.sub(lambda found: "." if found[0] in _ANYTHING else "x", pattern)):
            yield f"what it makes of a text depends on text any distance away (the pattern {pattern})"
    for token in content["added_tokens"]:
        if is_control(token) and token["single_word"]:
            yield f"its token {token['content']} counts only beside white space (single_word)"
    # The library panics where both take a space: it sets one token's beginning before the other's end.
    right = next((token["content"] for token in content["added_tokens"] if token["rstrip"]), None)
    for token in content["added_tokens"]:
        if right is not None and token["content"].isspace() and token["lstrip"] and not token["rstrip"]:
            left = repr(token["content"])
            yield f"its token {left} takes white space before it (lstrip), and {right!r} after it (rstrip)"


def _patterns(content: Mapping[str, Any]) -> Iterator[str]:
    for part in flat(content.get("normalizer"), "normalizers"):
        if part["type"] == "Replace":
            yield part["pattern"].get("Regex", "")
    for part in flat(content.get("pre_tokenizer"), "pretokenizers"):
        if part["type"] == "Split":
            yield part["pattern"].get("Regex", "")
