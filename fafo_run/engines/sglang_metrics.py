"""Reads the counters of an SGLang server from the text of its `/metrics`. No network.

Only what only grows is read. The gauge `sglang:cache_hit_rate` is of the last batch, and often 0 under load.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from fafo_run.engines.base import Counters
from fafo_run.engines.sglang_json import LARGEST, MalformedError

_PREFIX = b"sglang:"
_NAMES = {
    b"sglang:prompt_tokens_total": "prompt_tokens",
    b"sglang:cached_tokens_total": "cached_tokens",
    b"sglang:num_requests_total": "requests",
    b"sglang:num_aborted_requests_total": "aborted",
    b"sglang:evicted_tokens_total": "evicted_tokens",
}


def counters(text: bytes) -> Counters | None:
    """Return the counters in a `/metrics` page; None when it isn't one of SGLang.

    Each is summed over its labels: sources of the cache, streaming or not, ranks. A counter that has counted
    nothing yet has no line, so one that isn't there is 0. `text` is Prometheus' format: `NAME{LABELS} VALUE`
    and perhaps a time, where a label may hold any character but a bare newline or quote. That is less than
    prometheus_client's parser is for, and it takes 70 ms to import.

    Raises `MalformedError` for what can't be a count.
    """
    found, ours = dict.fromkeys(_NAMES.values(), 0.0), False
    told = set()
    for name, value in _samples(text):
        ours = True
        field = _NAMES.get(name)
        if field is not None:
            found[field] += value
            told.add(field)
    if not ours:
        return None
    for field, value in found.items():
        # Finite samples may add up to infinity.
        if not 0 <= value <= LARGEST:
            raise MalformedError(f"{field} can't be {value:g}")
    return Counters(
        prompt_tokens=round(found["prompt_tokens"]),
        cached_tokens=round(found["cached_tokens"]),
        requests=round(found["requests"]),
        aborted=round(found["aborted"]),
        evicted_tokens=round(found["evicted_tokens"]) if "evicted_tokens" in told else None,
    )


def _samples(text: bytes) -> Iterator[tuple[bytes, float]]:
    """Yield name and value of each line that is SGLang's; a line that is torn is passed over."""
    for line in text.split(b"\n"):
        if not line.startswith(_PREFIX):
            continue
        name, brace, rest = line.partition(b"{")
        if brace:
            rest = rest.rpartition(b"}")[2]
        else:
            name, _, rest = line.partition(b" ")
        try:
            value = float(rest.split()[0])
        except (IndexError, ValueError):
            continue
        if math.isfinite(value):
            yield name, value
