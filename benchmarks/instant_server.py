"""A server that answers /generate at once, in a process of its own that is pinned to a core."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

OUTPUT = list(range(100, 132))


class Instant(asyncio.Protocol):
    """One connection to a server that answers /generate at once: 32 ids, the prefix from its cache."""

    INFO: ClassVar[dict[bytes, Any]] = {
        b"/server_info": {
            "version": "0.5.23", "model_path": "instant", "page_size": 1, "max_req_input_len": 8000,
            "max_running_requests": 1024, "disable_radix_cache": False, "dp_size": 1,
            "internal_states": [{"effective_max_running_requests_per_dp": 1024}],
        },
        b"/model_info": {"model_path": "instant", "is_generation": True},
        b"/v1/loads": {"loads": [{"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0}]},
    }  # fmt: skip
    served = 0

    def __init__(self, cached: int) -> None:
        self._cached = cached
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data = self._data + data if self._data else data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end]
            at = head.lower().find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._data) < end + 4 + length:
                return
            body, self._data = self._data[end + 4 : end + 4 + length], self._data[end + 4 + length :]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if path == b"/generate":
            Instant.served += 1
            begin = body.find(b'"input_ids":[') + 13
            prompt = body.count(b",", begin, body.find(b"]", begin)) + 1
            wanted = 1 if b'"max_new_tokens":1,' in body else len(OUTPUT)
            answer = (
                b'{"text":"%s","output_ids":%s,"meta_info":{"id":"%s","finish_reason":{"type":"length",'
                b'"length":%d},"prompt_tokens":%d,"weight_version":"default","total_retractions":0,'
                b'"completion_tokens":%d,"cached_tokens":%d,"cached_tokens_details":null,"dp_rank":null,'
                b'"e2e_latency":0.012345678901234567,"response_sent_to_client_ts":1764500000.1234567}}'
            ) % (
                b"some words of text " * 6,
                json.dumps(OUTPUT[:wanted]).encode(),
                body[8 : body.find(b'"', 8)],
                wanted,
                prompt,
                wanted,
                min(self._cached, prompt - 1),
            )
        else:
            answer = json.dumps(self.INFO.get(path, {})).encode()
        self._transport.write(  # type: ignore[attr-defined]
            b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\n"
            b"content-length: %d\r\ncontent-type: application/json\r\n\r\n%s" % (len(answer), answer)
        )


async def serve(cached: int) -> None:
    """Listen at a free port of 127.0.0.1 and print it, until killed; on end of input print the CPU used."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Instant(cached), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"served": Instant.served, "cpu": used.ru_utime + used.ru_stime}), flush=True)
    os._exit(0)


@contextmanager
def instant_server(cached: int, core: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run the server pinned to a core; yield its URL, and a dict that tells at the end what it did."""
    told: dict[str, Any] = {}
    process = subprocess.Popen(
        [sys.executable, __file__, str(cached)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.sched_setaffinity(process.pid, {core})
    assert process.stdin and process.stdout
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}", told
        process.stdin.close()
        told |= json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
