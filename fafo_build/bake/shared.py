"""Which classes begin alike: tokens that one cache entry could serve to several of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from attrs import frozen

from fafo_build.bake.artifact import Artifact


@frozen
class Shared:
    """A beginning that prefixes have in common."""

    classes: tuple[str, ...]
    """Their names, sorted; two or more."""
    tokens: int


def shared_prefix(artifacts: Mapping[str, Artifact]) -> tuple[Shared, ...]:
    """Return, per model, what all its classes begin with, and then every pair that has more in common than
    that.
    """
    found: list[Shared] = []
    by_model: dict[str, list[str]] = {}
    for name in sorted(artifacts):
        by_model.setdefault(artifacts[name].model.digest, []).append(name)
    for names in by_model.values():
        if len(names) < 2:
            continue
        all_of_them = _common(artifacts[name].prefix for name in names)
        found.append(Shared(tuple(names), all_of_them))
        for pair in combinations(names, 2):
            tokens = _common(artifacts[name].prefix for name in pair)
            if tokens > all_of_them:
                found.append(Shared(pair, tokens))
    return tuple(shared for shared in found if shared.tokens)


def _common(prefixes: Iterable[tuple[int, ...]]) -> int:
    first, *others = prefixes
    return next(
        (at for at, token in enumerate(first) if any(other[at : at + 1] != (token,) for other in others)),
        len(first),
    )
