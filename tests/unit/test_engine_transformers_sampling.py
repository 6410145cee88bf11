"""From logits to tokens: greedy, the truncations in their order, and keys that decide alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from fafo_build.project.declaration import Sampling
from fafo_run.engines.transformers_sampling import _noise, key, next_tokens, penalised

LOGITS = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))
DRAWS = 1000


def drawn(logits: torch.Tensor = LOGITS, draws: int = DRAWS, **sampling: Any) -> list[int]:
    """Return the tokens of rows that differ in nothing but their seeds."""
    rows = [Sampling(**sampling)] * draws
    tokens: list[int] = next_tokens(logits.repeat(draws, 1), rows, [key(n, 0) for n in range(draws)]).tolist()
    return tokens


def support(**sampling: Any) -> set[int]:
    return set(drawn(**sampling))


def test_greedy_takes_the_first_of_the_likeliest_whatever_the_key() -> None:
    assert set(drawn(torch.tensor([[0.0, 5.0, 5.0, 1.0]]), temperature=0)) == {1}


@pytest.mark.parametrize(
    "sampling", [{}, {"top_k": 4}, {"top_p": 0.9999999}, {"min_p": 0.01}, {"top_k": 4, "top_p": 0.9999999}]
)
def test_frequencies_are_the_probabilities(sampling: dict[str, Any]) -> None:
    counts = Counter(drawn(draws=20_000, **sampling))
    for token, share in enumerate((0.4, 0.3, 0.2, 0.1)):
        assert counts[token] / 20_000 == pytest.approx(share, abs=0.015)


def test_what_cuts_nothing_away_changes_nothing() -> None:
    assert drawn() == drawn(top_k=4) == drawn(top_p=0.9999999) == drawn(min_p=0.01)


def test_truncations() -> None:
    assert support() == {0, 1, 2, 3}
    assert support(top_k=2) == {0, 1}
    assert support(top_k=99) == {0, 1, 2, 3}
    assert support(top_p=0.69) == {0, 1}
    assert support(top_p=0.71) == {0, 1, 2}
    assert support(top_p=0.01) == {0}
    assert support(min_p=0.6) == {0, 1}
    assert support(min_p=0.6, top_k=1) == {0}
    assert support(top_p=0.95, min_p=0.4) == {0, 1, 2}
    assert support(temperature=0.01) == {0}


def test_top_p_counts_within_top_k() -> None:
    # Of the best three, 0.9 in all, the first two hold 0.78.
    assert support(top_k=3, top_p=0.75) == {0, 1}
    assert support(top_p=0.75) == {0, 1, 2}


def test_temperature_comes_before_top_p() -> None:
    assert support(temperature=100.0, top_p=0.74) == {0, 1, 2}
    assert support(temperature=0.1, top_p=0.9) == {0}


def test_a_flat_distribution_over_a_large_vocabulary_is_searched_whole() -> None:
    assert len(set(drawn(torch.zeros(1, 5000), top_p=0.9))) > 700


def test_what_has_no_weight_is_never_drawn() -> None:
    logits = torch.tensor([[0.0, 0.0, float("-inf"), float("-inf")]])
    assert set(drawn(logits)) == set(drawn(logits, top_p=0.99)) == {0, 1}


def test_rows_with_unlike_parameters_share_a_batch() -> None:
    samplings = [Sampling(temperature=0), Sampling(), Sampling(top_k=1), Sampling(temperature=0)]
    other = next(n for n in range(DRAWS) if drawn()[n] == 3)
    tokens = next_tokens(LOGITS.repeat(4, 1), samplings, [key(other, 0)] * 4).tolist()
    assert tokens == [0, 3, 0, 0]


def test_a_row_that_is_no_number_harms_no_other() -> None:
    logits = torch.cat([torch.full((1, 4), float("nan")), LOGITS])
    for sampling in (Sampling(temperature=0), Sampling(), Sampling(top_p=0.9), Sampling(min_p=0.1)):
        both = next_tokens(logits, [sampling, sampling], [key(1, 0), key(2, 0)]).tolist()
        assert both[1] == next_tokens(LOGITS, [sampling], [key(2, 0)]).tolist()[0]


def test_the_last_bit_of_a_logit_does_not_decide() -> None:
    logits = torch.randn(1, 20_000, generator=torch.Generator().manual_seed(1))
    shaken = logits * (1 + 2**-22 * torch.randn(logits.shape, generator=torch.Generator().manual_seed(2)))
    assert (logits != shaken).any()
    for sampling in ({}, {"top_p": 0.9}):
        assert drawn(logits, 100, **sampling) == drawn(shaken, 100, **sampling)


def test_keys_differ_by_seed_and_step() -> None:
    keys = {key(seed, step) for seed in (0, 1, 2, 2**31 - 1) for step in range(100)}
    assert len(keys) == 400
    assert all(0 <= value < 2**64 for value in keys)


def test_noise_is_splitmix64_on_every_machine() -> None:
    # The first numbers of splitmix64 with seed 0, as its reference code prints them.
    reference = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    expected = torch.tensor([(number >> 11) + 0.5 for number in reference], dtype=torch.float64) * 2**-53
    noise = _noise([0], torch.tensor([[0, 1, 2]]))[0]
    torch.testing.assert_close(torch.exp(-torch.exp(-noise)), expected, rtol=1e-12, atol=0)


def test_penalties_are_sglangs() -> None:
    logits = torch.tensor([[4.0, -4.0, 1.0, 3.0]])

    def after(said: list[int], **penalties: float) -> list[float]:
        found: list[float] = penalised(logits, [Sampling(**penalties)], [said])[0].tolist()  # type: ignore[arg-type]
        return found

    assert after([0, 0, 1], frequency_penalty=1.5) == [1.0, -5.5, 1.0, 3.0]
    assert after([0, 0, 1], presence_penalty=1.5) == [2.5, -5.5, 1.0, 3.0]
    assert after([0, 0, 1], repetition_penalty=2.0) == [2.0, -8.0, 1.0, 3.0]
    # What is taken away comes first, and may turn the sign.
    assert after([0, 2], frequency_penalty=1.0, presence_penalty=1.0, repetition_penalty=2.0) == [
        1.0, -4.0, -2.0, 3.0,
    ]  # fmt: skip
    assert after([], frequency_penalty=2.0, repetition_penalty=2.0) == logits[0].tolist()
    assert logits[0].tolist() == [4.0, -4.0, 1.0, 3.0]


def test_penalties_are_of_each_row() -> None:
    logits = torch.tensor([[4.0, 1.0]] * 3, dtype=torch.bfloat16)
    samplings = [Sampling(presence_penalty=2.0), Sampling(), Sampling(frequency_penalty=1.0)]
    found = penalised(logits, samplings, [[0], [0], [1, 1]]).tolist()
    assert found == [[2.0, 1.0], [4.0, 1.0], [4.0, -1.0]]
    assert penalised(logits, [Sampling()] * 3, [[0], [0], [1]]) is logits
