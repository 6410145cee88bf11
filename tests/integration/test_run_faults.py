"""What a server does to a run: items fail or wait as they should, and the cache's misses are seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fake_sglang import FakeSglang
from tests.helpers import exported, fafo, fafo_json, write_project
from tests.serving import serving, use

ITEMS = 12


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path, ITEMS)


def prompts(server: FakeSglang) -> list[dict[str, Any]]:
    """Return the requests for items, without warm-ups."""
    return [body for body in server.received if not body["rid"].startswith("warm")]


def test_a_server_answers_everything_from_a_warm_prefix(project: Path) -> None:
    with serving() as server:
        assert fafo_json(use(project, server), "run")["completed"] == ITEMS
        assert len(prompts(server)) == ITEMS
        told = fafo_json(project, "verify")
        assert told["verdict"] == "ok"
        assert list(told["by_server"]) == [server.url]


def test_pages_lower_the_ceiling_and_verify_knows(project: Path) -> None:
    with serving(page_size=16) as server:
        fafo(use(project, server), "run")
        told = fafo_json(project, "verify")
        assert told["verdict"] == "ok"
        assert told["ceiling_tokens"] == ITEMS * (37 // 16) * 16


def test_a_cache_that_forgets_is_below(project: Path) -> None:
    async def forget(_: web.Request, body: dict[str, Any]) -> None:
        if not body["rid"].startswith("warm"):
            server.forget()

    with serving(forget) as server:
        fafo(use(project, server), "run")
        told = fafo_json(project, "verify", check=4)
        assert told["verdict"] == "below"
        assert told["causes"][0]["cause"] == "hit_rate"
        assert told["ratio"] < 0.99


def test_an_item_that_always_fails_is_given_up_and_doesnt_end_the_run(project: Path) -> None:
    poison: list[list[int]] = []

    async def fail_one(_: web.Request, body: dict[str, Any]) -> web.Response | None:
        if body["rid"].startswith("warm"):
            return None
        if not poison:
            poison.append(body["input_ids"])
        return web.Response(status=500) if body["input_ids"] == poison[0] else None

    with serving(fail_one) as server:
        told = fafo_json(use(project, server), "run", check=3)
    assert (told["completed"], told["failed"], told["left"]) == (ITEMS - 1, 1, 0)
    assert told["failures"] == {"attempts_exhausted": 1}
    (row,) = (row for row in exported(project, "--failures") if row["error"])
    assert "3 attempts" in row["message"]


def test_an_outage_makes_no_failure_records(project: Path) -> None:
    seen = 0

    async def away_for_a_while(_: web.Request, body: dict[str, Any]) -> web.Response | None:
        nonlocal seen
        seen += 1
        return web.Response(status=503) if 3 < seen < 8 else None

    with serving(away_for_a_while) as server:
        told = fafo_json(use(project, server), "run")
    assert seen >= 8, "the outage wasn't met"
    assert (told["completed"], told["failed"]) == (ITEMS, 0)
    assert fafo_json(project, "verify")["verdict"] == "ok"


def test_what_the_server_refuses_fails_at_once_and_alone(project: Path) -> None:
    refused: list[list[int]] = []

    async def refuse_one(_: web.Request, body: dict[str, Any]) -> web.Response | None:
        if not refused and not body["rid"].startswith("warm"):
            refused.append(body["input_ids"])
        if body["input_ids"] in refused:
            return web.json_response({"error": {"message": "not this one"}}, status=400)
        return None

    with serving(refuse_one) as server:
        told = fafo_json(use(project, server), "run", check=3)
        assert len(prompts(server)) == ITEMS
    assert told["failures"] == {"rejected": 1}
