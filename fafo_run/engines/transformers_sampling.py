"""From logits to the next token of each row. What is random comes from a key per row, and from nothing else.

Every candidate gets noise that is a hash of the row's key and the token's id, and the best sum of logit and
noise wins (the Gumbel trick). So a row's output doesn't depend on which rows share its batch, nor on the
device; and a logit that differs in its last bit almost never changes it, as it would with one number that
is looked up in a cumulative distribution.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch

from fafo_build.project.declaration import Sampling

_FIRST_LOOK = 256
"""Candidates looked at before a wider search: enough for nearly every top_p."""
_BITS = (1 << 64) - 1
# The constants of splitmix64, whose n-th number is the mixed sum of its seed and n times the first.
_STEP, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key(seed: int, step: int) -> int:
    """Return the key of a row's next token: 64 bits from its seed (31 bits) and how many it has already."""
    mixed = (seed << 32 | step) & _BITS
    mixed = ((mixed ^ (mixed >> 30)) * _MIX1) & _BITS
    mixed = ((mixed ^ (mixed >> 27)) * _MIX2) & _BITS
    return mixed ^ (mixed >> 31)


def penalised(
    logits: torch.Tensor, samplings: Sequence[Sampling], said: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Return the logits, [rows, vocabulary], after each row's penalties on its own output so far, `said`.

    They are SGLang's: frequency and presence penalty are taken from the logit, then the repetition penalty
    divides it, or multiplies a negative one. The prompt's tokens aren't penalised.
    """
    rows = [
        row
        for row, (sampling, ids) in enumerate(zip(samplings, said, strict=True))
        if ids and _penalises(sampling)
    ]
    if not rows:
        return logits
    logits = logits.float().clone()
    for row in rows:
        sampling = samplings[row]
        tokens = torch.tensor(said[row], device=logits.device)
        ids, counts = tokens.unique(return_counts=True)  # type: ignore[no-untyped-call]
        left = logits[row, ids] - sampling.frequency_penalty * counts - sampling.presence_penalty
        factor = sampling.repetition_penalty
        logits[row, ids] = torch.where(left < 0, left * factor, left / factor)
    return logits


def _penalises(sampling: Sampling) -> bool:
    penalties = (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty)
    return penalties != (0.0, 0.0, 1.0)


def next_tokens(logits: torch.Tensor, samplings: Sequence[Sampling], keys: Sequence[int]) -> torch.Tensor:
    """Return one id per row, [rows].

    `logits` is [rows, vocabulary]; a row that isn't finite gets any id. A row with temperature 0 gets the
    likeliest id, the first of equals. Else temperature, top_k, top_p and min_p apply in this order.
    """
    chosen = torch.argmax(logits, dim=-1)
    groups: dict[tuple[float, int | None, float, float], list[int]] = defaultdict(list)
    for row, sampling in enumerate(samplings):
        if sampling.temperature > 0:
            groups[sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p].append(row)
    for (temperature, top_k, top_p, min_p), rows in groups.items():
        scaled = logits[rows].float() / temperature
        if top_k is None and top_p >= 1:
            ids = torch.arange(scaled.shape[-1], device=scaled.device).expand_as(scaled)
        else:
            scaled, ids = _best(scaled, top_k, top_p)
        if min_p > 0:
            # Of the likeliest's probability, hence a distance between logits.
            least = scaled.amax(dim=-1, keepdim=True) + math.log(min_p)
            scaled = scaled.masked_fill(scaled < least, float("-inf"))
        places = torch.argmax(scaled.double() + _noise([keys[row] for row in rows], ids), dim=-1)
        chosen[rows] = ids.gather(-1, places[:, None])[:, 0]
    return chosen


def _best(scaled: torch.Tensor, top_k: int | None, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits that top_k and top_p leave, -inf for the others, and the ids they stand for."""
    vocabulary = scaled.shape[-1]
    total = torch.logsumexp(scaled.double(), dim=-1, keepdim=True)
    width = min(top_k or _FIRST_LOOK, vocabulary)
    while True:
        best, ids = torch.topk(scaled, width, dim=-1)
        weights = torch.exp(best.double() - total)
        if top_k is not None:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        sums = weights.cumsum(dim=-1)
        if top_k is not None or width == vocabulary or bool((sums[:, -1] >= top_p).all()):
            break
        width = min(width * 8, vocabulary)
    # A candidate stays while those before it don't reach top_p; the likeliest always does.
    drop = sums - weights >= top_p
    drop[:, 0] = False
    return best.masked_fill(drop, float("-inf")), ids


def _noise(keys: Sequence[int], ids: torch.Tensor) -> torch.Tensor:
    """Return Gumbel noise for the ids of each row, [rows, candidates], from each row's key alone."""
    signed = [_signed(value) for value in keys]
    # Whole numbers of 64 bits wrap around in torch, as splitmix64 wants it.
    mixed = torch.tensor(signed, device=ids.device)[:, None] + (ids + 1) * _signed(_STEP)
    mixed = (mixed ^ _shifted(mixed, 30)) * _signed(_MIX1)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(_MIX2)
    mixed = mixed ^ _shifted(mixed, 31)
    uniform = (_shifted(mixed, 11).double() + 0.5) * 2.0**-53
    return -torch.log(-torch.log(uniform))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shifted(values: torch.Tensor, count: int) -> torch.Tensor:
    """Shift right and fill with zeros: torch fills with the sign."""
    return (values >> count) & ((1 << (64 - count)) - 1)
