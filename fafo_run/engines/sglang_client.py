"""The HTTP side of an SGLang server: connections, the key, silence, lost connections. It reads no answer.

What it raises says what the dispatcher needs to know: `RefusedError` when the server said no to this request,
`Unavailable` when the answer is lost and says nothing about it.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Callable
from types import SimpleNamespace

import aiohttp

from fafo_run.engines.base import Unavailable
from fafo_run.engines.sglang_wire import error_message

KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept. The server closes its end after 5 (uvicorn's default)."""

CONNECT = 10.0
"""Seconds to reach the server."""

ABORT = 5.0
"""Seconds for a request to be aborted; nothing depends on it."""

_REFUSALS = frozenset({400, 413, 422})
"""Statuses that are about the request. All others are about the server, the way to it, or the key."""

_LOST = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


class RefusedError(Exception):
    """The server said no to this very request; the message is the server's."""


class Client:
    """Connections to one server. Use it from one event loop, and close it there."""

    def __init__(self, url: str, *, limit: int, silence: float, key: str | None) -> None:
        """`url` has no slash at its end; `limit` is in connections, `silence` in seconds."""
        self.url = url
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=silence)
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        self._kept = self._session(aiohttp.TCPConnector(limit=limit, keepalive_timeout=KEEP_ALIVE), [trace])
        # For what must not meet a connection that the server has closed, nor wait for one to be free.
        self._fresh = self._session(aiohttp.TCPConnector(limit=0, force_close=True), [])
        self._aborts: set[asyncio.Task[None]] = set()

    def _session(
        self, connector: aiohttp.TCPConnector, traces: list[aiohttp.TraceConfig]
    ) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector, timeout=self._timeout, headers=self._headers, trace_configs=traces
        )

    async def get(self, path: str, *, timeout: float) -> tuple[int, bytes]:
        """Return status and body of `path`. Raises what aiohttp raises, `TimeoutError` after `timeout` s."""
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, CONNECT))
        async with self._fresh.get(self.url + path, timeout=limit, allow_redirects=False) as response:
            return response.status, await response.read()

    async def generate(self, rid: str, body: Callable[[str], bytes]) -> bytes:
        """Send `body(rid)` to /generate and return the answer's body.

        Raises `RefusedError` and `Unavailable`. When cancelled, tells the server so.
        """
        noted = SimpleNamespace(reused=False)
        try:
            return await self._post(self._kept, rid, body, noted)
        except _LOST as error:
            if not noted.reused:
                raise Unavailable(f"{self.url}: the connection was lost: {error}") from error
        # The server may have closed the idle connection just as the request left, without reading it. Should
        # it have read it all the same, the old name may still be in use there: take another.
        try:
            return await self._post(self._fresh, f"{rid}.again", body, noted)
        except _LOST as error:
            raise Unavailable(f"{self.url}: the connection was lost twice: {error}") from error

    async def _post(
        self,
        session: aiohttp.ClientSession,
        rid: str,
        body: Callable[[str], bytes],
        noted: SimpleNamespace,
    ) -> bytes:
        try:
            async with session.post(
                f"{self.url}/generate",
                data=io.BytesIO(body(rid)),
                headers={"Content-Type": "application/json"},
                allow_redirects=False,
                trace_request_ctx=noted,
            ) as response:
                answer = await response.read()
        except asyncio.CancelledError:
            self._abort(rid)
            raise
        except TimeoutError as error:
            self._abort(rid)
            raise Unavailable(f"{self.url}: silent for too long: {error}") from error
        except aiohttp.ClientConnectorError as error:
            raise Unavailable(f"{self.url}: can't be reached: {why(error)}") from error
        except _LOST:
            raise
        except aiohttp.ClientError as error:
            raise Unavailable(f"{self.url}: the answer broke off: {error}") from error
        if response.status == 200:
            return answer
        if response.status in _REFUSALS:
            raise RefusedError(error_message(answer))
        raise Unavailable(f"{self.url}: HTTP {response.status}: {error_message(answer)}")

    def _abort(self, rid: str) -> None:
        """Tell the server, in the background, that nobody waits for this request any more."""
        task = asyncio.get_running_loop().create_task(self._post_abort(rid))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _post_abort(self, rid: str) -> None:
        try:
            limit = aiohttp.ClientTimeout(total=ABORT)
            async with self._fresh.post(f"{self.url}/abort_request", json={"rid": rid}, timeout=limit):
                pass
        except (aiohttp.ClientError, TimeoutError):
            # It would only have saved the server work; it notices the closed connection by itself, too.
            return

    async def close(self) -> None:
        """Let the last aborts leave, then close all connections."""
        if self._aborts:
            await asyncio.wait(self._aborts)
        await self._kept.close()
        await self._fresh.close()


def why(error: aiohttp.ClientConnectorError) -> str:
    """Return why a connection couldn't be made: `Connection refused`."""
    number = error.os_error.errno
    return os.strerror(number) if number and number > 0 else str(error.os_error)


async def _note_reuse(
    _session: aiohttp.ClientSession, context: SimpleNamespace, _params: aiohttp.TraceConnectionReuseconnParams
) -> None:
    context.trace_request_ctx.reused = True
