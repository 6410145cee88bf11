"""What the value of one key of `launch` must be, beyond its type."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fafo_build.project.values import MistakeError, bare, describe, in_schema

ENV_NAME = "[A-Za-z_][A-Za-z0-9_]*"

_LAST_PORT = 65535

_SAID_BY_FAFO: Mapping[str, str] = {
    "--port": "write launch = { port = 30000 }, the first server's",
    **dict.fromkeys(("--model-path", "--model"), "[model] says it: take it out"),
    "--api-key": 'write api_key_env = "SGLANG_API_KEY", and export the key',
}
"""Flags that aren't for `launch.args`: where the same is said."""


@in_schema(minimum=1, maximum=_LAST_PORT)
def port(value: int) -> None:
    """Refuse what isn't a port."""
    if not 1 <= value <= _LAST_PORT:
        raise MistakeError(f"expected a port, 1 to {_LAST_PORT}, got {value}")


@in_schema()
def args(values: Sequence[str]) -> None:
    """Refuse flags that fafo says itself, and two words in one."""
    for index, value in enumerate(values):
        name = value.partition("=")[0]
        if name in _SAID_BY_FAFO:
            raise MistakeError(f"fafo itself says {name}", cure=_SAID_BY_FAFO[name], path=(index,))
        if value.startswith("-") and " " in value.strip():
            raise MistakeError(
                f"expected one word, got {describe(value)}",
                cure=f"write each word by itself: {', '.join(map(describe, value.split()))}",
                path=(index,),
            )


@in_schema(additionalProperties={"type": "string"}, propertyNames={"pattern": f"^{ENV_NAME}$"})
def env(value: Mapping[str, Any]) -> None:
    """Refuse what no environment can hold."""
    for name, given in value.items():
        if not re.fullmatch(ENV_NAME, name):
            raise MistakeError(
                f"expected the name of an environment variable, got {describe(name)}",
                cure="letters, digits and `_`, beginning with a letter",
                path=(name,),
                at="key",
            )
        if not isinstance(given, str):
            raise MistakeError(
                f"expected a string, got {describe(given)}",
                cure=f'write it in quotes: "{bare(given)}"' if isinstance(given, int | float) else None,
                path=(name,),
            )
