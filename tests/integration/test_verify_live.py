"""`fafo verify --live` and `--compare-no-cache` ask running servers, and leave nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fake_sglang import FakeSglang, Fault
from tests.helpers import CLASS, MAIN, build, fafo, fafo_json, write_project
from tests.serving import serving, use_all

ITEMS = 5
CLASSES = {"ask": CLASS, "tell": CLASS.replace("Ask one question about it", "Tell it in other words")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path, ITEMS, classes=CLASSES)


def use(folder: Path, *servers: FakeSglang) -> Path:
    return use_all(folder, servers)


def causes(told: dict[str, Any]) -> list[str]:
    return [found["cause"] for found in told["causes"]]


def test_two_requests_per_class_prove_the_cache(project: Path) -> None:
    with serving() as server, serving() as other:
        told = fafo_json(use(project, server, other), "verify", "--live")
        assert list(told) == [
            "verdict", "hit_rate", "ceiling", "ratio", "min_hit_rate", "probes", "causes", "notes",
        ]  # fmt: skip
        assert (told["verdict"], told["ratio"], told["causes"], told["notes"]) == ("ok", 1.0, [], [])
        assert [(probe["server"], probe["class"]) for probe in told["probes"]] == [
            (server.url, "ask"), (server.url, "tell"), (other.url, "ask"), (other.url, "tell"),
        ]  # fmt: skip
        assert list(told["probes"][0]) == [
            "server", "rank", "class", "prompt_tokens", "cached_tokens", "ceiling_tokens", "ratio", "seconds",
        ]  # fmt: skip
        assert len(server.received) == len(other.received) == 4
        text = fafo(project, "verify", "--live").stdout
        assert text.startswith("  ok    hit rate")
        assert "2 classes at 2 servers" in text
    assert not (project / "runs").exists()


def test_the_second_request_is_new_to_the_server_each_time(project: Path) -> None:
    with serving() as server:
        for _ in range(2):
            fafo(use(project, server), "verify", "--live", "--class", "ask")
        sent = [body["input_ids"] for body in server.received]
        assert len(sent) == 4
        # An item of the view first, then something that nobody has asked before.
        assert sent[0] == sent[2]
        assert len({tuple(sent[at]) for at in (0, 1, 3)}) == 3
        assert all(body["sampling_params"]["max_new_tokens"] == 1 for body in server.received)


def test_each_rank_has_a_cache_to_be_proved(project: Path) -> None:
    with serving(dp_size=2) as server:
        told = fafo_json(use(project, server), "verify", "--live", "--class", "ask")
        assert [(probe["rank"], probe["ratio"]) for probe in told["probes"]] == [(0, 1.0), (1, 1.0)]
        assert [body["routed_dp_rank"] for body in server.received] == [0, 0, 1, 1]


def test_a_view_without_a_prompt_is_probed_with_ids_of_the_prefix(project: Path) -> None:
    (project / "facts.jsonl").write_text('{"id": 1, "text": null}\n', "utf-8")
    with serving() as server:
        told = fafo_json(use(project, server), "verify", "--live", "--class", "ask")
        assert told["verdict"] == "ok"
        prefix = server.received[0]["input_ids"][:37]
        assert set(server.received[0]["input_ids"]) == set(prefix)


@pytest.mark.parametrize(
    ("settings", "code", "cause", "detail"),
    [
        ({"radix": False}, 4, "radix_off", "without its prefix cache"),
        ({"page_size": 4096}, 5, "page_size", "whole pages of 4096 tokens, and the longest prefix has"),
        ({"page_size": 4096, "radix": False}, 5, "radix_off", "without its prefix cache"),
    ],
)
def test_what_is_below_names_its_cause(
    project: Path, settings: dict[str, Any], code: int, cause: str, detail: str
) -> None:
    with serving(**settings) as server:
        told = fafo_json(use(project, server), "verify", "--live", check=code)
        assert causes(told)[0] == ("hit_rate" if code == 4 else "no_ceiling")
        assert set(causes(told)[1:]) == {"hit_rate", cause} if code == 4 else {cause}
        assert any(detail in found["detail"] and server.url in found["detail"] for found in told["causes"])


def test_pages_that_a_server_doesnt_tell_of(project: Path) -> None:
    with serving(page_size=16) as server:
        server.server_info["page_size"] = 1
        told = fafo_json(use(project, server), "verify", "--live", "--class", "ask", check=4)
        assert causes(told) == ["hit_rate", "page_size"]
        assert "whole pages of 32, and says 1" in told["causes"][1]["detail"]
        assert fafo_json(project, "verify", "--live", "--min-hit-rate", "0.5")["verdict"] == "ok"


def test_a_note_says_what_a_page_costs(project: Path) -> None:
    with serving(page_size=16) as server:
        told = fafo_json(use(project, server), "verify", "--live", "--class", "ask")
        assert (told["verdict"], told["causes"]) == ("ok", [])
        (note,) = told["notes"]
        assert note["cause"] == "page_size"
        assert note["detail"].startswith("ask: 5 of its prefix's 37 tokens are computed for each item")


def forgetting(server: list[FakeSglang]) -> Fault:
    async def forget(_: web.Request, body: dict[str, Any]) -> None:
        for each in server:
            each.forget()

    return forget


def test_a_prefix_that_is_gone_at_once(project: Path) -> None:
    servers: list[FakeSglang] = []
    with serving(forgetting(servers), metrics=True) as server:
        servers.append(server)
        told = fafo_json(use(project, server), "verify", "--live", "--class", "ask", check=4)
        assert causes(told) == ["hit_rate", "not_explained"]


def test_a_cache_in_which_nothing_lasts(project: Path) -> None:
    with serving(capacity=20, metrics=True) as server:
        told = fafo_json(use(project, server), "verify", "--live", "--class", "ask", check=4)
        assert causes(told) == ["hit_rate", "evicted"]
        assert "its cache holds 20" in told["causes"][1]["detail"]


def test_others_at_the_server_are_seen_in_its_counters(project: Path) -> None:
    async def busy(_: web.Request, body: dict[str, Any]) -> None:
        server.counted.requests += 7

    with serving(busy, metrics=True) as server:
        told = fafo_json(use(project, server), "verify", "--live", "--class", "ask")
        assert told["verdict"] == "ok"
        assert [note["cause"] for note in told["notes"]] == ["another_tenant"]
        assert "14 requests of others" in told["notes"][0]["detail"]


def test_prompts_that_are_computed_otherwise_than_sent(project: Path) -> None:
    async def shorter(_: web.Request, body: dict[str, Any]) -> web.Response:
        answer = await server.answer(body)
        answer["meta_info"]["prompt_tokens"] -= 1
        return web.json_response(answer)

    with serving(shorter) as server:
        told = fafo_json(use(project, server), "verify", "--live", "--class", "ask", check=4)
        assert causes(told) == ["drift"]
        assert "were sent" in told["causes"][0]["detail"]


def test_servers_that_serve_different_models(project: Path) -> None:
    with serving() as server, serving(model="other-model") as other:
        told = fafo_json(use(project, server, other), "verify", "--live", check=4)
        assert causes(told) == ["drift"]
        assert "two servers differ" in told["causes"][0]["detail"]


def test_a_server_that_isnt_there_leaves_the_others_probed(project: Path) -> None:
    with serving() as server:
        with serving() as gone:
            use(project, server, gone)
        told = fafo_json(project, "verify", "--live", check=5)
        assert causes(told) == ["no_answer"]
        assert gone.url in told["causes"][0]["detail"]
        assert {probe["server"] for probe in told["probes"]} == {server.url}


def test_a_server_that_refuses_says_why(project: Path) -> None:
    async def refuse(_: web.Request, body: dict[str, Any]) -> web.Response:
        return web.json_response({"error": {"message": "not today"}}, status=400)

    with serving(refuse) as server:
        told = fafo_json(use(project, server), "verify", "--live", "--class", "ask", check=5)
        assert causes(told) == ["no_answer"]
        assert "not today" in told["causes"][0]["detail"]


def test_an_engine_in_this_process_can_be_probed(project: Path) -> None:
    build(project)
    told = fafo_json(project, "verify", "--live")
    assert told["verdict"] == "ok"
    assert {probe["server"] for probe in told["probes"]} == {"in process"}


def test_an_engine_can_be_chosen(project: Path) -> None:
    with serving() as server:
        other = f'[engines.other]\nkind = "sglang"\nurls = ["{server.url}"]\n\n[[source]]'
        main = MAIN.replace("[engine]", "[engines.default]").replace("[[source]]", other)
        (project / "fafo.toml").write_text(main, "utf-8")
        for path in (project / "classes").iterdir():
            path.write_text(f'engine = "default"\n{path.read_text("utf-8")}', "utf-8")
        build(project)
        told = fafo_json(project, "verify", "--live", "--engine", "other")
        assert {probe["server"] for probe in told["probes"]} == {server.url}
        assert fafo_json(project, "verify", "--live")["probes"][0]["server"] == "in process"


def test_of_an_engine_that_fafo_launches_those_that_are_up_are_probed(project: Path) -> None:
    main = MAIN.replace('kind = "fake"', 'kind = "sglang"\nlaunch = { replicas = 1 }')
    (project / "fafo.toml").write_text(main.replace("max_running = 8\n", ""), "utf-8")
    build(project)
    said = fafo(project, "verify", "--live", check=1).stderr
    assert "no server of the engine default is up" in said and "fafo engine up" in said


# ---- with the cache and without


def test_the_same_items_with_the_cache_and_without(project: Path) -> None:
    async def slow(_: web.Request, body: dict[str, Any]) -> None:
        if body["extra_key"].count("-") > 2:
            await asyncio.sleep(0.05)

    with serving(slow) as server, serving(slow) as other:
        use(project, server, other)
        told = fafo_json(project, "verify", "--compare-no-cache", "--items", "3")
        assert list(told) == [
            "items", "seconds_per_item", "seconds_per_item_without", "ratio", "cached_tokens",
            "cached_tokens_without", "saved_tokens", "by_class", "by_server",
        ]  # fmt: skip
        assert (told["items"], told["cached_tokens_without"]) == (6, 0)
        assert told["saved_tokens"] == told["cached_tokens"] >= 3 * 37
        assert told["seconds_per_item_without"] >= 0.05
        assert {name: found["items"] for name, found in told["by_class"].items()} == {"ask": 3, "tell": 3}
        assert {name: found["items"] for name, found in told["by_server"].items()} == {
            server.url: 4, other.url: 2,
        }  # fmt: skip
        keys = [body["extra_key"] for body in server.received]
        # Per class one warm-up, then two items in both ways, each way first in turn.
        assert [key.count("-") for key in keys] == [2, 3, 2, 2, 3] * 2
        assert len({key for key in keys if key.count("-") == 3}) == 4
        text = fafo(project, "verify", "--compare-no-cache", "--items", "1").stdout
        assert "tokens saved" in text and text.splitlines()[-1].startswith("  all")
    assert not (project / "runs").exists()


def test_what_runs_left_in_the_cache_helps_neither_way(project: Path) -> None:
    with serving() as server:
        fafo(use(project, server), "run", "--quiet")
        told = fafo_json(project, "verify", "--compare-no-cache", "--class", "ask")
        assert told["items"] == ITEMS
        # The prefix, and what rows have in common after it, but no whole prompt.
        assert 37 * ITEMS <= told["cached_tokens"] < 50 * ITEMS
        assert fafo_json(project, "verify")["verdict"] == "ok"


def test_a_comparison_needs_servers_that_answer(project: Path) -> None:
    build(project)
    assert "has no namespaces" in fafo(project, "verify", "--compare-no-cache", check=1).stderr

    async def refuse(_: web.Request, body: dict[str, Any]) -> web.Response:
        return web.json_response({"error": {"message": "not today"}}, status=400)

    with serving(refuse) as server:
        told = fafo(use(project, server), "verify", "--compare-no-cache", check=1).stderr
        assert "no comparison" in told and "not today" in told


@pytest.mark.parametrize(
    "options",
    [
        ["--live", "--compare-no-cache"],
        ["--items", "3"],
        ["--live", "--items", "3"],
        ["--engine", "default"],
        ["--class", "ask"],
        ["--live", "--run", "other"],
        ["--compare-no-cache", "--min-hit-rate", "1"],
    ],
)
def test_options_that_say_nothing_together_are_refused(project: Path, options: list[str]) -> None:
    assert fafo(project, "verify", *options, check=2).stderr.startswith("Usage")


def test_prompts_that_have_changed_are_built_first(project: Path) -> None:
    build(project)
    (project / "prompts" / "rules.md").write_text("Other rules.\n", "utf-8")
    assert "fafo build" in fafo(project, "verify", "--live", check=1).stderr
