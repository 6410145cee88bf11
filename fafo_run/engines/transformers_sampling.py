"""From logits to the next token of each row. Randomness comes in as numbers, one per row.

One uniform number decides a token, through the inverse of the cumulative distribution: so a row's output
doesn't depend on which rows share its batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from fafo_build.project.declaration import Sampling

_FIRST_LOOK = 256
"""Candidates looked at before a wider search: enough for nearly every top_p."""


def uniforms(seed: int, count: int) -> list[float]:
    """Return `count` numbers from 0 to 1 (exclusive), the same for one seed on every machine."""
    generator = torch.Generator().manual_seed(seed)
    numbers: list[float] = torch.rand(count, dtype=torch.float64, generator=generator).tolist()
    return numbers


def next_tokens(
    logits: torch.Tensor, samplings: Sequence[Sampling], numbers: Sequence[float]
) -> torch.Tensor:
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
        draws = torch.tensor([numbers[row] for row in rows], dtype=torch.float64, device=logits.device)
        if top_k is None and top_p >= 1:
            chosen[rows] = _from_all(scaled, min_p, draws)
        else:
            chosen[rows] = _from_best(scaled, top_k, top_p, min_p, draws)
    return chosen


def _from_all(scaled: torch.Tensor, min_p: float, draws: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(scaled, dim=-1).double()
    if min_p > 0:
        weights = weights * (weights >= min_p * weights.amax(dim=-1, keepdim=True))
    return _inverse(weights, draws)


def _from_best(
    scaled: torch.Tensor, top_k: int | None, top_p: float, min_p: float, draws: torch.Tensor
) -> torch.Tensor:
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
    keep = sums - weights < top_p
    keep[:, 0] = True
    if min_p > 0:
        keep &= weights >= min_p * weights[:, :1]
    places = _inverse(weights * keep, draws)
    return ids.gather(-1, places[:, None])[:, 0]


def _inverse(weights: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Return, per row, the place at which the running sum of weights passes its draw's share of the total."""
    sums = weights.cumsum(dim=-1)
    total = sums[:, -1]
    # Rounding can lift a draw near 1 to the total, past the last place that has any weight.
    shares = torch.minimum(draws * total, torch.nextafter(total, torch.zeros_like(total)))
    places = torch.searchsorted(sums, shares[:, None], right=True)[:, 0]
    return places.clamp(max=weights.shape[-1] - 1)
