"""A run over several servers: each is warmed by itself, all have work, and the last items wait for nobody."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fafo_build.errors import EngineError
from fafo_run.engines import sglang
from fafo_run.run import evidence, pool, preflight
from tests.fake_sglang import FakeSglang
from tests.helpers import CLASS, MAIN, fafo, fafo_json, kill, reaches, start, write_project
from tests.integration.faults_kit import run_here
from tests.serving import Faulty, faulty_processes, gated, pace, serving, use_all

APART = {
    f"c{at}": CLASS.replace('prompt = "rules.md"', f'content = "{" ".join(["Rule"] * 60)} number {at}."')
    for at in range(4)
}


def warm_ups(server: FakeSglang) -> list[str]:
    return [body["rid"] for body in server.received if body["rid"].startswith("warm")]


def asked(server: FakeSglang) -> int:
    return len(server.received) - len(warm_ups(server))


def seen(folder: Path, kind: type[evidence.AnyEvent]) -> list[evidence.AnyEvent]:
    events, torn = evidence.read(folder / "runs" / "main")
    assert torn == 0
    return [event for event in events if isinstance(event, kind)]


def complete(folder: Path, items: int) -> None:
    """Hold the store against the view: each item has one output, and none is lost or doubled."""
    found = fafo_json(folder, "verify", check=None)["completeness"]
    assert (found["total"], found["completed"], found["failed"]) == (items, items, 0)
    assert (found["doubled"], found["lost"], found["waiting"]) == (0, 0, 0)


def test_each_server_has_one_warm_up_per_prefix_and_counts_what_fafo_counts(tmp_path: Path) -> None:
    with serving(pace(0.05), metrics=True) as one, serving(pace(0.05), metrics=True) as other:
        folder = use_all(write_project(tmp_path, 60, classes=APART), [one, other], max_running=4)
        fafo(folder, "run")
        for server in (one, other):
            assert len(warm_ups(server)) == 4 and asked(server) >= 60
    complete(folder, 240)
    report = fafo_json(folder, "verify")
    assert report["verdict"] == "ok" and set(report["by_server"]) == {one.url, other.url}
    assert Counter((event.server, event.why) for event in seen(folder, evidence.Warmed)) == {
        (one.url, "first"): 4,
        (other.url, "first"): 4,
    }
    ends = {event.server: event for event in seen(folder, evidence.Ended)}
    for event in seen(folder, evidence.Started):
        end = ends[event.server]
        assert end.sums.prompt_tokens == end.counters.prompt_tokens - event.counters.prompt_tokens
        assert end.sums.cached_tokens == end.counters.cached_tokens - event.counters.cached_tokens


def test_prefixes_that_dont_fit_one_cache_are_shared_out(tmp_path: Path) -> None:
    # Four prefixes of some 70 tokens, and what 64 requests write.
    with serving(capacity=600) as one, serving(capacity=600) as other:
        folder = use_all(write_project(tmp_path, 40, classes=APART), [one, other], max_running=4)
        fafo(folder, "submit")
        fafo(folder, "run")
        first = [{rid.split(".")[1] for rid in warm_ups(server)[:2]} for server in (one, other)]
    assert len(first[0] | first[1]) == 4, "each does its own before it helps with the others"
    complete(folder, 160)


def test_each_rank_has_its_own_warm_up_and_its_share(tmp_path: Path) -> None:
    with serving(pace(0.02), dp_size=2) as server:
        folder = use_all(write_project(tmp_path, 60), [server], max_running=8)
        fafo(folder, "run")
        ranks = Counter(body["routed_dp_rank"] for body in server.received if body["rid"].startswith("warm"))
        assert ranks == {0: 1, 1: 1}
        assert {body["routed_dp_rank"] for body in server.received} == {0, 1}
    report = fafo_json(folder, "verify")
    assert report["verdict"] == "ok" and report["ratio"] == 1.0
    complete(folder, 60)


def test_a_slow_server_takes_less_and_holds_up_nobody_at_the_end(tmp_path: Path) -> None:
    """One answers nothing until the run is over; what it had taken is done by the other."""
    gate = threading.Event()
    with serving(gated(gate)) as stuck, serving() as quick:
        folder = use_all(write_project(tmp_path, 80), [stuck, quick], max_running=4)
        fafo(folder, "run")
        gate.set()
        assert asked(stuck) == 4, "its room, and no more"
        assert asked(quick) == 80
        assert len(set(stuck.aborted)) == 4, "it is told that nobody waits any more"
    complete(folder, 80)


def test_what_waits_behind_one_server_is_taken_over_by_an_idle_one(tmp_path: Path) -> None:
    slow, quick = serving(max_running=2, seconds_per_token=0.05), serving(max_running=2)
    with slow as one, quick as other:
        folder = use_all(write_project(tmp_path, 400), [one, other], max_running=20)
        fafo(folder, "run")
        assert asked(one) < 60
        assert one.aborted
    complete(folder, 400)


def test_a_server_that_fails_every_item_fails_none_of_them(tmp_path: Path) -> None:
    """It answers prefixes, and is the quickest of all: it must not draw all the work, and spoil it."""

    async def broken(_: web.Request, body: dict[str, Any]) -> web.StreamResponse | None:
        return None if body["rid"].startswith("warm") else web.json_response({"error": "oops"}, status=500)

    main = MAIN + "[run]\nattempts = 2\n"
    with serving(broken) as bad, serving(pace(0.1)) as good:
        folder = use_all(write_project(tmp_path, 200), [bad, good], main, max_running=4)
        fafo(folder, "run")
        assert asked(bad) < 120 and asked(good) >= 200
    complete(folder, 200)


def test_a_server_that_isnt_there_yet_joins_later(tmp_path: Path) -> None:
    with faulty_processes(2) as (late, early):
        folder = use_all(write_project(tmp_path, 300), [late, early], max_running=4)
        late.kill()
        early.on("slow", seconds=0.1, **{"for": 600})
        begun = threading.Thread(target=lambda: said.append(fafo(folder, "run").stderr))
        said: list[str] = []
        begun.start()
        while early.record().asked == {}:
            assert begun.is_alive()
        while not (away := fafo_json(folder, "status")["away"]):
            assert begun.is_alive()
        late.start()
        begun.join()
        assert len(late.record().asked) > 1, "items, and the warm-up"
    assert late.url in away, "the status says who isn't there yet"
    assert f"no server at {late.url}" in said[0] and f"{late.url} has joined" in said[0]
    complete(folder, 300)


def test_two_servers_that_serve_different_models_are_named(tmp_path: Path) -> None:
    with serving() as one, serving() as other:
        other.model_info["weight_version"] = "step-2000"
        folder = use_all(write_project(tmp_path), [one, other])
        said = fafo(folder, "run", check=1).stderr
    assert "two servers differ" in said and one.url in said and other.url in said
    assert "weight_version is default, and step-2000 there" in said and "cure: " in said


def test_no_server_at_all_is_an_error_that_names_each(tmp_path: Path) -> None:
    with serving() as one, serving() as other:
        folder = use_all(write_project(tmp_path), [one, other])
    said = fafo(folder, "run", check=1).stderr
    assert f"no server at {one.url}" in said and f"no server at {other.url}" in said


def test_a_server_that_says_nothing_to_a_grammar_joins_when_it_does(tmp_path: Path) -> None:
    begun, joined = threading.Event(), threading.Event()

    def is_item(body: dict[str, Any]) -> bool:
        return not body["rid"].startswith(("warm", "probe"))

    async def busy(_: web.Request, body: dict[str, Any]) -> web.StreamResponse | None:
        if is_item(body):
            joined.set()
        return None if begun.is_set() else web.json_response({"error": "busy"}, status=503)

    async def waiting(_: web.Request, body: dict[str, Any]) -> web.StreamResponse | None:
        while is_item(body) and not joined.is_set():
            begun.set()
            await asyncio.sleep(0.02)
        return None

    formed = {"ask": CLASS + 'regex = "[a-z]+"\n'}
    with serving(busy) as late, serving(waiting) as early:
        for server in (late, early):
            server.server_info["grammar_backend"] = "xgrammar"
        folder = use_all(write_project(tmp_path, 60, classes=formed), [late, early], max_running=2)
        said = fafo(folder, "run").stderr
    assert f"the server at {late.url} doesn't answer" in said and f"{late.url} has joined" in said
    complete(folder, 60)


def test_a_server_that_hangs_at_the_start_is_told_and_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_QUIET", 0.05)
    monkeypatch.setattr(sglang, "START", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as hangs, serving() as good:
        url = f"http://127.0.0.1:{hangs.getsockname()[1]}"
        ended = run_here(use_all(write_project(tmp_path, 10), [good, Faulty(url, "")]))
    assert any("of 2 servers, which say nothing" in line for line in ended.notes.notices)
    assert any(f"the server at {url} doesn't answer; the run begins" in line for line in ended.notes.notices)
    assert ended.recorded.complete and len(ended.recorded.outputs) == 10


def test_a_server_that_says_nonsense_of_itself_ends_the_start(tmp_path: Path) -> None:
    with serving() as one:
        one.server_info["internal_states"] = [{"effective_max_running_requests_per_dp": -128}]
        said = fafo(use_all(write_project(tmp_path, 10), [one]), "run", check=1).stderr
    assert one.url in said and "effective_max_running_requests_per_dp" in said


def test_status_says_that_servers_are_waited_for_at_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        url = f"http://127.0.0.1:{hangs.getsockname()[1]}"
        folder = use_all(write_project(tmp_path, 10), [Faulty(url, "")])
        run = start(folder, "run")
        try:
            said = "waiting for the engine to get ready, since 2"
            reaches(folder, lambda status: status.notice.startswith(said), "it says what it waits for")
        finally:
            kill(run)


def test_status_names_the_servers(tmp_path: Path) -> None:
    with serving() as one, serving() as other:
        folder = use_all(write_project(tmp_path), [one, other])
        fafo(folder, "run")
    assert json.loads((folder / "runs/main/progress.json").read_text())["servers"] == [one.url, other.url]


def test_open_files_are_looked_at_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    preflight.descriptors(500)
    assert set_to == []
    preflight.descriptors(2_000)
    assert set_to == [(2_256, 4096)], "its own limit it may raise by itself"
    with pytest.raises(EngineError, match="4000 requests in flight need 4256 open files") as caught:
        preflight.descriptors(4_000)
    assert "ulimit -Hn 4256" in (caught.value.problems[0].cure or "")
