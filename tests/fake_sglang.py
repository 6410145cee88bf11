"""A server that speaks SGLang's protocol as 0.5.23 does, around the fake engine, in the test's own loop.

It has an honest radix cache per rank, bounded and with a queue in front, counts as the real one counts,
refuses what the real one refuses, and dies of what kills the real one: token ids outside the vocabulary. A
test may put a fault in front of /generate.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Self

from aiohttp import web
from attrs import evolve

from fafo_build.project import declaration
from fafo_build.project.declaration import Sampling
from fafo_run.engines.base import Answer, Prefix, Request
from fafo_run.engines.fake import FakeEngine
from fafo_run.engines.radix import RadixCache
from fafo_run.item import Ids
from tests.fake_params import KNOWN, RANGES, wrong
from tests.fake_scheduler import Computed, Counters, Flight, QueueFullError, Rank, metrics

Fault = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse | None]]


def text_of(ids: Sequence[int]) -> str:
    """Return what ids stand for at this server, which has no tokenizer: their numbers."""
    return "".join(f"{token};" for token in ids)


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
        model: str = "fake-model",
        capacity: int = 1 << 20,
        radix: bool = True,
        dp_size: int = 1,
        max_running: int = 64,
        max_queued: int | None = None,
        metrics: bool = False,
        seconds_per_token: float = 0.0,
        seconds_per_prompt_token: float = 0.0,
    ) -> None:
        """Be as a server that was started with such flags.

        `capacity` is in tokens, `max_running` and `max_queued` in requests, all per rank of `dp_size`.
        `seconds_per_token` is of the output, `seconds_per_prompt_token` of what the cache didn't have.
        """
        self.vocab_size, self.context_length, self.page_size = vocab_size, context_length, page_size
        self.eos_ids, self.api_key = frozenset(eos_ids), api_key
        self._rank_settings: dict[str, Any] = {
            "page_size": page_size,
            "capacity": capacity,
            "radix": radix,
            "max_running": max_running,
            "max_queued": max_queued,
            "seconds_per_token": seconds_per_token,
            "seconds_per_prompt_token": seconds_per_prompt_token,
        }
        self._metrics = metrics
        self.received: list[dict[str, Any]] = []
        """Bodies of /generate, in order."""
        self.aborted: list[str] = []
        self.running: dict[str, Flight] = {}
        self.dead = False
        self.fault: Fault | None = None
        """Asked before a request is answered; what it returns is the answer, None means to go on."""
        self.server_info: dict[str, Any] = {
            "version": "0.5.23",
            "model_path": model,
            "page_size": page_size,
            "max_req_input_len": context_length - 6,
            "max_running_requests": max_running * dp_size,
            "max_queued_requests": max_queued,
            "max_total_num_tokens": capacity,
            "disable_radix_cache": not radix,
            "schedule_policy": "fcfs",
            "dtype": "bfloat16",
            "dp_size": dp_size,
            # It can't hold an output to a grammar, and so says that it doesn't.
            "grammar_backend": "none",
            "skip_tokenizer_init": False,
            "enable_metrics": metrics,
            "api_key": api_key,
            "internal_states": [{"effective_max_running_requests_per_dp": max_running}] * dp_size,
        }
        self.model_info: dict[str, Any] = {
            "model_path": model,
            "is_generation": True,
            "weight_version": "default",
            "preferred_sampling_params": None,
        }
        self.health = 200
        self.old_names = False
        """Whether only /get_server_info and /get_model_info exist, as before 0.5.6."""
        self._engines: dict[frozenset[int], FakeEngine] = {}
        self.cold_start()

    def cold_start(self) -> None:
        """Be as a process that has just started: nothing cached, nothing counted, another seed."""
        self.counted = Counters()
        self.server_info["random_seed"] = random.getrandbits(30)
        dp_size = self.server_info["dp_size"]
        self.ranks = [Rank(number, **self._rank_settings) for number in range(dp_size)]
        self._turns = itertools.cycle(self.ranks)

    def forget(self) -> None:
        """Empty the caches."""
        for rank in self.ranks:
            rank.cache.clear()

    def app(self) -> web.Application:
        """Return the server's routes."""
        app = web.Application(middlewares=[self._gate], client_max_size=2**26)
        app.router.add_get("/{old:(get_)?}server_info", self._server_info)
        app.router.add_get("/{old:(get_)?}model_info", self._model_info)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_route("*", "/flush_cache", self._flush)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        if self._metrics:
            app.router.add_get("/metrics", self._counters)
        return app

    async def __aenter__(self) -> Self:
        self._runner = web.AppRunner(self.app(), handler_cancellation=True, shutdown_timeout=0.01)
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

    async def _loads(self, _: web.Request) -> web.Response:
        loads = [rank.load() for rank in self.ranks]
        head = {"timestamp": "2026-01-01T00:00:00+00:00", "version": self.server_info["version"]}
        return web.json_response({**head, "accelerator": None, "num_accelerators": 1, "loads": loads})

    async def _counters(self, _: web.Request) -> web.Response:
        text = metrics(self.model_info["model_path"], self.counted, self.ranks)
        return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _flush(self, _: web.Request) -> web.Response:
        if any(rank.running or rank.waiting for rank in self.ranks):
            return web.Response(status=400, text="Flush cache failed.\n")
        self.forget()
        return web.Response(text="Cache flushed.\nPlease check backend logs for more details. \n")

    async def _abort(self, request: web.Request) -> web.Response:
        rid = (await request.json())["rid"]
        self.aborted.append(rid)
        if rid in self.running:
            self.counted.aborted += 1
            # As the real one does: whatever begins with the name.
            for flight in self.running.values():
                if flight.rid.startswith(rid):
                    flight.aborted.set()
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        try:
            body = json.loads(raw)
        except json.JSONDecodeError as error:
            return web.json_response(
                {"object": "error", "message": f"1 validation error: {error}", "code": 400}, status=400
            )
        self.note(body)
        rid = body["rid"]
        if rid in self.running:
            return refuse(f"Duplicate request ID detected: {rid}")
        self.running[rid] = Flight(rid)
        try:
            answer = await self.fault(request, body) if self.fault else None
            return answer or await self.respond(request, body)
        except asyncio.CancelledError:
            # The client went away, and the real server aborts what nobody waits for.
            self.counted.aborted += 1
            raise
        finally:
            del self.running[rid]

    def note(self, body: dict[str, Any]) -> None:
        """Remember a request that arrived."""
        self.received.append(body)

    async def respond(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Answer a request as a server without a fault does."""
        ids, params = body["input_ids"], body["sampling_params"]
        if unknown := set(params) - set(KNOWN):
            return web.json_response(
                {"error": f"unknown field `{unknown.pop()}`, expected one of …"}, status=400
            )
        if message := wrong(params, self.server_info):
            return refuse(message)
        if not ids:
            return refuse("input_ids cannot be empty.")
        if len(ids) >= self.server_info["max_req_input_len"]:
            return refuse(f"Input length ({len(ids)} tokens) exceeds the maximum allowed length")
        if len(ids) + params["max_new_tokens"] > self.context_length:
            return refuse("Requested token count exceeds the model's maximum context length")
        if not all(0 <= token < self.vocab_size for token in ids):
            self.dead = True
            hang_up(request)
        rank = body.get("routed_dp_rank")
        if rank is not None and not 0 <= rank < len(self.ranks):
            return refuse(f"routed_dp_rank={rank} out of range [0, {len(self.ranks)})")
        try:
            return web.json_response(await self.answer(body))
        except QueueFullError:
            return error_object(503, "The request queue is full.")

    async def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return what the real server would say, the ids being the fake engine's."""
        ids, params = body["input_ids"], body["sampling_params"]
        given = {name: params[name] for name in RANGES if name in params}
        sampling = Sampling(
            max_new_tokens=min(params["max_new_tokens"], self.context_length - 2 - len(ids)),
            temperature=params.get("temperature", 1.0),
            top_p=params.get("top_p", 1.0),
            top_k=params.get("top_k", -1),
            repetition_penalty=params.get("repetition_penalty", 1.0),
            **given,
        )
        ends = self.eos_ids | set(params.get("stop_token_ids", ()))
        prompt = Request(
            bytes(16), 1, Prefix("0" * 64, ()), tuple(ids), sampling, params.get("sampling_seed", 42)
        )
        engine = await self._engine(ends)
        found = await self._one(engine, prompt)
        stopped = None
        if stops := params.get("stop"):
            length, stopped = _stopped(found.ids, [stops] if isinstance(stops, str) else stops)
            found = await self._one(engine, evolve(prompt, sampling=evolve(sampling, max_new_tokens=length)))
        reason: dict[str, Any] = {"type": found.finish_reason.type}
        if stopped is not None:
            reason = {"type": "stop", "matched": stopped}
        elif found.finish_reason.type == "stop":
            reason["matched"] = found.finish_reason.matched
        else:
            reason["length"] = len(found.ids)
        return await self._computed(body, tuple(ids), found.ids, reason)

    async def _computed(
        self, body: dict[str, Any], prompt: Ids, output: Ids, reason: dict[str, Any]
    ) -> dict[str, Any]:
        """Let a rank do the work, count it, and return the answer. Raises `QueueFullError`."""
        rid = body["rid"]
        flight = self.running.get(rid) or Flight(rid)
        wanted, counted, version = body.get("routed_dp_rank"), self.counted, self.model_info["weight_version"]
        rank = next(self._turns) if wanted is None else self.ranks[wanted]
        done = await rank.compute(flight, prompt, output, body.get("extra_key") or "")
        if not done.started:
            reason = {"type": "abort", "message": "Abort in waiting queue"}
            meta = {"id": rid, "finish_reason": reason, "weight_version": version, "e2e_latency": 0.0}
            return {"text": "", "output_ids": [], "meta_info": meta}
        if done.tokens < len(output):
            reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        counted.prompt_tokens += len(prompt)
        counted.generation_tokens += done.tokens
        counted.cached_tokens += done.cached
        counted.requests += 1
        return said(rid, prompt, output[: done.tokens], reason, done, version)

    @staticmethod
    async def _one(engine: FakeEngine, prompt: Request) -> Answer:
        (found,) = await engine.generate([prompt])
        assert isinstance(found, Answer)
        return found

    async def _engine(self, eos_ids: frozenset[int]) -> FakeEngine:
        """Return what makes up answers; the caches are the ranks' own."""
        if eos_ids not in self._engines:
            engine = FakeEngine(
                declaration.Engine("default", "fake"),
                vocab_size=self.vocab_size,
                context_length=self.context_length,
                eos_ids=eos_ids,
            )
            engine.cache = RadixCache(capacity=0)
            await engine.start()
            self._engines[eos_ids] = engine
        return self._engines[eos_ids]


def said(
    rid: str, prompt: Ids, output: Ids, reason: dict[str, Any], done: Computed, version: str
) -> dict[str, Any]:
    """Return the body of an answer."""
    return {
        "text": text_of(output),
        "output_ids": list(output),
        "meta_info": {
            "id": rid,
            "finish_reason": reason,
            "prompt_tokens": len(prompt),
            "completion_tokens": len(output),
            "cached_tokens": done.cached,
            "cached_tokens_details": {"device": done.cached, "host": 0},
            "weight_version": version,
            "dp_rank": done.rank,
            "e2e_latency": 0.0,
        },
    }


def _stopped(ids: Sequence[int], stops: Sequence[str]) -> tuple[int, str | None]:
    """Return how many ids there are up to the first of the texts, it included, and which one it is."""
    for length in range(1, len(ids) + 1):
        for stop in stops:
            if stop in text_of(ids[:length]):
                return length, stop
    return len(ids), None


def refuse(message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=400)


def error_object(status: int, message: str) -> web.Response:
    """Answer as the real server does when it isn't the request's fault."""
    body = {"object": "error", "message": message, "type": str(status), "param": None, "code": status}
    return web.json_response(body, status=status)


def hang_up(request: web.Request) -> None:
    """Reset the connection, as a process does that dies."""
    assert request.transport is not None
    request.transport.abort()
    raise asyncio.CancelledError
