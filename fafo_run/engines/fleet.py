"""Whether two servers are one and the same engine to a run: compares what they say of themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fafo_run.engines.base import Capabilities
from fafo_run.engines.sglang_router import UNKNOWN_VERSION
from fafo_run.item import Value

_DECIDES = (
    "weight_version",
    "dtype",
    "quantization",
    "enable_deterministic_inference",
    "preferred_sampling_params",
)
"""Settings that no two servers of a run may differ in: one class's results would be of two kinds."""


def difference(one: Capabilities, other: Capabilities) -> str | None:
    """Return in what two servers differ so that they can't answer for one run; None when they can.

    The same model may lie at another path on another machine: the last part of the path is compared.
    """
    pairs: list[tuple[str, Value, Value]] = [("model", model_name(one.model), model_name(other.model))]
    pairs += [(name, one.settings.get(name), other.settings.get(name)) for name in _DECIDES]
    found = [f"{name} is {old}, and {new} there" for name, old, new in pairs if old != new]
    return f"at {one.server or 'the first'} {', '.join(found)} ({other.server})" if found else None


def remarks(fleet: Sequence[Capabilities]) -> list[str]:
    """Return a line for each thing that servers of one run differ in, and may."""
    lines = []
    for name in ("version", "page_size", "prefix_cache", "context_length", "cache_tokens"):
        values = {str(getattr(each, name)): each.server for each in reversed(fleet)}
        if len(values) > 1:
            said = ", ".join(f"{value} at {server}" for value, server in sorted(values.items()))
            lines.append(f"the servers differ in {name.replace('_', ' ')}: {said}")
    return [*lines, *_twice(fleet), *_unseen(fleet)]


def _unseen(fleet: Sequence[Capabilities]) -> list[str]:
    """Return a line for each router whose servers can't be asked from here what they are."""
    return [
        f"the servers behind {each.server} can't be reached from here: their pages and their cache are taken "
        "to be SGLang's defaults, and what verify says rests on that"
        for each in fleet
        if each.version == UNKNOWN_VERSION
    ]


def _twice(fleet: Sequence[Capabilities]) -> list[str]:
    """Return a line for each URL behind which another one's process seems to be: every start draws a seed."""
    first = {each.boot: each.server for each in reversed(fleet) if each.boot}
    return [
        f"{first[each.boot]} and {each.server} seem to be one server, given the work of two: name it once"
        for each in fleet
        if each.boot and first[each.boot] != each.server
    ]


def strangers(fleet: Sequence[Capabilities], declared: Collection[str]) -> list[str]:
    """Return a line for each model that servers serve and none of these declared paths names."""
    served = {model_name(limits.model): limits for limits in fleet if limits.server}
    return [
        f"{limits.server} serves {limits.model}, and the model is {' or '.join(declared)}: "
        "if these are two models, the answers mean nothing"
        for limits in served.values()
        if all(other_model(limits, path) for path in declared)
    ]


def other_model(capabilities: Capabilities, declared: str) -> bool:
    """Return whether a server's model has another name than the declared one.

    That proves nothing, either way: a model may be renamed where it lies. A GGUF is served from the folder
    that it was converted to, whose name is a hash; and a name may go on after a dash or a dot, as
    `Qwen3-8B-FP8` does.
    """
    if declared.lower().endswith(".gguf"):
        return False
    short, long = sorted((model_name(path).lower() for path in (capabilities.model, declared)), key=len)
    return not (long.startswith(short) and not long[len(short) : len(short) + 1].isalnum())


def model_name(path: str) -> str:
    """Return what a model is called wherever it lies: the last part of a path or of a hub's name."""
    return path.rstrip("/").rpartition("/")[2]
