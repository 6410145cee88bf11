"""The hash of what an engine is asked for besides the prompt; it is part of every identity."""

from __future__ import annotations

from attrs import asdict

from fafo_build.bake.canonical import canonical, sha256
from fafo_build.project.declaration import Sampling


def sampling_hash(sampling: Sampling) -> str:
    """Return 64 hex digits over the sampling parameters. `samples` is left out: each sample has its own
    identity.
    """
    fields = {name: value for name, value in asdict(sampling).items() if name != "samples"}
    # As text, so that no number's way of being written decides: 1.0 is "1.0" on every machine.
    return sha256(
        canonical(
            {name: repr(value) if isinstance(value, float) else value for name, value in fields.items()}
        )
    )
