"""How large the caches of a run are, and what their ranks are called."""

from __future__ import annotations

import pytest
from attrs import evolve

from fafo_build.project.declaration import Engine, Launch
from fafo_run.engines.base import Capabilities
from fafo_run.run.caches import Given, ServerCache, by_rank, cache_of, caches_of
from fafo_run.run.simulated_server import CacheSize

URL = "http://10.0.0.7:30000"
SAID = Capabilities(
    "sglang", "0.5.23", "m", 1000, 4000, 16, True, 1, 40, {}, {},
    server=URL, ranks=2, running=32, cache_tokens=9_000, batch_tokens=2_048,
)  # fmt: skip


def launching(*args: str, replicas: int = 1) -> Engine:
    return Engine("fast", "sglang", launch=Launch(replicas=replicas, args=args))


def test_what_a_server_says_is_its_size() -> None:
    found = cache_of(SAID)
    assert found == ServerCache(URL, 9_000, 16, True, 2, 32, 2_048)
    assert found.size(None) == CacheSize(9_000, 16, running=32, in_flight=160, batch_tokens=2_048)
    # Of a server's requests each rank has its share.
    assert found.size(50).in_flight == 25
    assert found.size(1).in_flight == 1


def test_a_server_that_doesnt_tell_its_size_says_so() -> None:
    found = cache_of(evolve(SAID, cache_tokens=None))
    assert found.tokens is None and URL in found.trouble and "--cache-tokens" in found.cure


def test_ranks_are_called_as_in_a_run() -> None:
    one, two = ServerCache(URL, 1), ServerCache("http://b", 2, ranks=2)
    assert by_rank([one, two]) == {URL: one, "http://b#0": two, "http://b#1": two}
    assert list(by_rank([ServerCache("to be launched")] * 3)) == [
        "to be launched", "to be launched, 2", "to be launched, 3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (("--max-total-tokens", "9000"), ServerCache("", 9_000)),
        (("--max-total-tokens=9000", "--page-size", "16"), ServerCache("", 9_000, 16)),
        (("--max-total-tokens=9", "--dp-size=2", "--chunked-prefill-size=-1"), ServerCache("", 9, ranks=2)),
        (("--max-total-tokens=9", "--disable-radix-cache"), ServerCache("", 9, radix=False)),
        (("--max-total-tokens=9", "--max-running-requests=4"), ServerCache("", 9, running=4)),
    ],
)
def test_servers_that_arent_up_are_taken_at_their_flags(args: tuple[str, ...], found: ServerCache) -> None:
    assert caches_of(launching(*args, replicas=2), Given()) == (evolve(found, url="to be launched"),) * 2


def test_flags_that_say_no_size_leave_it_open() -> None:
    (found,) = caches_of(launching("--page-size", "16"), Given())
    assert (found.tokens, found.page_size) == (None, 16)
    assert "--max-total-tokens" in found.trouble and "fafo engine up" in found.cure


def test_what_is_given_counts() -> None:
    assert caches_of(launching(replicas=3), Given(500, 16)) == (ServerCache("as given", 500, 16),) * 3
    (found,) = caches_of(launching("--max-total-tokens=9000", "--page-size=16"), Given(page_size=4))
    assert (found.tokens, found.page_size) == (9_000, 4)
    assert caches_of(Engine("default", "fake"), Given()) == ()
    assert caches_of(Engine("default", "sglang"), Given()) == ()
    assert caches_of(Engine("default", "fake"), Given(500)) == (ServerCache("as given", 500),)
