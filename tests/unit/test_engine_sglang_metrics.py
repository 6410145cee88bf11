"""The counters of a server, from the text of its `/metrics`."""

from __future__ import annotations

import pytest

from fafo_run.engines.base import Counters
from fafo_run.engines.sglang_json import MalformedError
from fafo_run.engines.sglang_metrics import counters

FRESH = b"""\
# HELP sglang:cache_hit_rate The prefix cache hit rate.
# TYPE sglang:cache_hit_rate gauge
sglang:cache_hit_rate{engine_type="unified",model_name="tiny",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 0.0
"""
"""Of 0.5.23 before its first request: a counter that counted nothing has no line at all."""

WORKED = b"""\
# HELP sglang:evicted_tokens_total The number of device KV token slots freed by eviction.
# TYPE sglang:evicted_tokens_total counter
sglang:evicted_tokens_total{cache_type="UnifiedRadixCache",dp_rank="0",pp_rank="0",tp_rank="0"} 19712.0
# HELP sglang:prompt_tokens_total Number of prefill tokens processed.
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{engine_type="unified",is_streaming="false",model_name="tiny"} 42350.0
# TYPE sglang:prompt_tokens_histogram histogram
sglang:prompt_tokens_histogram_sum{engine_type="unified",model_name="tiny"} 42350.0
# HELP sglang:num_requests_total Number of requests processed.
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{engine_type="unified",is_streaming="false",model_name="tiny"} 47.0
# HELP sglang:cached_tokens_total Number of cached prompt tokens by source (device/host/storage).
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{cache_source="device",engine_type="unified",model_name="tiny"} 2688.0
"""
"""Of 0.5.23 after 47 requests, and lines around them."""


def test_the_counters_of_a_real_server() -> None:
    assert counters(WORKED) == Counters(42350, 2688, 47, 0, 19712)


def test_a_fresh_server_has_counted_nothing() -> None:
    assert counters(FRESH) == Counters(0, 0, 0, 0, None)


def test_counters_are_summed_over_their_labels() -> None:
    more = b"""\
sglang:cached_tokens_total{cache_source="host",engine_type="unified",model_name="tiny"} 300.0
sglang:prompt_tokens_total{engine_type="unified",is_streaming="true",model_name="tiny"} 50.0
sglang:num_requests_total{engine_type="unified",is_streaming="true",model_name="tiny"} 3
sglang:num_aborted_requests_total{engine_type="unified",model_name="tiny"} 2.0 1764518400000
"""
    assert counters(WORKED + more) == Counters(42400, 2988, 50, 2, 19712)


@pytest.mark.parametrize("label", ["a } b", "a\\\\", 'a\\"} 7', "a b", "{"])
def test_labels_may_hold_anything(label: str) -> None:
    line = f'sglang:prompt_tokens_total{{model_name="{label}"}} 12.0\n'
    assert counters(line.encode()) == Counters(12, 0, 0)


def test_large_counts_and_those_without_labels() -> None:
    assert counters(b"sglang:prompt_tokens_total 1.2345678901e+010\n") == Counters(12345678901, 0, 0)


def test_what_is_no_number_is_passed_over() -> None:
    text = b"sglang:prompt_tokens_total{} \nsglang:prompt_tokens_total{} NaN\nsglang:num_requests_total{} 1\n"
    assert counters(text) == Counters(0, 0, 1)


@pytest.mark.parametrize(
    "text", [b"", b"<html>", b"# TYPE sglang:x counter\n", b"python_info{} 1.0\n", b"\xff\xfe"]
)
def test_other_pages_are_none(text: bytes) -> None:
    assert counters(text) is None


@pytest.mark.parametrize(
    "values", [["1.5e308", "1.5e308"], ["1e19"], ["-1"], ["5", "-6"], ["9223372036854775808"]]
)
def test_what_can_be_no_count(values: list[str]) -> None:
    text = "".join(f'sglang:prompt_tokens_total{{a="{at}"}} {value}\n' for at, value in enumerate(values))
    with pytest.raises(MalformedError, match="prompt_tokens"):
        counters(text.encode())
