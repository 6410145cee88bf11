"""What `fafo plan` predicts of a real server's cache, and what that cache then serves."""

from __future__ import annotations

import asyncio
import random
import urllib.request
from collections.abc import Iterator

import pytest

from fafo_build.project.declaration import Engine
from fafo_run.run.caches import Given, ServerCache, caches_of
from fafo_run.run.simulated_server import CacheSize
from fafo_run.run.simulation import Asked, simulate
from tests import sglang_server, tiny_model
from tests.playing import play, shares

pytestmark = [pytest.mark.slow, pytest.mark.alone]

TOKENS = 2_048
PREFIX, SUFFIX, OUTPUT = 300, 20, 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerCache]:
    sglang_server.venv()
    folder = tmp_path_factory.mktemp("small")
    model = tiny_model.make(folder / "model")
    flags = ("--max-total-tokens", str(TOKENS))
    with sglang_server.running(model, folder / "server.log", flags=flags) as url:
        (found,) = caches_of(Engine("default", "sglang", urls=(url,)), Given())
        yield found


def sequence(classes: int, items: int, *, mixed: bool, output: int = OUTPUT) -> list[Asked]:
    """Return the prompts of so many classes, one class after the other or, `mixed`, in turn."""
    rng = random.Random(classes)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, 40_000) for _ in range(count))

    prefixes = [ids(PREFIX) for _ in range(classes)]
    order = [at for at in range(classes) for _ in range(items)]
    if mixed:
        order = [at for _ in range(items) for at in range(classes)]
    return [Asked(prefixes[at], ids(SUFFIX), output, output) for at in order]


def test_a_server_says_how_large_its_cache_is(server: ServerCache) -> None:
    assert (server.trouble, server.tokens, server.page_size, server.radix) == ("", TOKENS, 1, True)
    assert (server.running, server.ranks) == (64, 1)
    assert server.batch_tokens is not None


@pytest.mark.parametrize(
    ("asked", "in_flight", "fits"),
    [
        pytest.param(sequence(6, 20, mixed=False), 16, True, id="one class after the other"),
        pytest.param(sequence(4, 20, mixed=True), 8, True, id="mixed, all prefixes fit"),
        pytest.param(sequence(12, 8, mixed=True), 4, False, id="mixed, they don't fit"),
        pytest.param(sequence(12, 6, mixed=False, output=100), 32, True, id="memory runs out"),
    ],
)
def test_it_predicts_what_the_real_server_serves(
    server: ServerCache, asked: list[Asked], in_flight: int, fits: bool
) -> None:
    flush = urllib.request.Request(f"{server.url}/flush_cache", method="POST")
    with urllib.request.urlopen(flush, timeout=30) as response:
        assert response.status == 200
    assert server.tokens and server.running and server.batch_tokens
    size = CacheSize(server.tokens, server.page_size, server.running, in_flight, server.batch_tokens)
    predicted = shares(simulate(asked, size).cached, asked)
    observed = shares(asyncio.run(play(server.url, asked, in_flight=in_flight)), asked)
    assert predicted == pytest.approx(observed, abs=0.02)
    assert (predicted[1] > 0.99) is fits
