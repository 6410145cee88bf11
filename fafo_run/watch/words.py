"""How what a run says puts numbers for people."""

from __future__ import annotations

from collections.abc import Mapping


def counted(count: int, word: str) -> str:
    """Return `1 segment`, `2 segments`."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def times(count: int) -> str:
    """Return `once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(count) or f"{count} times"


def bounded(text: str, most: int) -> str:
    """Return a text, without its middle when it is longer than `most`; then it says how much is left out."""
    if len(text) <= most:
        return text
    begin = most * 2 // 3
    end = len(text) - (most - begin)
    return f"{text[:begin]} [… {end - begin:,} characters left out; --json has them …] {text[end:]}"


def by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the counts with the largest first, of equal ones by name."""
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))
