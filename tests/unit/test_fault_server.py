"""The server with faults has them: each as declared, so often as declared, and none when they are off."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.fault_server import FaultServer
from tests.helpers import until
from tests.serving import Faulty, faulty_processes, faulty_threads

ITEM = f"{7:032x}"


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Faulty]]:
    with faulty_threads(1) as found:
        yield found


@pytest.fixture
def server(servers: list[Faulty]) -> Faulty:
    servers[0].reset()
    return servers[0]


def ask(server: Faulty, rid: str = f"{ITEM}.1", timeout: float = 5) -> tuple[int, bytes]:
    body = {"rid": rid, "input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
    request = urllib.request.Request(
        f"{server.url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def get(server: Faulty, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(server.url + path, timeout=5) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


LOST = (http.client.HTTPException, urllib.error.URLError, OSError)


def is_sound(server: Faulty) -> bool:
    try:
        status, body = ask(server)
        return status == 200 and len(json.loads(body)["output_ids"]) > 0
    except LOST:
        return False


@pytest.mark.parametrize("name", ["reset", "lost", "truncated"])
def test_connections_break(server: Faulty, name: str) -> None:
    server.on(name, count=2)
    for _ in range(2):
        with pytest.raises(LOST):
            ask(server)
    assert is_sound(server)
    record = server.record()
    assert record.met == {name: 2}
    assert record.asked == {ITEM: 3}
    assert record.answered == {ITEM: 1 if name == "reset" else 3}


def test_a_kept_connection_is_closed_and_a_new_one_served(server: Faulty) -> None:
    server.on("closed", count=5)
    assert is_sound(server)
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=5)
    body = {"rid": "a", "input_ids": [5], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    for kept in (False, True):
        connection.request("POST", "/generate", json.dumps(body))
        if kept:
            with pytest.raises(http.client.RemoteDisconnected):
                connection.getresponse()
        else:
            assert connection.getresponse().read()
    connection.close()


@pytest.mark.parametrize(
    ("name", "status"), [("busy", 429), ("full", 503), ("abort503", 503), ("error500", 500), ("refuse", 400)]
)
def test_says_no(server: Faulty, name: str, status: int) -> None:
    server.on(name, count=1)
    assert ask(server)[0] == status
    assert is_sound(server)


def test_refuses_in_three_shapes(server: Faulty) -> None:
    server.on("refuse", identities=[ITEM])
    shapes = [json.loads(ask(server)[1]) for _ in range(3)]
    assert {tuple(sorted(shape)) for shape in shapes} == {
        ("error",), ("code", "message", "object", "param", "type"),
    }  # fmt: skip
    assert {type(shape.get("error")) for shape in shapes} == {dict, str, type(None)}
    assert ask(server, "0" * 32 + ".1")[0] == 200


@pytest.mark.parametrize("name", ["aborted", "not_json", "nonsense", "counts", "prompt", "strangers"])
def test_answers_wrongly(server: Faulty, name: str) -> None:
    sound = ask(server)
    server.on(name, count=1)
    wrong = ask(server)
    assert wrong[0] == 200
    assert wrong[1] != sound[1]
    assert is_sound(server)


def test_hangs_and_is_healthy(server: Faulty) -> None:
    server.on("hang", count=1)
    with pytest.raises(TimeoutError):
        ask(server, timeout=0.2)
    assert get(server, "/health")[0] == 200
    until(lambda: server.record().hung == [f"{ITEM}.1"], "the hanging request is left alone")


def test_is_unhealthy_and_works(server: Faulty) -> None:
    server.on("unhealthy")
    assert get(server, "/health")[0] == 503
    assert is_sound(server)
    server.off()
    assert get(server, "/health")[0] == 200


@pytest.mark.parametrize("name", ["away", "restart", "other_model"])
def test_goes_away_and_comes_back(server: Faulty, name: str) -> None:
    assert is_sound(server)
    seed = json.loads(get(server, "/server_info")[1])["random_seed"]
    server.on(name, seconds=0.2)
    with pytest.raises(LOST):
        ask(server)
    assert not server.record().listening
    until(lambda: is_sound(server), "it is back")
    cached = json.loads(ask(server)[1])["meta_info"]["cached_tokens"]
    info = json.loads(get(server, "/server_info")[1])
    assert cached == 2
    assert (info["random_seed"] == seed) == (name == "away")
    assert server.record().counted["requests"] == {"away": 3}.get(name, 2)
    assert (info["model_path"] == "other-model") == (name == "other_model")
    server.reset()
    assert json.loads(get(server, "/server_info")[1])["model_path"] == "fake-model"


def test_other_weights_are_told(server: Faulty) -> None:
    server.on("swap")
    assert json.loads(ask(server)[1])["meta_info"]["weight_version"] == "v2"
    server.on("swap_back")
    assert json.loads(ask(server)[1])["meta_info"]["weight_version"] == "default"


def test_poison_kills_every_time_and_nothing_else_does(server: Faulty) -> None:
    server.on("poison", identities=[ITEM], seconds=0.05)
    for _ in range(2):
        until(lambda: ask_quietly(server, "0" * 32 + ".1"), "another item is answered")
        with pytest.raises(LOST):
            ask(server)
    assert server.record().restarts == 2


def ask_quietly(server: Faulty, rid: str) -> bool:
    try:
        return ask(server, rid)[0] == 200
    except LOST:
        return False


def test_a_mixture_repeats_for_its_seed(server: Faulty) -> None:
    def met() -> dict[str, int]:
        server.reset()
        server.mix(3, 0.5)
        threads = []
        for number in range(30):
            # One after the other, and nobody waits for what hangs.
            thread = threading.Thread(target=ask_quietly, args=(server, f"r{number}"))
            asked = sum(server.record().asked.values())
            until(lambda: server.record().listening, "it listens")
            thread.start()
            until(lambda asked=asked: sum(server.record().asked.values()) > asked, "it is asked")  # type: ignore[misc]
            threads.append(thread)
        found = server.record().met
        server.reset()
        server.on("away", seconds=0)
        for thread in threads:
            thread.join()
        return found

    first = met()
    assert len(first) > 5
    assert met() == first


@pytest.mark.slow
def test_a_process_starts_dies_and_starts_again_on_its_port() -> None:
    with faulty_processes(1) as (server,):
        assert is_sound(server)
        server.kill()
        with pytest.raises(LOST):
            ask(server)
        server.start()
        assert is_sound(server)
        assert server.record().answered == {ITEM: 1}


def test_connections_that_come_as_it_goes_away_are_taken_in_or_refused() -> None:
    async def come_and_go(turns: int) -> None:
        async with FaultServer() as server:
            host, port = server.url.removeprefix("http://").split(":")
            with closing(socket.create_connection((host, int(port)))):
                for _ in range(turns):
                    await asyncio.sleep(0)
                await server.go_away(0.0, cold=False)

    for turns in range(5):
        asyncio.run(come_and_go(turns))
    gc.collect()  # A connection that nobody closed says so here.
