"""The HTTP client against servers that say byte for byte what the test wants."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fafo_run.engines import connection
from fafo_run.engines.base import Unavailable
from fafo_run.engines.sglang_client import Client, RefusedError

BODY = b'{"text":"x"}'
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n" + BODY
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n"
CLOSE = b""
"""In a script: the server closes."""


class Scripted:
    """Answers the requests of all connections with the parts of its scripts, one script per request."""

    def __init__(self, scripts: Iterable[tuple[bytes, ...]]) -> None:
        self.scripts = iter(scripts)
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.url = ""
        self._tasks: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                length = int(head.lower().partition("content-length: ")[2].partition("\r")[0])
                self.bodies.append(await reader.readexactly(length))
                for part in next(self.scripts, ()):
                    if part == CLOSE:
                        return
                    writer.write(part)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()
            self._tasks.discard(task)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def serving(*scripts: tuple[bytes, ...], tls: ssl.SSLContext | None = None) -> AsyncIterator[Scripted]:
    it = Scripted(scripts)
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    it.url = f"https://localhost:{port}" if tls else f"http://127.0.0.1:{port}"
    try:
        yield it
    finally:
        server.close()
        await it.stop()


@asynccontextmanager
async def client(url: str, *, silence: float = 30.0, key: str | None = None) -> AsyncIterator[Client]:
    it = Client(url, silence=silence, key=key)
    try:
        yield it
    finally:
        await it.close()


def ask(it: Client, rid: str = "r") -> Coroutine[Any, Any, bytes]:
    return it.generate(rid, lambda rid: rid.encode(), (10, 4))


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 60))


def test_one_connection_carries_one_request_after_the_other() -> None:
    async def main() -> None:
        async with serving(*[(WHOLE,)] * 3) as server, client(server.url) as it:
            assert [await ask(it, str(number)) for number in range(3)] == [BODY] * 3
            assert server.connections == 1
            assert server.bodies == [b"0", b"1", b"2"]

    run(main)


def test_as_many_connections_as_requests_at_the_same_time() -> None:
    async def main() -> None:
        async with serving(*[(WHOLE,)] * 9) as server, client(server.url) as it:
            assert await asyncio.gather(*(ask(it) for _ in range(5))) == [BODY] * 5
            assert await asyncio.gather(*(ask(it) for _ in range(4))) == [BODY] * 4
            assert server.connections == 5

    run(main)


@pytest.mark.parametrize(
    "script",
    [
        tuple(bytes([byte]) for byte in WHOLE),
        (b"HTTP/1.1 100 Continue\r\n\r\n", WHOLE),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE,),
        (CHUNKED, BODY[:5], b"\r\n7\r\n", BODY[5:] + b"\r\n0\r\n\r\n"),
    ],
)
def test_an_answer_in_any_pieces(script: tuple[bytes, ...]) -> None:
    async def main() -> None:
        async with serving(script, script) as server, client(server.url) as it:
            assert await ask(it) == BODY
            assert await ask(it) == BODY
            assert server.connections == 1

    run(main)


@pytest.mark.parametrize(
    "script",
    [
        (WHOLE[:-3], CLOSE),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n" + BODY, CLOSE),
        (b"HTTP/1.1 200 OK\r\ncontent-le", CLOSE),
        (CHUNKED + BODY[:5] + b"\r\n", CLOSE),
        # Lasts until the server closes: nobody knows whether it is whole.
        (b"HTTP/1.1 200 OK\r\n\r\n" + BODY, CLOSE),
        (b"SSH-2.0-OpenSSH_9.2\r\n",),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",),
        (CLOSE,),
    ],
)
def test_an_answer_that_is_not_whole_is_lost(script: tuple[bytes, ...]) -> None:
    async def main() -> None:
        async with serving(script, (WHOLE,)) as server, client(server.url) as it:
            with pytest.raises(Unavailable, match="connection was lost") as caught:
                await ask(it)
            assert caught.value.broken
            assert len(server.bodies) == 1
            assert await ask(it) == BODY
            assert server.connections == 2

    run(main)


@pytest.mark.parametrize(
    "script",
    [
        (CHUNKED + BODY[:5] + b"\r\n", b"40\r\n" + b" " * 64 + b"\r\n") * 4,
        (b"HTTP/1.1 200 OK\r\n", b"x-a: " + b"a" * 60 + b"\r\n", b"x-b: " + b"b" * 60 + b"\r\n"),
    ],
)
def test_an_answer_without_an_end_is_given_up(
    script: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LARGEST", 100)

    async def main() -> None:
        async with serving((WHOLE,), (WHOLE,), script, (WHOLE,)) as server, client(server.url) as it:
            assert [await ask(it), await ask(it)] == [BODY] * 2, "each answer has all of it"
            with pytest.raises(Unavailable, match="an answer of more than"):
                await ask(it)
            assert await ask(it) == BODY

    run(main)


def test_an_answer_that_broke_off_on_a_kept_connection_is_not_asked_for_again() -> None:
    async def main() -> None:
        scripts = [(WHOLE,), (WHOLE[:-3], CLOSE), (WHOLE,)]
        async with serving(*scripts) as server, client(server.url) as it:
            await ask(it)
            with pytest.raises(Unavailable, match="broke off"):
                await ask(it)
            assert len(server.bodies) == 2

    run(main)


def test_a_request_on_a_connection_that_was_closed_is_sent_once_more_under_another_name() -> None:
    async def main() -> None:
        scripts = [(WHOLE,), (CLOSE,), (CLOSE,), (WHOLE,)]
        async with serving(*scripts) as server, client(server.url) as it:
            await ask(it, "a")
            with pytest.raises(Unavailable, match="lost twice"):
                await ask(it, "b")
            assert server.bodies == [b"a", b"b", b"b.again"] and it.sent_again == 1

    run(main)


@pytest.mark.parametrize(
    "script",
    [
        (WHOLE + b"more than was announced",),
        (WHOLE + WHOLE,),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 12\r\n\r\n" + BODY,),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 12\r\n\r\n" + BODY,),
    ],
)
def test_a_connection_with_more_or_no_future_is_not_used_again(script: tuple[bytes, ...]) -> None:
    async def main() -> None:
        async with serving(script, (WHOLE,)) as server, client(server.url) as it:
            assert await ask(it) == BODY
            assert await ask(it) == BODY
            assert server.connections == 2

    run(main)


@pytest.mark.parametrize("unasked", [WHOLE, WHOLE[:10], b"anything"])
def test_what_comes_unasked_is_no_answer(unasked: bytes) -> None:
    async def main() -> None:
        async with serving((WHOLE, unasked), (WHOLE,)) as server, client(server.url) as it:
            assert await ask(it) == BODY
            while it._idle and it._idle[0].usable:
                await asyncio.sleep(0)
            assert await ask(it) == BODY
            assert server.connections == 2

    run(main)


def test_an_idle_connection_is_kept_for_less_than_the_server_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fafo_run.engines.sglang_client.KEEP_ALIVE", 0.0)

    async def main() -> None:
        async with serving((WHOLE,), (WHOLE,)) as server, client(server.url) as it:
            await ask(it)
            await ask(it)
            assert server.connections == 2

    run(main)


def test_a_redirect_is_not_followed() -> None:
    moved = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /generate\r\ncontent-length: 0\r\n\r\n"

    async def main() -> None:
        async with serving((moved,), (WHOLE,)) as server, client(server.url) as it:
            with pytest.raises(Unavailable, match="HTTP 307"):
                await ask(it)
            assert len(server.bodies) == 1

    run(main)


def test_a_refusal_leaves_the_connection_as_it_is() -> None:
    refused = b'HTTP/1.1 400 Bad Request\r\ncontent-length: 14\r\n\r\n{"error":"no"}'

    async def main() -> None:
        async with serving((refused,), (WHOLE,)) as server, client(server.url) as it:
            with pytest.raises(RefusedError, match="no"):
                await ask(it)
            await ask(it)
            assert server.connections == 1

    run(main)


def test_what_the_head_says() -> None:
    async def main() -> None:
        async with serving((WHOLE,), (WHOLE,)) as server:
            place = server.url.removeprefix("http://")
            async with client(f"{server.url}/behind/a/proxy", key="sesame") as it:
                await ask(it)
            (first,) = server.heads
            assert first.startswith("POST /behind/a/proxy/generate HTTP/1.1\r\n")
            assert f"\r\nHost: {place}\r\n" in first
            assert "\r\nAuthorization: Bearer sesame\r\n" in first

    run(main)


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"", b"\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n", b" "),
        (CHUNKED + BODY[:5] + b"\r\n", b"1\r\n \r\n"),
    ],
)
def test_bytes_that_drip_for_ever_are_no_answer(
    head: bytes, drop: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fafo_run.engines.sglang_client.ABORT", 0.1)

    async def main() -> None:
        dripping: set[asyncio.Task[Any]] = set()

        async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            dripping.add(task)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head)
            while not writer.is_closing():
                writer.write(drop)
                await asyncio.sleep(0.01)

        async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with client(url, silence=0.3) as it:
                with pytest.raises(Unavailable, match=r"no whole answer in 0\.3 s"):
                    await ask(it)
            assert len(dripping) == 2, "it was asked, and told to abort"
            await asyncio.wait(dripping)

    run(main)


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-newkey", "ec"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(certificate, key)

    async def main() -> None:
        async with serving((WHOLE,), (WHOLE,), tls=ours) as server:
            async with client(server.url) as it:
                with pytest.raises(Unavailable, match=r"can't be reached: .*certificate"):
                    await ask(it)
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            async with client(server.url) as it:
                assert [await ask(it), await ask(it)] == [BODY, BODY]
            assert server.connections == 1

    run(main)
