"""`fafo verify` names why a run is below, from what it wrote down of its servers and what these counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fafo_run.run.evidence import NAME
from tests.fake_sglang import hang_up
from tests.helpers import CLASS, MAIN, fafo, fafo_json, write_project
from tests.serving import serving, use

ITEMS = 12
PREFIX = 37
ONE = MAIN.replace("max_running = 8", "max_running = 1")
"""One request at a time, so that what happens between two of them is the same each time."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path, ITEMS)


def causes(told: dict[str, Any]) -> list[str]:
    return [found["cause"] for found in told["causes"]]


def notes(told: dict[str, Any]) -> list[str]:
    return [found["cause"] for found in told["notes"]]


def is_item(body: dict[str, Any]) -> bool:
    return not body["rid"].startswith("warm")


def test_warm_ups_hours_and_counters_stand_beside_the_items(project: Path) -> None:
    with serving(metrics=True) as server:
        fafo(use(project, server), "run", "--quiet")
        told = fafo_json(project, "verify")
        assert (told["verdict"], told["causes"], told["notes"]) == ("ok", [], [])
        assert told["warm_ups"] == {
            "count": 1, "prompt_tokens": PREFIX, "cached_tokens": 0, "ceiling_tokens": 0, "hit_rate": 0.0,
            "by_why": {"first": 1},
        }  # fmt: skip
        assert told["sent"] == {
            "requests": ITEMS + 1,
            "prompt_tokens": told["prompt_tokens"] + PREFIX,
            "cached_tokens": told["cached_tokens"],
            "hit_rate": told["cached_tokens"] / (told["prompt_tokens"] + PREFIX),
            "ceiling": told["ceiling_tokens"] / (told["prompt_tokens"] + PREFIX),
        }
        (hour,) = told["by_hour"].values()
        assert hour == told["by_class"]["ask"] == told["by_server"][server.url]
        counted = told["counters"][server.url]
        assert counted == {
            "agreement": "agree", "compared": 1, "unknown": 0,
            "run": counted["run"],
            "server": {
                "requests": server.counted.requests, "prompt_tokens": server.counted.prompt_tokens,
                "cached_tokens": server.counted.cached_tokens, "evicted_tokens": 0,
            },
        }  # fmt: skip
        assert counted["run"] == {
            "requests": ITEMS + 1, "prompt_tokens": told["sent"]["prompt_tokens"],
            "cached_tokens": told["cached_tokens"], "lost": 0,
        }  # fmt: skip
        assert told["evidence"] == {"events": 3, "unreadable": 0}
        assert "servers' counters agree" in fafo(project, "verify").stdout


FAMILY = {
    name: CLASS.replace(
        'prompt = "rules.md"', f'content = "You write questions. Each has one answer, and no more. {more}"'
    )
    for name, more in {
        "plain": "",
        "kind": "Be kind.",
        "brief": "Be brief.",
        "kinder": "Be kind. Smile.",
    }.items()
}
"""Classes that begin alike, and one whose prefix others begin with."""


@pytest.mark.parametrize("page", [1, 8])
def test_a_warm_up_finds_what_it_shares_with_those_before_it_and_no_more(tmp_path: Path, page: int) -> None:
    folder = write_project(tmp_path, ITEMS, classes=FAMILY)
    with serving(page_size=page, metrics=True) as server:
        fafo(use(folder, server), "run", "--quiet")
        told = fafo_json(folder, "verify")
        assert (told["verdict"], told["ratio"]) == ("ok", 1)
        warm = told["warm_ups"]
        assert warm["by_why"] == {"first": len(FAMILY)}
        assert warm["cached_tokens"] == warm["ceiling_tokens"] > 0
        (shared,) = fafo_json(folder, "build")["shared"]
        least = min(branch["tokens"] for branch in shared["branches"])
        assert warm["ceiling_tokens"] >= (len(FAMILY) - 1) * (least // page * page)


def test_prompts_that_are_sent_again_as_samples_are_beyond_the_ceiling(tmp_path: Path) -> None:
    asks = CLASS.replace("temperature = 0", "temperature = 1\nsamples = 3")
    folder = write_project(tmp_path, ITEMS, classes={"ask": asks})
    with serving() as server:
        fafo(use(folder, server, ONE), "run", "--quiet")
        told = fafo_json(folder, "verify")
        assert told["hit_rate"] > told["ceiling"]
        assert (told["ratio"], told["ceiling_tokens"]) == (1, 3 * ITEMS * PREFIX)
        said = fafo(folder, "verify").stdout
        assert "since items share more than prefixes; 1.000 of these came from the cache" in said


def test_a_run_without_evidence_is_verified_all_the_same(project: Path) -> None:
    with serving(radix=False) as server:
        fafo(use(project, server), "run", "--quiet")
    (project / "runs" / "main" / NAME).unlink()
    told = fafo_json(project, "verify", check=4)
    assert causes(told) == ["hit_rate", "not_explained"]
    assert "has nothing of it" in told["causes"][1]["detail"]
    assert (told["counters"], told["warm_ups"]["count"]) == ({}, 0)
    assert told["evidence"] == {"events": 0, "unreadable": 0}
    assert fafo_json(project, "verify", "--min-hit-rate", "0")["verdict"] == "ok"


def test_evidence_that_was_torn_is_counted(project: Path) -> None:
    with serving() as server:
        fafo(use(project, server), "run", "--quiet")
    with (project / "runs" / "main" / NAME).open("ab") as file:
        file.write(b'{"event":"ended","at":1')
    told = fafo_json(project, "verify")
    assert told["evidence"] == {"events": 3, "unreadable": 1}


def test_a_server_without_its_cache(project: Path) -> None:
    with serving(radix=False, metrics=True) as server:
        fafo(use(project, server), "run", "--quiet")
        told = fafo_json(project, "verify", check=4)
        assert causes(told) == ["hit_rate", "radix_off"]
        assert told["counters"][server.url]["agreement"] == "agree"
        assert "radix_off: ask: 12 items lack 444 tokens" in fafo(project, "verify", check=4).stdout


def test_a_cache_that_somebody_empties(project: Path) -> None:
    async def empty(_: web.Request, body: dict[str, Any]) -> None:
        if is_item(body) and sum(map(is_item, server.received)) % 4 == 0:
            server.forget()

    with serving(empty, metrics=True) as server:
        fafo(use(project, server, ONE), "run", "--quiet")
        told = fafo_json(project, "verify", check=4)
        assert causes(told) == ["hit_rate", "flushed"]
        detail = told["causes"][1]["detail"]
        assert "3 items lack 111 tokens" in detail and "it dropped no tokens to make room" in detail
        assert told["warm_ups"]["by_why"]["evicted"] >= 2
        # Enough for those who ask for less, and still worth a note.
        lenient = fafo_json(project, "verify", "--min-hit-rate", "0.5")
        assert (lenient["causes"], notes(lenient)) == ([], ["evicted"])


def test_a_tenant_whose_prompts_push_the_prefix_out(project: Path) -> None:
    async def crowd(_: web.Request, body: dict[str, Any]) -> None:
        if is_item(body) and sum(map(is_item, server.received)) % 4 == 0:
            number = len(server.received)
            ids = [10_000 + 200 * number + at for at in range(180)]
            params = {"max_new_tokens": 1, "temperature": 0}
            await server.answer({"rid": f"other{number}", "input_ids": ids, "sampling_params": params})

    with serving(crowd, metrics=True, capacity=200) as server:
        fafo(use(project, server, ONE), "run", "--quiet")
        told = fafo_json(project, "verify", check=4)
        assert causes(told) == ["hit_rate", "evicted", "another_tenant"]
        assert "its cache holds 200 tokens; 1 prefixes have 37" in told["causes"][1]["detail"]
        assert told["counters"][server.url]["agreement"] == "more"


def test_a_tenant_who_does_no_harm_is_a_note(project: Path) -> None:
    async def busy(_: web.Request, body: dict[str, Any]) -> None:
        if is_item(body):
            server.counted.requests += 1
            server.counted.prompt_tokens += 100

    with serving(busy, metrics=True) as server:
        fafo(use(project, server), "run", "--quiet")
        told = fafo_json(project, "verify")
        assert (told["verdict"], told["causes"], notes(told)) == ("ok", [], ["another_tenant"])
        assert "note: another_tenant" in fafo(project, "verify").stdout


def test_a_server_that_counts_fewer_than_the_run_is_a_finding(project: Path) -> None:
    async def forgetful(_: web.Request, body: dict[str, Any]) -> None:
        server.counted.cached_tokens = 0

    with serving(forgetful, metrics=True) as server:
        fafo(use(project, server), "run", "--quiet")
        told = fafo_json(project, "verify", check=4)
        assert causes(told) == ["counters"]


def test_a_server_that_comes_back_cold_is_a_note_as_long_as_it_costs_nothing(project: Path) -> None:
    away: list[str] = []

    async def die(request: web.Request, body: dict[str, Any]) -> web.StreamResponse | None:
        """Be away for a few requests, and then another process."""
        if (is_item(body) and sum(map(is_item, server.received)) > 4 and not away) or 0 < len(away) < 4:
            away.append(body["rid"])
            server.cold_start()
            hang_up(request)
        return None

    with serving(die, metrics=True) as server:
        fafo(use(project, server, ONE), "run", "--quiet")
        told = fafo_json(project, "verify")
        assert (told["verdict"], told["causes"], notes(told)) == ("ok", [], ["cold_restart"])
        assert told["completeness"]["completed"] == ITEMS
        assert told["warm_ups"]["by_why"] == {"first": 1, "restart": 1}
        counted = told["counters"][server.url]
        # What the first process counted is gone with it; the second agrees.
        assert (counted["agreement"], counted["compared"], counted["unknown"]) == ("agree", 1, 1)
