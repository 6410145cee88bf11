"""A server that speaks SGLang's protocol as 0.5.23 does, around the fake engine, in the test's own loop.

It has an honest radix cache, refuses what the real one refuses, and dies of what kills the real one: token
ids outside the vocabulary. A test may put a fault in front of /generate.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from aiohttp import web

from fafo_build.project import declaration
from fafo_build.project.declaration import Sampling
from fafo_run.engines.base import Answer, Prefix, Request
from fafo_run.engines.fake import FakeEngine
from fafo_run.engines.radix import RadixCache

Fault = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse | None]]

KNOWN = {
    "max_new_tokens", "stop", "stop_token_ids", "temperature", "top_p", "top_k", "min_p", "sampling_seed",
    "ignore_eos", "n",
}  # fmt: skip


class FakeSglang:
    """`async with FakeSglang() as server:` listens at `server.url`."""

    def __init__(
        self,
        *,
        vocab_size: int = 1000,
        context_length: int = 512,
        page_size: int = 1,
        eos_ids: Collection[int] = (2,),
        api_key: str | None = None,
    ) -> None:
        self.vocab_size, self.context_length, self.page_size = vocab_size, context_length, page_size
        self.eos_ids, self.api_key = frozenset(eos_ids), api_key
        self.received: list[dict[str, Any]] = []
        """Bodies of /generate, in order."""
        self.aborted: list[str] = []
        self.running: set[str] = set()
        self.dead = False
        self.fault: Fault | None = None
        """Asked before a request is answered; what it returns is the answer, None means to go on."""
        self.server_info: dict[str, Any] = {
            "version": "0.5.23",
            "model_path": "fake-model",
            "page_size": page_size,
            "max_req_input_len": context_length - 6,
            "max_running_requests": 64,
            "disable_radix_cache": False,
            "schedule_policy": "fcfs",
            "dtype": "bfloat16",
            "dp_size": 1,
            "api_key": api_key,
            "internal_states": [{"effective_max_running_requests_per_dp": 64}],
        }
        self.model_info: dict[str, Any] = {
            "model_path": "fake-model",
            "is_generation": True,
            "weight_version": "default",
            "preferred_sampling_params": None,
        }
        self.health = 200
        self.old_names = False
        """Whether only /get_server_info and /get_model_info exist, as before 0.5.6."""
        self._cache = RadixCache(page_size=page_size)
        self._engines: dict[frozenset[int], FakeEngine] = {}

    async def __aenter__(self) -> FakeSglang:
        app = web.Application(middlewares=[self._gate], client_max_size=2**26)
        app.router.add_get("/{old:(get_)?}server_info", self._server_info)
        app.router.add_get("/{old:(get_)?}model_info", self._model_info)
        app.router.add_get("/health", self._health)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @web.middleware
    async def _gate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.dead:
            hang_up(request)
        needed = f"Bearer {self.api_key}" if self.api_key and request.path != "/health" else None
        if needed and request.headers.get("Authorization") != needed:
            return web.json_response({"error": "Unauthorized"}, status=401)
        try:
            return await handler(request)  # type: ignore[no-any-return]
        except web.HTTPNotFound:
            return web.json_response({"detail": "Not Found"}, status=404)

    async def _server_info(self, request: web.Request) -> web.Response:
        if self.old_names and not request.match_info["old"]:
            raise web.HTTPNotFound
        return web.json_response(self.server_info)

    async def _model_info(self, request: web.Request) -> web.Response:
        if self.old_names and not request.match_info["old"]:
            raise web.HTTPNotFound
        return web.json_response(self.model_info)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=self.health)

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        try:
            body = json.loads(raw)
        except json.JSONDecodeError as error:
            return web.json_response(
                {"object": "error", "message": f"1 validation error: {error}", "code": 400}, status=400
            )
        self.received.append(body)
        rid = body["rid"]
        if rid in self.running:
            return refuse(f"Duplicate request ID detected: {rid}")
        self.running.add(rid)
        try:
            answer = await self.fault(request, body) if self.fault else None
            return answer or await self._answer(body, request)
        finally:
            self.running.discard(rid)

    async def _answer(self, body: dict[str, Any], request: web.Request) -> web.StreamResponse:
        ids, params = body["input_ids"], body["sampling_params"]
        if unknown := set(params) - KNOWN:
            return web.json_response(
                {"error": f"unknown field `{unknown.pop()}`, expected one of …"}, status=400
            )
        if not ids:
            return refuse("input_ids cannot be empty.")
        if len(ids) >= self.server_info["max_req_input_len"]:
            return refuse(f"Input length ({len(ids)} tokens) exceeds the maximum allowed length")
        if len(ids) + params["max_new_tokens"] > self.context_length:
            return refuse("Requested token count exceeds the model's maximum context length")
        if not all(0 <= token < self.vocab_size for token in ids):
            self.dead = True
            hang_up(request)
        return web.json_response(await self.answer(body))

    async def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return what the real server would say, the ids being the fake engine's."""
        ids, params = body["input_ids"], body["sampling_params"]
        sampling = Sampling(
            max_new_tokens=min(params["max_new_tokens"], self.context_length - 2 - len(ids)),
            temperature=params.get("temperature", 1.0),
            top_p=params.get("top_p", 1.0),
            top_k=params.get("top_k", -1),
            min_p=params.get("min_p", 0.0),
        )
        engine = await self._engine(self.eos_ids | set(params.get("stop_token_ids", ())))
        prompt = Request(
            bytes(16), 1, Prefix("0" * 64, ()), tuple(ids), sampling, params.get("sampling_seed", 42)
        )
        (found,) = await engine.generate([prompt])
        assert isinstance(found, Answer)
        reason: dict[str, Any] = {"type": found.finish_reason.type}
        if found.finish_reason.type == "stop":
            reason["matched"] = found.finish_reason.matched
        else:
            reason["length"] = len(found.ids)
        return {
            "text": "…",
            "output_ids": list(found.ids),
            "meta_info": {
                "id": body["rid"],
                "finish_reason": reason,
                "prompt_tokens": len(ids),
                "completion_tokens": len(found.ids),
                "cached_tokens": found.cached_tokens,
                "cached_tokens_details": None,
                "weight_version": "default",
            },
        }

    async def _engine(self, eos_ids: frozenset[int]) -> FakeEngine:
        if eos_ids not in self._engines:
            engine = FakeEngine(
                declaration.Engine("default", "fake"),
                vocab_size=self.vocab_size,
                context_length=self.context_length,
                eos_ids=eos_ids,
            )
            engine.cache = self._cache
            await engine.start()
            self._engines[eos_ids] = engine
        return self._engines[eos_ids]


def refuse(message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=400)


def hang_up(request: web.Request) -> None:
    """Reset the connection, as a process does that dies."""
    assert request.transport is not None
    request.transport.abort()
    raise asyncio.CancelledError
