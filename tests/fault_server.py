"""A stand-in for an SGLang server that has faults, switched on over HTTP or come by chance from a seed.

`python -m tests.fault_server --port 0` serves until its standard input ends, and prints one line of JSON: the
server's `url`, and the `control` URL, which answers whatever happens to the server:

    POST   /_faults   {"fault": "reset", "count": 3}, or a list of such: see `tests.fault_kinds.Fault`
    POST   /_faults   {"mixture": 7, "share": 0.01}: all kinds at random, by the seed 7
    DELETE /_faults   no fault any more
    GET    /_count    how many requests were answered
    GET    /_record   what was asked of the server and what it answered
    POST   /_reset    as at the start, with nothing recorded
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sys
import time
import weakref
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Self

import attrs
from aiohttp import web

from tests.fake_sglang import FakeSglang
from tests.fault_kinds import ACTIONS, KINDS, OTHER_MODEL, OTHER_WEIGHTS, Fault, Meeting, act, mixture

KEEP_ALIVE = 5.0
"""Seconds, as uvicorn's default."""


class FaultServer(FakeSglang):
    """`async with FaultServer() as server:` listens at `server.url` and `server.control`.

    Its process "dies" and "restarts" without being one: connections break, the port refuses, caches and
    counters are gone.
    """

    def __init__(self, *, port: int = 0, keep_alive: float = KEEP_ALIVE, **settings: Any) -> None:
        super().__init__(**settings)
        self.fault = self._meet
        self._port, self._keep_alive = port, keep_alive
        self._faults: list[tuple[Fault, Meeting]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._site: web.SockSite | None = None
        """While it listens: at the socket `_door`."""
        self._home = dict(self.model_info)
        self._begin_record()
        """`asked` and `answered` count requests by item, and warm-ups and probes by the first word of their
        name. What was answered was computed; the answer may have been lost or spoilt on its way.
        """

    async def __aenter__(self) -> Self:
        # Bound and never listening: nobody else is given the port while the server is away.
        self._guard = _bound(self._port)
        self._port = self._guard.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        app = self.app()
        self._control_routes(app)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=0.01, keepalive_timeout=self._keep_alive
        )
        await self._runner.setup()
        await self._listen()
        control = web.Application()
        self._control_routes(control)
        self._control = web.AppRunner(control, shutdown_timeout=0.01)
        await self._control.setup()
        await web.TCPSite(self._control, "127.0.0.1", 0).start()
        self.control = f"http://127.0.0.1:{self._control.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._runner.cleanup()
        await self._control.cleanup()
        self._guard.close()

    # ---- what happens to the process

    async def _listen(self) -> None:
        if self._site is None:
            self._door = _bound(self._port)
            self._site = web.SockSite(self._runner, self._door)
            await self._site.start()

    async def go_away(self, seconds: float, *, cold: bool, model: str | None = None) -> None:
        """Break all connections and refuse new ones for so long; come back cold if the process died."""
        site, self._site = self._site, None
        if site is None:
            return  # It is away already.
        # Python 3.11 loses a connection, and never closes it, that is being taken in as its server stops.
        asyncio.get_running_loop().remove_reader(self._door)
        await asyncio.sleep(0)
        await site.stop()
        server = self._runner.server
        assert server is not None
        for connection in server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        if cold:
            self.restarts += 1
            self.cold_start()
        if model is not None:
            self._serve(model, OTHER_WEIGHTS)
        await asyncio.sleep(seconds)
        await self._listen()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the request that caused it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _serve(self, model: str, weights: str) -> None:
        self.model_info |= {"model_path": model, "weight_version": weights}
        self.server_info["model_path"] = model

    def act(self, fault: Fault) -> None:
        """Do what happens to the server itself."""
        match fault.name:
            case "back":
                self.begin(self._listen())
            case "swap":
                self._serve(self._home["model_path"], OTHER_WEIGHTS)
            case "swap_back":
                self._serve(self._home["model_path"], self._home["weight_version"])
            case _:
                model = OTHER_MODEL if fault.name == "other_model" else None
                self.begin(self.go_away(fault.seconds, cold=fault.name != "away", model=model))

    # ---- what happens to a request

    def add(self, fault: Fault) -> None:
        """Switch a fault on, or do at once what happens to the server itself."""
        if fault.name not in ACTIONS:
            self._faults.append((fault, KINDS[fault.name]))
        elif fault.after:
            fault.count = 1
            self._faults.append((fault, act))
        else:
            self.act(fault)

    async def _meet(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse | None:
        for fault, meeting in list(self._active()):
            if not self._hits(fault, body["rid"]):
                continue
            if fault.after:
                fault.after -= 1
            else:
                fault.met += 1
                fault.count = None if fault.count is None else fault.count - 1
                if not fault.by_chance:
                    self.count(fault.name)
                answer = await meeting(self, request, body, fault)
                if answer is not None:
                    return answer
        return None

    def _active(self) -> list[tuple[Fault, Meeting]]:
        now = asyncio.get_running_loop().time()
        self._faults = [
            (fault, meeting)
            for fault, meeting in self._faults
            if fault.count != 0 and (fault.until is None or now < fault.until)
        ]
        return self._faults

    def _hits(self, fault: Fault, rid: str) -> bool:
        item = identity_of(rid)
        if fault.identities:
            return item in fault.identities
        return fault.share >= 1 or self._chance.random() < fault.share

    def is_kept(self, request: web.Request) -> bool:
        """Say whether its connection carried a request before this one."""
        return self._kept.get(request.transport, 0) > 1

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self._kept[request.transport] = self._kept.get(request.transport, 0) + 1
        return await super()._generate(request)

    async def _health(self, _: web.Request) -> web.Response:
        bad = any(fault.name == "unhealthy" and not fault.after for fault, _ in self._active())
        return web.Response(status=503 if bad else self.health)

    # ---- the record

    def _begin_record(self) -> None:
        self.restarts = 0
        self._chance = random.Random(0)
        self.met: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.hung: list[str] = []
        self.times: list[float] = []

    def count(self, kind: str) -> None:
        """Record that a request met a fault."""
        self.met[kind] += 1

    def left_alone(self, rid: str) -> None:
        """Record that nobody waits any more for a request that hung."""
        self.hung.append(rid)

    def note(self, body: dict[str, Any]) -> None:
        self.asked[identity_of(body["rid"]) or body["rid"].partition(".")[0]] += 1
        self.times.append(time.time())

    async def respond(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        answer = await super().respond(request, body)
        if answer.status == 200:
            self.answered[identity_of(body["rid"]) or body["rid"].partition(".")[0]] += 1
        return answer

    async def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return an answer as the weights of now give it: other weights, other outputs."""
        said = await super().answer(body)
        if said["meta_info"]["weight_version"] == OTHER_WEIGHTS:
            said["output_ids"] = [(token + 1) % self.vocab_size for token in said["output_ids"]]
        return said

    def _control_routes(self, app: web.Application) -> None:
        app.router.add_post("/_faults", self._switch)
        app.router.add_delete("/_faults", self._clear)
        app.router.add_get("/_record", self._tell)
        app.router.add_get("/_count", self._sum)
        app.router.add_post("/_reset", self._reset)

    async def _switch(self, request: web.Request) -> web.Response:
        asked = await request.json()
        now = asyncio.get_running_loop().time()
        for one in asked if isinstance(asked, list) else [asked]:
            if "mixture" in one:
                self._faults.append((Fault("mixture", by_chance=True), mixture(one["mixture"], one["share"])))
                continue
            fields = {key: value for key, value in one.items() if key not in ("fault", "for")}
            fields["identities"] = tuple(fields.get("identities", ()))
            until = now + one["for"] if "for" in one else None
            self.add(Fault(one["fault"], until=until, **fields))
        return web.Response()

    async def _clear(self, _: web.Request) -> web.Response:
        self._faults.clear()
        return web.Response()

    async def _tell(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "asked": self.asked,
                "answered": self.answered,
                "met": self.met,
                "restarts": self.restarts,
                "aborted": self.aborted,
                "hung": self.hung,
                "running": list(self.running),
                "listening": self._site is not None,
                "counted": attrs.asdict(self.counted),
                "times": self.times,
            }
        )

    async def _sum(self, _: web.Request) -> web.Response:
        return web.json_response(sum(self.answered.values()))

    async def _reset(self, _: web.Request) -> web.Response:
        self._faults.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listen()
        self._serve(self._home["model_path"], self._home["weight_version"])
        self.cold_start()
        self.aborted.clear()
        self._begin_record()
        return web.Response()


def identity_of(rid: str) -> str | None:
    """Return the item's identity that a request's name carries, in hex; None for a warm-up or a probe."""
    head = rid.partition(".")[0]
    return head if len(head) == 32 else None


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    return sock


async def _serve(port: int, settings: dict[str, Any]) -> None:
    async with FaultServer(port=port, **settings) as server:
        print(json.dumps({"url": server.url, "control": server.control}), flush=True)
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        # Whoever started it holds the other end: no server outlives its test.
        await reader.read()


def main() -> None:
    parser = argparse.ArgumentParser(description="A stand-in for an SGLang server that has faults.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--settings", type=json.loads, default={}, help="of FaultServer, as JSON")
    given = parser.parse_args()
    asyncio.run(_serve(given.port, {"vocab_size": 49_152, "context_length": 8_192} | given.settings))


if __name__ == "__main__":
    main()
