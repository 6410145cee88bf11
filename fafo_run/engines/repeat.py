"""What repeats: whether a request gets the same ids again, by what an engine said of itself. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from attrs import frozen

from fafo_run.item import Value

DETERMINISTIC = "enable_deterministic_inference"
"""The setting of a server that decides it."""


class Level(Enum):
    """How surely an output repeats. The value is what `--json` says."""

    YES = "yes"
    """On the same hardware with the same versions."""
    MOSTLY = "mostly"
    """Until two tokens are nearly as likely, and rounding decides."""
    NO = "no"
    UNKNOWN = "unknown"
    """The engine didn't say what decides it."""


_ORDER = (Level.NO, Level.UNKNOWN, Level.MOSTLY, Level.YES)


@frozen
class Repeatability:
    """Whether an output repeats, and why."""

    level: Level
    why: str
    """One sentence without a full stop."""

    def as_json(self) -> dict[str, str]:
        """Return `level` and `why`."""
        return {"level": self.level.value, "why": self.why}


def repeatability(engine: str, settings: Mapping[str, Value], sampling: Mapping[str, Value]) -> Repeatability:
    """Return what repeats of an answer of `engine` (`transformers`, `sglang`, `fake`) with these settings, as
    provenance has them, and these sampling parameters.
    """
    is_greedy = not sampling.get("temperature", 1.0)
    if engine == "fake":
        return Repeatability(Level.YES, "made-up ids depend on the prompt, the parameters and the seed alone")
    if engine == "transformers":
        how = "decoding is greedy" if is_greedy else "each item is sampled with its own seed"
        return Repeatability(Level.MOSTLY, f"{how}, but what else is in the batch changes the rounding")
    if engine != "sglang" or DETERMINISTIC not in settings:
        return Repeatability(Level.UNKNOWN, "the engine didn't say whether its inference is deterministic")
    if settings[DETERMINISTIC]:
        backend = settings.get("attention_backend") or "its own attention backend"
        how = "" if is_greedy else ", which heeds each item's seed"
        return Repeatability(Level.YES, f"the server's inference is deterministic ({backend}){how}")
    if is_greedy:
        return Repeatability(
            Level.MOSTLY,
            "decoding is greedy, but without --enable-deterministic-inference what else is in the batch, and "
            "whether the prefix was cached, changes the rounding",
        )
    return Repeatability(
        Level.NO, "a server heeds the seed of a sampled output only with --enable-deterministic-inference"
    )


def weaker(one: Repeatability, other: Repeatability) -> Repeatability:
    """Return the one that promises less."""
    return min(one, other, key=lambda each: _ORDER.index(each.level))
