"""Plain values as bytes, the same on every machine: RFC 8785 JSON, and a form for what JSON can't say
exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import rfc8785

_EXACT = 2**53 - 1


def canonical(value: Any) -> bytes:
    """Return a JSON value as RFC 8785 writes it: keys sorted, no white space, UTF-8."""
    return rfc8785.dumps(value)


def sha256(content: bytes) -> str:
    """Return 64 hex digits."""
    return hashlib.sha256(content).hexdigest()


def tagged(value: Any) -> Any:
    """Return a plain value as a JSON value from which `untagged` makes it again, exactly.

    JSON has one kind of number and no order of keys, but a template can tell 1 from 1.0 and sees the order.
    So a float is `{"float": "0.1"}`, a whole number beyond 2**53 is `{"int": "…"}`, a table is `{"table":
    [[key, value]]}`.
    """
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT:
        return {"int": str(value)}
    if isinstance(value, Mapping):
        return {"table": [[key, tagged(inner)] for key, inner in value.items()]}
    if isinstance(value, list | tuple):
        return [tagged(inner) for inner in value]
    return value


def untagged(value: Any) -> Any:
    """Return the plain value of which `tagged` made `value`."""
    if isinstance(value, list):
        return [untagged(inner) for inner in value]
    if isinstance(value, dict):
        ((tag, inner),) = value.items()
        if tag == "table":
            return {key: untagged(item) for key, item in inner}
        return float(inner) if tag == "float" else int(inner)
    return value
