"""One kept HTTP/1.1 connection that answers one request after the other. It knows nothing of SGLang.

asyncio carries the bytes, encrypted or not, and llhttp (through httptools) reads what comes back. Why this
and no client library: benchmarks/README.md, "The HTTP client".
"""

from __future__ import annotations

import asyncio

import httptools

Answered = tuple[int, bytes]
"""Status and body."""

LARGEST = 1 << 26
"""Bytes of an answer, head and all: one that is longer never ends, and would fill the memory."""


class ConnectionLostError(Exception):
    """The connection ended, or what came isn't HTTP, before an answer was whole."""

    def __init__(self, message: str, *, begun: bool) -> None:
        """`begun` when some of the answer had come: then the server has read the request."""
        super().__init__(message)
        self.begun = begun


class Connection(asyncio.Protocol):
    """Made by `loop.create_connection`. An answer must say how long it is: one that lasts until the server
    closes can't be told from one that was cut, and counts as cut.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = 0.0
        """When the request left, in seconds of the loop's clock."""
        self.heard = 0.0
        """When the last byte came, or the request left, by the same clock."""
        self.usable = True
        """Whether another request may be sent, once the answer is there."""
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Answered] | None = None
        self._begun = False
        self._size = 0
        """Bytes of the answer that have come."""
        self._body: list[bytes] = []

    def ask(self, request: bytes) -> asyncio.Future[Answered]:
        """Send a whole request; the answer comes in the future, or `ConnectionLostError`. One at a time."""
        answer = self._answer = self._loop.create_future()
        self._begun, self._size = False, 0
        self.asked = self.heard = self._loop.time()
        if self._transport is None or not self.usable:
            self._fail("closed before the request left")
        else:
            self._transport.write(request)
        return answer

    def give_up(self, error: Exception) -> None:
        """Close, and let `error` be what became of the request."""
        answer, self._answer = self._answer, None
        self.close()
        if answer is not None and not answer.done():
            answer.set_exception(error)

    def close(self) -> None:
        """Close at once, whatever is under way."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Read on in the answer."""
        if self._answer is None:
            # Nobody has asked: nothing that comes after this could be told from the answer to the next one.
            self.close()
            return
        self.heard, self._begun = self._loop.time(), True
        self._size += len(data)
        if self._size > LARGEST:
            self._fail(f"an answer of more than {LARGEST >> 20} MiB")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"what came isn't an HTTP answer: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Whatever was under way is lost."""
        self._fail("the answer broke off" if self._begun else str(exc or "closed by the server"))

    # What httptools calls.

    def on_message_begin(self) -> None:
        """An answer begins; where nobody has asked, it is a second one in the same bytes."""
        if self._answer is None:
            self.close()

    def on_body(self, part: bytes) -> None:
        """A part of the body has come."""
        self._body.append(part)

    def on_message_complete(self) -> None:
        """The answer is whole; one below 200 only announces another."""
        status: int = self._parser.get_status_code()
        body, self._body = b"".join(self._body), []
        if status < 200:
            return
        answer, self._answer = self._answer, None
        if answer is None:
            return
        sending = self._transport is None or self._transport.get_write_buffer_size() > 0
        self.usable = self.usable and not sending and self._parser.should_keep_alive()
        if not answer.done():
            answer.set_result((status, body))

    def _fail(self, message: str) -> None:
        self.give_up(ConnectionLostError(message, begun=self._begun))
