"""The faults that a server can have, as what each does to one request. Nothing here knows when they happen.

They are what issue 5 lists: connections that break, answers that never come, come broken or come wrong,
refusals of every shape, and processes that go away and come back.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn

from aiohttp import web
from attrs import define

from tests.fake_sglang import error_object, refuse

if TYPE_CHECKING:
    from tests.fault_server import FaultServer

OTHER_MODEL = "other-model"
OTHER_WEIGHTS = "v2"
DROP = 0.05
"""Seconds between two bytes of an answer that drips."""


@define
class Fault:
    """One fault that is switched on at one server."""

    name: str
    """Of `KINDS` or `ACTIONS`."""
    count: int | None = None
    """Requests that it still meets; None: all."""
    after: int = 0
    """Requests that it lets pass before."""
    until: float | None = None
    """When it ends, in the loop's time; None: never."""
    seconds: float = 0.3
    """How long the server is away; of `slow`, how much longer each answer takes than the one before."""
    share: float = 1.0
    """The chance of each request to meet it."""
    identities: tuple[str, ...] = ()
    """The only items that meet it, in hex; empty: all requests, warm-ups and probes too."""
    shape: int | None = None
    """Which form of the fault; None: any."""
    met: int = 0
    """How many requests met it."""
    by_chance: bool = False
    """Whether a mixture switched it on, and has counted it."""


Meeting = Callable[["FaultServer", web.Request, dict[str, Any], Fault], Awaitable[web.StreamResponse | None]]


def break_off(request: web.Request, *, politely: bool = False) -> NoReturn:
    """Close the connection without an answer, by a reset or (`politely`) as an idle one is closed."""
    transport = request.transport
    if transport is not None:
        sock = transport.get_extra_info("socket")
        if politely:
            transport.close()
        else:
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
    raise asyncio.CancelledError


async def _reset(_: FaultServer, request: web.Request, __: dict[str, Any], ___: Fault) -> NoReturn:
    break_off(request)


async def _lost(server: FaultServer, request: web.Request, body: dict[str, Any], _: Fault) -> NoReturn:
    """The answer is computed, and counted; then the connection breaks."""
    await server.respond(request, body)
    break_off(request)


async def _closed(server: FaultServer, request: web.Request, _: dict[str, Any], __: Fault) -> None:
    """A kept connection is closed just as the request comes; a new one is served."""
    if server.is_kept(request):
        break_off(request, politely=True)


async def _hang(server: FaultServer, _: web.Request, body: dict[str, Any], __: Fault) -> NoReturn:
    """No answer ever, though /health is 200."""
    try:
        await asyncio.Event().wait()
    finally:
        server.left_alone(body["rid"])
    raise AssertionError


async def _drip(server: FaultServer, request: web.Request, body: dict[str, Any], fault: Fault) -> NoReturn:
    """A byte now and then, in a head or a body that never ends."""
    transport = request.transport
    assert transport is not None
    in_head = (fault.met if fault.shape is None else fault.shape) % 2 == 1
    head, drop = (b"", b"x: y\r\n") if in_head else (b"content-length: 9999\r\n\r\n{", b" ")
    transport.write(b"HTTP/1.1 200 OK\r\n" + head)
    try:
        while True:
            transport.write(drop)
            await asyncio.sleep(DROP)
    finally:
        server.left_alone(body["rid"])


async def _busy(_: FaultServer, __: web.Request, ___: dict[str, Any], ____: Fault) -> web.Response:
    return error_object(429, "Too many requests")


async def _full(_: FaultServer, __: web.Request, ___: dict[str, Any], ____: Fault) -> web.Response:
    return error_object(503, "The request queue is full.")


async def _abort503(_: FaultServer, __: web.Request, ___: dict[str, Any], ____: Fault) -> web.Response:
    return error_object(503, "The request is aborted by a higher priority request.")


async def _error500(_: FaultServer, __: web.Request, ___: dict[str, Any], ____: Fault) -> web.Response:
    return web.Response(status=500, text="Internal Server Error")


async def _aborted(
    server: FaultServer, request: web.Request, body: dict[str, Any], _: Fault
) -> web.StreamResponse:
    """200, and a part of the output, as after an abort by somebody else."""

    def cut(said: dict[str, Any]) -> None:
        said["output_ids"] = said["output_ids"][: len(said["output_ids"]) // 2]
        meta = said["meta_info"]
        meta["completion_tokens"] = len(said["output_ids"])
        meta["finish_reason"] = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}

    return await _altered(server, request, body, cut)


async def _refused400(_: FaultServer, __: web.Request, ___: dict[str, Any], fault: Fault) -> web.Response:
    message = "this one never"
    match (fault.met if fault.shape is None else fault.shape) % 3:
        case 0:
            return refuse(message)
        case 1:
            return web.json_response({"error": message}, status=400)
        case _:
            return error_object(400, message)


async def _truncated(
    server: FaultServer, request: web.Request, body: dict[str, Any], _: Fault
) -> web.StreamResponse:
    whole = await server.respond(request, body)
    if not isinstance(whole, web.Response) or not isinstance(whole.body, bytes):
        return whole
    part = web.StreamResponse(headers={"Content-Length": str(len(whole.body))})
    await part.prepare(request)
    await part.write(whole.body[: len(whole.body) // 2])
    break_off(request, politely=True)


async def _not_json(
    server: FaultServer, request: web.Request, body: dict[str, Any], fault: Fault
) -> web.StreamResponse:
    """200, and a body that is broken, of another kind, or of another form."""
    whole = await server.respond(request, body)
    if not isinstance(whole, web.Response) or not isinstance(whole.body, bytes):
        return whole
    texts = (whole.body[:-7], b"", b"<html>gateway</html>", b'{"output_ids": "?"}', b"[]", b"\xff\xfe{")
    return web.Response(body=texts[(fault.met if fault.shape is None else fault.shape) % len(texts)])


async def _nonsense(
    server: FaultServer, request: web.Request, body: dict[str, Any], fault: Fault
) -> web.StreamResponse:
    """JSON of the right form, with what no server can mean."""
    reasons = (
        {"type": "stop", "matched": 10**30},
        {"type": "stop", "matched": -(2**63) - 1},
        {"type": "stop", "matched": "y" * 100_000},
        {"type": "x" * 100_000, "matched": None},
        {"type": "\x1b[31m", "matched": None},
        {"type": "stop", "matched": None, "deep": "DEEP"},
    )
    reason = reasons[(fault.met if fault.shape is None else fault.shape) % len(reasons)]
    whole = await _altered(server, request, body, lambda said: said["meta_info"].update(finish_reason=reason))
    if not isinstance(whole, web.Response) or whole.text is None:
        return whole
    return web.json_response(text=whole.text.replace('"DEEP"', "[" * 3000 + "]" * 3000))


async def _counts(
    server: FaultServer, request: web.Request, body: dict[str, Any], _: Fault
) -> web.StreamResponse:
    return await _altered(server, request, body, lambda said: said["output_ids"].append(7))


async def _prompt(
    server: FaultServer, request: web.Request, body: dict[str, Any], _: Fault
) -> web.StreamResponse:
    """The server counted fewer prompt tokens than were sent: it cut them, or answered somebody else."""

    def cut(said: dict[str, Any]) -> None:
        said["meta_info"]["prompt_tokens"] -= 1

    return await _altered(server, request, body, cut)


async def _strangers(
    server: FaultServer, request: web.Request, body: dict[str, Any], _: Fault
) -> web.StreamResponse:
    """Output ids that the model doesn't have."""

    def spoil(said: dict[str, Any]) -> None:
        said["output_ids"][-1] = server.vocab_size + 3

    return await _altered(server, request, body, spoil)


async def _slow(server: FaultServer, _: web.Request, __: dict[str, Any], fault: Fault) -> None:
    """Each answer is slower than the one before."""
    await asyncio.sleep(fault.seconds * fault.met)


async def _unhealthy(_: FaultServer, __: web.Request, ___: dict[str, Any], ____: Fault) -> None:
    """/health says 503 meanwhile; work is done as ever."""


async def _poison(server: FaultServer, _: web.Request, __: dict[str, Any], fault: Fault) -> NoReturn:
    """The process dies of this request."""
    server.begin(server.go_away(fault.seconds, cold=True))
    await asyncio.Event().wait()  # Until the connections go.
    raise AssertionError


async def act(server: FaultServer, _: web.Request, __: dict[str, Any], fault: Fault) -> None:
    """What happens to the server happens as this request comes, which is answered if a connection is left."""
    server.act(fault)
    # Those that are broken off are so before anything is computed.
    for _turn in range(3):
        await asyncio.sleep(0)


async def _poison_routed(server: FaultServer, _: web.Request, __: dict[str, Any], fault: Fault) -> NoReturn:
    """The process behind a router dies of this request: all connections break, and others are served."""
    server.begin(server.go_away(0.0, cold=False))
    await asyncio.Event().wait()
    raise AssertionError


async def _altered(
    server: FaultServer, request: web.Request, body: dict[str, Any], change: Callable[[dict[str, Any]], None]
) -> web.StreamResponse:
    whole = await server.respond(request, body)
    if not isinstance(whole, web.Response) or whole.status != 200:
        return whole
    said = json.loads(whole.text or "")
    if not said["output_ids"]:
        return whole
    change(said)
    return web.json_response(said)


KINDS: dict[str, Meeting] = {
    "reset": _reset,
    "lost": _lost,
    "closed": _closed,
    "hang": _hang,
    "drip": _drip,
    "busy": _busy,
    "full": _full,
    "abort503": _abort503,
    "error500": _error500,
    "aborted": _aborted,
    "refuse": _refused400,
    "truncated": _truncated,
    "not_json": _not_json,
    "nonsense": _nonsense,
    "counts": _counts,
    "prompt": _prompt,
    "strangers": _strangers,
    "slow": _slow,
    "unhealthy": _unhealthy,
    "poison": _poison,
    "poison_routed": _poison_routed,
}
"""What happens to a request; None means that it is answered all the same."""

ACTIONS = ("away", "restart", "other_model", "swap", "swap_back", "back")
"""What happens to the server, at once or `after` so many requests: it can't be reached for a while (and keeps
its cache); it dies and comes back cold; comes back with another model; changes its weights without going
away, and back; comes back before its time."""

TRANSIENT = (
    "reset", "lost", "closed", "hang", "drip", "busy", "full", "abort503", "error500", "aborted", "truncated",
    "not_json", "nonsense", "counts", "prompt", "strangers",
)  # fmt: skip
"""Faults that say nothing about the item that meets them."""


def mixture(seed: int, share: float) -> Meeting:
    """Return a fault that is any transient one by chance, now and then a slow or unhealthy while, and now
    and then the server's absence or death.
    """
    chance = random.Random(seed)

    async def meet(
        server: FaultServer, request: web.Request, body: dict[str, Any], fault: Fault
    ) -> web.StreamResponse | None:
        if chance.random() >= share:
            return None
        kind = chance.choice((*TRANSIENT, "slow", "unhealthy", "away", "restart"))
        server.count(kind)
        now = asyncio.get_running_loop().time()
        match kind:
            case "slow" | "unhealthy":
                server.add(Fault(kind, until=now + chance.uniform(0.1, 0.5), seconds=0.002, by_chance=True))
                return None
            case "away" | "restart":
                server.begin(server.go_away(chance.uniform(0.05, 0.5), cold=kind == "restart"))
                await asyncio.Event().wait()
            case "hang" | "drip" if chance.random() < 0.5:
                return None  # It costs a whole silence timeout; half as many do.
        return await KINDS[kind](server, request, body, fault)

    return meet
