"""What lies between two artifacts of a class: as text, as token ids, and as what a change costs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from typing import Any

from attrs import asdict, frozen

from fafo_build.bake.artifact import Artifact

_AROUND = 6
"""Tokens before the first one that differs that are shown."""
_OPEN, _CLOSE = "‹", "›"


@frozen
class FirstDifference:
    """The first token of the prefixes that isn't the same. A prefix that ends there has no token."""

    index: int
    """0-based, in the prefix."""
    common: tuple[int, ...]
    """The last few ids before it."""
    old: int | None
    new: int | None


@frozen
class Difference:
    """Two artifacts of one class, held against each other."""

    old: Artifact
    new: Artifact
    first: FirstDifference | None
    """None when the prefixes are the same."""
    kept: int
    """Tokens of the new prefix that the cache has, where it holds the old one."""
    changes: tuple[str, ...]
    """What differs beside the text: the model, a hole, a variable, …; a line each."""
    text: tuple[str, ...]
    """A unified diff of the rendered text, without its two head lines."""

    @property
    def same(self) -> bool:
        """Whether both are one artifact: then results stay valid."""
        return self.old.hash == self.new.hash

    @property
    def lost(self) -> int:
        """Tokens of the old prefix that the cache holds in vain."""
        return len(self.old.prefix) - self.kept

    @property
    def anew(self) -> int:
        """Tokens of the new prefix that each server must compute once."""
        return len(self.new.prefix) - self.kept


def difference(old: Artifact, new: Artifact) -> Difference:
    """Hold two artifacts against each other."""
    first = _first_difference(old.prefix, new.prefix)
    common = len(new.prefix) if first is None else first.index
    # Another model, or the same one of another revision, has a cache of its own.
    kept = common if old.model == new.model else 0
    return Difference(
        old=old,
        new=new,
        first=first,
        kept=kept,
        changes=tuple(_changes(old, new)),
        text=tuple(unified_diff(rendered(old), rendered(new), lineterm="", n=3))[2:],
    )


def per_item(artifact: Artifact) -> int:
    """Return how many constant tokens each prompt has behind its prefix."""
    return sum(len(span.ids) for span in artifact.spans[1:])


def rendered(artifact: Artifact) -> list[str]:
    """Return the conversation as lines: the spans and the glue as they are, each hole as ‹its template›."""
    parts = [artifact.spans[0].text]
    for slot, span in zip(artifact.slots, artifact.spans[1:], strict=True):
        parts += [part if isinstance(part, str) else _hole(artifact, part) for part in slot.parts]
        parts.append(span.text)
    return "".join(parts).split("\n")


def _hole(artifact: Artifact, number: int) -> str:
    """Return what is rendered per item: the message's template, without the constant beginning if that is
    written out in it.
    """
    hole = artifact.holes[number]
    source = artifact.templates[hole.template]
    return f"{_OPEN}{source.removeprefix(hole.head)}{_CLOSE}"


def _first_difference(old: Sequence[int], new: Sequence[int]) -> FirstDifference | None:
    shorter = min(len(old), len(new))
    index = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    if index == len(old) == len(new):
        return None
    return FirstDifference(
        index=index,
        common=tuple(new[max(0, index - _AROUND) : index]),
        old=old[index] if index < len(old) else None,
        new=new[index] if index < len(new) else None,
    )


def _changes(old: Artifact, new: Artifact) -> Iterator[str]:
    yield from _changed("model", asdict(old.model), asdict(new.model))
    if old.tokenizer != new.tokenizer:
        yield f"tokenizer: {old.tokenizer[:8]}, now {new.tokenizer[:8]}"
    if old.vocab_size != new.vocab_size:
        yield f"vocab_size: {old.vocab_size}, now {new.vocab_size}"
    if old.lead != new.lead:
        yield f"characters before which the tokenizer's text begins: {old.lead}, now {new.lead}"
    if len(old.holes) != len(new.holes):
        yield f"holes: {len(old.holes)}, now {len(new.holes)}"
    else:
        for number, (before, now) in enumerate(zip(old.holes, new.holes, strict=True)):
            yield from _changed(f"hole {number + 1}", asdict(before), asdict(now))
    shown = {hole.template for artifact in (old, new) for hole in artifact.holes}
    for name in sorted({*old.templates, *new.templates} - shown):
        if old.templates.get(name) != new.templates.get(name):
            yield f"template {name}, which a hole pulls in: {_what(name, old.templates, new.templates)}"
    yield from _changed("vars", old.vars, new.vars)
    if old.examples != new.examples:
        yield f"examples that a hole looks at: {len(old.examples)}, now {len(new.examples)}; they differ"


def _changed(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name) or (name in old) != (name in new):
            yield f"{what}.{name}: {_value(old, name)}, now {_value(new, name)}"


def _value(table: Mapping[str, Any], name: str) -> str:
    return json.dumps(table[name], ensure_ascii=False) if name in table else "none"


def _what(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    if name not in old:
        return "new"
    return "changed" if name in new else "gone"
