"""What `fafo verify` says of real SGLang servers: ok, below or cannot tell, and the cause each time.

Each test starts a server of its own, with other flags; together they take some minutes.
"""

from __future__ import annotations

import itertools
import json
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import sglang_server, tiny_model
from tests.helpers import CLASS, MAIN, MODEL, fafo, fafo_json, write_project
from tests.serving import use_all
from tests.sglang_server import RealServer

pytestmark = [pytest.mark.slow, pytest.mark.alone]

NAMES = ("alpha", "beta", "gamma")
ROWS = 24
TOKENS = 400
"""Prefixes are longer than this."""
LASTING = 300
"""Rows of runs that work at the same time, however far apart they start on a busy machine."""
CROWD = 700
"""Tokens of another tenant's prompts."""

ASK = CLASS.replace("max_new_tokens = 8", "max_new_tokens = 4")


def saying(system: str) -> str:
    """Return a class whose items begin with this."""
    return ASK.replace('prompt = "rules.md"', f'content = "{system}"')


LONG = {
    name: saying(
        " ".join(f"{name.title()} rule {number}: say {name} {number} times." for number in range(45))
    )
    for name in NAMES
}
SHORT = {name: saying(name) for name in NAMES}
FAMILY = {
    name: saying(
        " ".join(f"Rule {rule}: say {'it' if rule < 30 else name} {rule} times." for rule in range(45))
    )
    for name in NAMES
}
"""They begin alike, for two thirds of their prefixes."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sglang_server.venv()  # first of all: without it there is nothing to make a model for
    return tiny_model.make(tmp_path_factory.mktemp("model") / "tiny")


@contextmanager
def served(model: Path, folder: Path, *flags: str) -> Iterator[RealServer]:
    with sglang_server.serving(model, folder / "server.log", flags=["--enable-metrics", *flags]) as server:
        yield server


def project(
    folder: Path,
    server: RealServer,
    classes: dict[str, str] = LONG,
    *,
    rows: int = ROWS,
    max_running: int = 8,
) -> Path:
    main = MAIN.replace(MODEL, str(server.model))
    return use_all(write_project(folder, rows, classes=classes), [server], main, max_running=max_running)


def causes(told: dict[str, Any]) -> list[str]:
    return [found["cause"] for found in told["causes"]]


def details(told: dict[str, Any], cause: str) -> list[str]:
    return [found["detail"] for found in told["causes"] + told["notes"] if found["cause"] == cause]


def test_a_server_with_its_cache_is_ok_and_counts_as_the_run_does(model: Path, tmp_path: Path) -> None:
    with served(model, tmp_path) as server:
        folder = project(tmp_path / "project", server)
        fafo(folder, "run", "--quiet")
        told = fafo_json(folder, "verify")
        assert (told["verdict"], told["causes"], told["notes"]) == ("ok", [], [])
        assert told["ratio"] == 1
        assert told["ceiling_tokens"] > len(NAMES) * ROWS * TOKENS
        assert told["warm_ups"]["count"] == told["warm_ups"]["by_why"]["first"] == len(NAMES)
        assert told["sent"]["requests"] == len(NAMES) * (ROWS + 1)
        assert sum(found["items"] for found in told["by_hour"].values()) == len(NAMES) * ROWS
        counted = told["counters"][server.url]
        assert counted["agreement"] == "agree"
        assert counted["server"] | {"lost": 0} == counted["run"] | {"evicted_tokens": 0}
        assert counted["run"]["cached_tokens"] == told["sent"]["cached_tokens"]

        live = fafo_json(folder, "verify", "--live")
        assert (live["verdict"], live["ratio"], live["causes"], live["notes"]) == ("ok", 1, [], [])

        compared = fafo_json(folder, "verify", "--compare-no-cache", "--items", "6")
        assert (compared["items"], compared["cached_tokens_without"]) == (18, 0)
        assert compared["saved_tokens"] > 18 * TOKENS
        # None of it is in the results.
        assert fafo_json(folder, "verify")["completeness"]["total"] == len(NAMES) * ROWS


def test_a_server_without_its_cache_is_below(model: Path, tmp_path: Path) -> None:
    with served(model, tmp_path, "--disable-radix-cache") as server:
        folder = project(tmp_path / "project", server)
        fafo(folder, "run", "--quiet")
        told = fafo_json(folder, "verify", check=4)
        assert told["verdict"] == "below"
        assert causes(told) == ["hit_rate", "radix_off"] * len(NAMES)
        assert all(f"{ROWS} items lack" in line and server.url in line for line in details(told, "radix_off"))
        assert told["counters"][server.url]["agreement"] == "agree"
        live = fafo_json(folder, "verify", "--live", check=4)
        assert causes(live) == ["hit_rate", "radix_off"] * len(NAMES)


def test_pages_of_16_cost_what_is_beyond_them_or_all_of_a_short_prefix(model: Path, tmp_path: Path) -> None:
    with served(model, tmp_path, "--page-size", "16") as server:
        folder = project(tmp_path / "long", server)
        fafo(folder, "run", "--quiet")
        told = fafo_json(folder, "verify")
        assert (told["verdict"], told["causes"], told["ratio"]) == ("ok", [], 1)
        lengths = {
            name: found["prefix_tokens"] for name, found in fafo_json(folder, "build")["classes"].items()
        }
        assert details(told, "page_size") == [
            f"{name}: {length % 16} of its prefix's {length} tokens are computed for each item, "
            f"since {server.url} caches whole pages of 16"
            for name, length in sorted(lengths.items())
            if length % 16
        ]
        assert any(length % 16 for length in lengths.values())

        folder = project(tmp_path / "short", server, SHORT)
        fafo(folder, "run", "--quiet")
        told = fafo_json(folder, "verify", check=5)
        assert (told["verdict"], causes(told)) == ("cannot tell", ["no_ceiling", "page_size"])
        assert "whole pages of 16 tokens, and the longest prefix has" in details(told, "page_size")[0]
        live = fafo_json(folder, "verify", "--live", check=5)
        assert causes(live) == ["no_ceiling", "page_size"]


@pytest.mark.parametrize("page", [1, 16])
def test_prefixes_that_begin_alike_and_are_computed_in_chunks_reach_their_ceilings(
    model: Path, tmp_path: Path, page: int
) -> None:
    """Of a warm-up, too: it finds what it shares with those before it, in whole pages, and nothing else."""
    flags = ("--page-size", str(page), "--chunked-prefill-size", "64")
    with served(model, tmp_path, *flags) as server:
        folder = project(tmp_path / "project", server, FAMILY)
        fafo(folder, "run", "--quiet")
        told = fafo_json(folder, "verify")
        assert (told["verdict"], told["causes"], told["ratio"]) == ("ok", [], 1)
        warm = told["warm_ups"]
        assert warm["by_why"] == {"first": len(NAMES)}
        assert warm["cached_tokens"] == warm["ceiling_tokens"] > 2 * 64 * (len(NAMES) - 1)
        assert warm["ceiling_tokens"] % page == 0
        assert told["counters"][server.url]["agreement"] == "agree"


def test_a_cache_that_is_too_small_for_the_prefixes_is_below(model: Path, tmp_path: Path) -> None:
    """Three runs at once, a class each: one run takes class after class, and hardly ever needs more."""
    with served(model, tmp_path, "--max-total-tokens", "900") as server:
        folder = project(tmp_path / "project", server, rows=LASTING, max_running=1)
        with ThreadPoolExecutor(len(NAMES)) as pool:
            runs = [
                pool.submit(fafo, folder, "run", "--quiet", "--run", name, "--class", name) for name in NAMES
            ]
            for run in runs:
                run.result()
        for name in NAMES:
            told = fafo_json(folder, "verify", "--run", name, check=4)
            assert told["verdict"] == "below"
            # To each run the two others are tenants.
            assert causes(told) == ["hit_rate", "evicted", "another_tenant"]
            (line,) = details(told, "evicted")
            assert "its cache holds 900 tokens" in line
            dropped = told["counters"][server.url]["server"]["evicted_tokens"]
            assert dropped > ROWS * TOKENS and f"it dropped {dropped} tokens to make room" in line


@contextmanager
def crowded(url: str) -> Iterator[None]:
    """Let somebody else ask for ever new prompts that nearly fill the cache, one after the other."""
    over = threading.Event()

    def ask() -> None:
        for number in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
            ids = [3 + (number * CROWD + at) % 40_000 for at in range(CROWD)]
            body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
            head = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), head)
            with urllib.request.urlopen(request, timeout=60) as response:
                response.read()

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield
        finally:
            over.set()
        asking.result()


def test_a_cache_that_others_fill_is_below(model: Path, tmp_path: Path) -> None:
    """No run needs more than one prefix at a time, nearly: what pushes it out is another tenant's."""
    with served(model, tmp_path, "--max-total-tokens", "900") as server:
        folder = project(tmp_path / "project", server, max_running=1)
        with crowded(server.url):
            fafo(folder, "run", "--quiet", "--class", "alpha")
        told = fafo_json(folder, "verify", check=4)
        assert told["verdict"] == "below"
        assert causes(told) == ["hit_rate", "evicted", "another_tenant"]
        (line,) = details(told, "evicted")
        assert "its cache holds 900 tokens" in line
        dropped = told["counters"][server.url]["server"]["evicted_tokens"]
        assert dropped > ROWS / 2 * TOKENS and f"it dropped {dropped} tokens to make room" in line
