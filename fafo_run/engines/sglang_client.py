"""The HTTP side of an SGLang server: connections, the key, silence, lost connections. It reads no answer.

What it raises says what the dispatcher needs to know: `RefusedError` when the server said no to this request,
`Unavailable` when the answer is lost and says nothing about it. Requests to /generate go over thin
connections of our own (`connection`), which cost a fifth of aiohttp's; the few others over aiohttp.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit

import aiohttp
from aiohappyeyeballs import start_connection

from fafo_run.engines.base import Busy, Unavailable
from fafo_run.engines.connection import Answered, Connection, ConnectionLostError
from fafo_run.engines.sglang_wire import error_message
from fafo_run.engines.silence import Silence
from fafo_run.version import VERSION

KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept. The server closes its end after 5 (uvicorn's default)."""

CONNECT = 10.0
"""Seconds to reach the server."""

ABORT = 5.0
"""Seconds for a request to be aborted; nothing depends on it."""

_REFUSALS = frozenset({400, 413, 422})
"""Statuses that are about the request. All others are about the server, the way to it, or the key."""

_BUSY = frozenset({429, 503})
"""Statuses of a server that lives and takes no more at this moment: its queue is full."""

_SECOND_ADDRESS = 0.25
"""Seconds after which the next address of a name is tried too."""

Allowed = Callable[[], float]
"""How many seconds an answer may take; asked anew when they are over, as the server may have shown more."""


class RefusedError(Exception):
    """The server said no to this very request; the message is the server's."""


class Client:
    """Connections to one server. Use it from one event loop, and close it there."""

    def __init__(self, url: str, *, silence: float, key: str | None) -> None:
        """`url` has no slash at its end; `silence` is the most seconds that an answer may take.

        How many connections there are is as many requests as are under way at the same time.
        """
        self.url = url
        self.silence = Silence(silence)
        self.sent_again = 0
        """Requests that were sent twice: the server may have read the first, too."""
        self._place = _Place(url, key)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # For what is rare, and must not meet a connection that the server has closed.
        self._others = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True), headers=headers
        )
        self._loop = asyncio.get_running_loop()
        self._idle: deque[Connection] = deque()
        """Usable ones, in the order in which they were given back."""
        self._waiting: dict[Connection, Allowed] = {}
        self._alarm: asyncio.TimerHandle | None = None
        """Set for when the first of those that wait may have waited for too long."""
        self._aborts: set[asyncio.Task[None]] = set()

    async def get(self, path: str, *, timeout: float, base: str | None = None) -> Answered:
        """Return status and body of `path`, at the server or at `base`, a server behind it.

        Raises what aiohttp raises, `TimeoutError` after `timeout` seconds.
        """
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, CONNECT))
        url = (base or self.url) + path
        async with self._others.get(url, timeout=limit, allow_redirects=False) as response:
            return response.status, await response.read()

    async def generate(self, rid: str, body: Callable[[str], bytes], length: tuple[int, int]) -> bytes:
        """Send `body(rid)` to /generate and return the answer's body.

        `length` is how many prompt tokens it has, and how many output tokens it asks for. Raises
        `RefusedError` and `Unavailable`. When cancelled, tells the server so.
        """
        connection = self._kept()
        if connection is not None:
            try:
                return await self._post(connection, rid, body, length)
            except ConnectionLostError as error:
                if error.begun:
                    raise self._broken(f"the connection was lost: {error}") from error
            # The server may have closed the idle connection just as the request left, without reading it.
            # Should it have read it all the same, the old name may still be in use there: take another.
            rid = f"{rid}.again"
            self.sent_again += 1
        try:
            fresh = await self._connect()
        except Unavailable as error:
            # Who closes a connection and can't be reached any more hasn't closed an idle one: it has died.
            error.broken = connection is not None and not isinstance(error.__cause__, TimeoutError)
            raise
        try:
            return await self._post(fresh, rid, body, length)
        except ConnectionLostError as error:
            twice = "" if connection is None else " twice"
            raise self._broken(f"the connection was lost{twice}: {error}") from error

    async def close(self) -> None:
        """Let the last aborts leave, then close all connections."""
        if self._aborts:
            await asyncio.wait(self._aborts)
        for connection in (*self._idle, *self._waiting):
            connection.close()
        if self._alarm is not None:
            self._alarm.cancel()
        await self._others.close()
        # A transport closes its socket at the loop's next turn.
        await asyncio.sleep(0)

    async def _post(
        self, connection: Connection, rid: str, body: Callable[[str], bytes], length: tuple[int, int]
    ) -> bytes:
        coming = connection.ask(self._place.post(body(rid)))
        self._watch(connection, lambda: self.silence.allowed(*length))
        try:
            status, answer = await coming
        except asyncio.CancelledError:
            connection.close()
            self._abort(rid)
            raise
        except TimeoutError as error:
            self._abort(rid)
            raise Unavailable(f"{self.url}: {error}") from error
        finally:
            del self._waiting[connection]
        self._give_back(connection)
        if status == 200:
            return answer
        if status in _REFUSALS:
            raise RefusedError(error_message(answer))
        kind = Busy if status in _BUSY else Unavailable
        raise kind(f"{self.url}: HTTP {status}: {error_message(answer)}")

    def _broken(self, message: str) -> Unavailable:
        return Unavailable(f"{self.url}: {message}", broken=True)

    def _kept(self) -> Connection | None:
        """Return a connection that the server hasn't closed yet, as far as is known: the one used last."""
        oldest = self._loop.time() - KEEP_ALIVE
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.heard > oldest:
                return connection
            connection.close()
        return None

    def _give_back(self, connection: Connection) -> None:
        if not connection.usable:
            connection.close()
            return
        self._idle.append(connection)
        if self._idle[0].heard < connection.heard - KEEP_ALIVE:
            self._idle.popleft().close()

    async def _connect(self) -> Connection:
        place, loop = self._place, self._loop
        try:
            async with asyncio.timeout(CONNECT):
                found = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
                # asyncio's own way of trying several addresses leaves sockets open when it is cancelled.
                made = await start_connection(found, happy_eyeballs_delay=_SECOND_ADDRESS)
                _, connection = await loop.create_connection(
                    lambda: Connection(loop),
                    sock=made,
                    ssl=place.tls,
                    server_hostname=place.host if place.tls else None,
                )
        except TimeoutError as error:
            raise Unavailable(f"{self.url}: can't be reached: no answer in {CONNECT:.0f} s") from error
        except OSError as error:
            raise Unavailable(f"{self.url}: can't be reached: {_reason(error)}") from error
        return connection

    def _watch(self, connection: Connection, allowed: Allowed) -> None:
        """Have a request given up when its whole answer isn't there in time: one timer for all of them.

        Bytes that come meanwhile prolong nothing. An answer comes at once when it is computed, so bytes that
        drip are a fault, and one without an end.
        """
        self._waiting[connection] = allowed
        self._wake_at(connection.asked + allowed())

    def _wake_at(self, when: float) -> None:
        if self._alarm is None or when < self._alarm.when():
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._alarm = None
        now = self._loop.time()
        for connection, allowed in list(self._waiting.items()):
            seconds = allowed()
            if connection.asked + seconds <= now:
                connection.give_up(TimeoutError(f"no whole answer in {seconds:.3g} s"))
            else:
                self._wake_at(connection.asked + seconds)

    def _abort(self, rid: str) -> None:
        """Tell the server, in the background, that nobody waits for this request any more."""
        task = self._loop.create_task(self._post_abort(rid))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _post_abort(self, rid: str) -> None:
        try:
            limit = aiohttp.ClientTimeout(total=ABORT)
            url = f"{self.url}/abort_request"
            async with self._others.post(url, json={"rid": rid}, timeout=limit, allow_redirects=False):
                return
        except (aiohttp.ClientError, TimeoutError):
            # It would only have saved the server work; it notices the closed connection by itself, too.
            return


class _Place:
    """Where /generate is, and the head of a request to it. No I/O."""

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if secure else 80)
        self.tls = ssl.create_default_context() if secure else None
        lines = [
            f"POST {parts.path}/generate HTTP/1.1",
            f"Host: {parts.netloc}",
            f"User-Agent: fafo/{VERSION}",
            "Accept: application/json",
            "Content-Type: application/json",
        ]
        if key:
            lines.append(f"Authorization: Bearer {key}")
        self._head = "".join(f"{line}\r\n" for line in lines).encode() + b"Content-Length: "

    def post(self, body: bytes) -> bytes:
        """Return a whole request."""
        return b"%s%d\r\n\r\n%s" % (self._head, len(body), body)


def why(error: aiohttp.ClientConnectorError) -> str:
    """Return why a connection couldn't be made: `Connection refused`."""
    return _reason(error.os_error)


def _reason(error: OSError) -> str:
    number = error.errno
    return (
        os.strerror(number) if number and number > 0 and not isinstance(error, ssl.SSLError) else str(error)
    )
