"""Reads JSON that a server wrote: the one way in, with one error for whatever can be wrong. No network.

A server may be broken in any way, and what it says goes into records and onto terminals: so each value has a
type here that leaves no room for what can't be meant.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

import msgspec

LARGEST = 2**63 - 1
"""The largest number that a log can hold."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""What a terminal would obey."""

Whole = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Some = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
Word = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,64}\Z")]
"""A name of the protocol's own: `stop`."""
Name = Annotated[str, msgspec.Meta(pattern=r"\A[^\x00-\x1f\x7f-\x9f]{0,4096}\Z")]
"""A name that people give, as a path: one line, and nothing that commands a terminal."""
Text = Annotated[str, msgspec.Meta(max_length=65_536)]

T = TypeVar("T")


class MalformedError(Exception):
    """The server's answer isn't what the protocol says, or contradicts itself."""


def read(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode what a server sent. Raises `MalformedError`."""
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise MalformedError(str(error)) from error
    except RecursionError as error:
        raise MalformedError("the JSON is nested too deeply") from error
