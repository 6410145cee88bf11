"""The engine that asks one SGLang server, by token ids. It starts none.

The server's cache decides what is cached, and its own count is what is reported.
"""

from __future__ import annotations

import itertools
import os
import re
import time
import uuid
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

import aiohttp

from fafo_build.errors import EngineError, Problem
from fafo_build.project import declaration
from fafo_build.project.declaration import FORMS, Sampling
from fafo_run.engines.base import (
    Capabilities,
    Completion,
    Counters,
    Engine,
    InvalidAnswer,
    Load,
    Prefix,
    Rejected,
    Request,
    Unavailable,
    WarmUp,
)
from fafo_run.engines.limits import Prefixes, in_vocabulary, refusal
from fafo_run.engines.sglang_client import Client, RefusedError, why
from fafo_run.engines.sglang_info import capabilities, loads
from fafo_run.engines.sglang_json import MalformedError
from fafo_run.engines.sglang_metrics import counters
from fafo_run.engines.sglang_router import UNKNOWN, is_router, together, workers
from fafo_run.engines.sglang_wire import (
    AbortedError,
    Encoder,
    completed,
    error_message,
    reply,
)
from fafo_run.item import FailureCode

LOOK = 5.0
"""Seconds for a question whose answer may be missed."""
START = 30.0
"""Seconds for each question at the start. A busy server's /health takes up to 20."""


class SglangEngine(Engine):
    """Sends each request to `/generate` of one server, over connections that are kept."""

    def __init__(
        self,
        spec: declaration.Engine,
        url: str,
        *,
        vocab_size: int,
        context_length: int,
        eos_ids: Collection[int],
    ) -> None:
        """Open nothing yet. `url` has no slash at its end.

        `vocab_size` and `context_length` are the model's; a server answers an id outside its vocabulary by
        dying, so what is sent is checked against them. `eos_ids` end an output, as do the server's own.
        """
        self._spec = spec
        self.server = url
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._encoder = Encoder(eos_ids)
        self._prefixes = Prefixes()
        self._client: Client | None = None
        self._capabilities: Capabilities | None = None
        # An aborted or lost request may still be known to the server when its item comes again, and a name
        # that is in use is refused: so names differ between processes and between requests.
        self._process = uuid.uuid4().hex[:8]
        self._sent = itertools.count()

    async def start(self) -> Capabilities:
        """Ask the server what it is. Raises `EngineError`."""
        client = Client(self.server, silence=self._spec.timeout_silence, key=api_key(self._spec))
        try:
            found = await self._questions(client)
            await self._ask(client, "/health")
        except BaseException:
            await client.close()
            raise
        self._client, self._capabilities = client, found
        return found

    async def look(self) -> Capabilities:
        """Ask the server anew what it is. Raises `EngineError`."""
        client, _ = self._started()
        # Without /health: it may say no under load.
        self._capabilities = await self._questions(client)
        return self._capabilities

    async def load(self) -> Sequence[Load]:
        """Ask for the load of each rank; a server without such a route tells none. Raises `Unavailable`."""
        client, _ = self._started()
        try:
            status, body = await client.get("/v1/loads", timeout=LOOK)
            return loads(body) if status == 200 else ()
        except (aiohttp.ClientError, TimeoutError, MalformedError) as error:
            raise Unavailable(f"{client.url}: /v1/loads: {error}") from error

    async def counters(self) -> Counters | None:
        """Ask what it counted; None from a server without --enable-metrics. Raises `Unavailable`."""
        client, _ = self._started()
        try:
            status, body = await client.get("/metrics", timeout=LOOK)
            return counters(body) if status == 200 else None
        except (aiohttp.ClientError, TimeoutError, MalformedError) as error:
            raise Unavailable(f"{client.url}: /metrics: {error}") from error

    @property
    def sent_again(self) -> int:
        """Those whose kept connection the server had closed, mostly before it read them."""
        return self._client.sent_again if self._client is not None else 0

    async def refuses(self, sampling: Sampling) -> str | None:
        """Have a grammar compiled by asking for one token of it. Raises `Unavailable`."""
        client, _ = self._started()
        if not any(getattr(sampling, form) for form in FORMS):
            return None
        try:
            name = self._name("probe")
            await client.generate(name, lambda rid: self._encoder.probe(rid, 0, sampling), (1, 1))
        except RefusedError as error:
            return str(error)
        return None

    async def warm(self, prefix: Prefix, rank: int = 0) -> WarmUp:
        """Have the prefix computed by a rank. Raises `Unavailable`.

        A prefix that the server can't take is nobody's fault here: the requests with it are refused one by
        one.
        """
        client, limits = self._started()
        count = len(prefix.ids)
        if (
            not prefix.ids
            or count >= limits.context_length
            or not in_vocabulary(prefix.ids, limits.vocab_size)
        ):
            return WarmUp(count, 0, computed=False)
        rid = self._name(f"warm.{prefix.artifact[:16]}")
        try:
            body = await client.generate(
                rid, lambda rid: self._encoder.warm(rid, prefix, self._routed(rank)), (count, 1)
            )
            meta = reply(body, prompt_tokens=count, max_new_tokens=1, vocab_size=limits.vocab_size).meta_info
        except RefusedError:
            return WarmUp(count, 0, computed=False)
        except AbortedError as error:
            raise Unavailable(f"{client.url}: the warm-up was aborted: {error}") from error
        except MalformedError as error:
            raise InvalidAnswer(f"{client.url}: {error}") from error
        self._check_weights(meta.weight_version)
        return WarmUp(count, meta.cached_tokens)

    async def generate(self, requests: Sequence[Request], rank: int = 0) -> list[Completion]:
        """Answer as the contract says. Raises `Unavailable`."""
        return [await self._one(request, rank) for request in requests]

    async def stop(self) -> None:
        """Close the connections; the server goes on."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _one(self, request: Request, rank: int) -> Completion:
        client, limits = self._started()
        no = refusal(request, limits, self._prefixes, client.url)
        if no is not None:
            return no
        rid, routed = self._name(f"{request.identity.hex()}.{request.attempt}"), self._routed(rank)
        prompt, asked = request.prompt_tokens, request.sampling.max_new_tokens
        started, clock = time.time(), time.perf_counter()
        try:
            body = await client.generate(
                rid, lambda rid: self._encoder.generate(rid, request, routed), (prompt, asked)
            )
            seconds = time.perf_counter() - clock
            found = reply(body, prompt_tokens=prompt, max_new_tokens=asked, vocab_size=limits.vocab_size)
        except RefusedError as error:
            return Rejected(request.identity, FailureCode.REJECTED, str(error), client.url)
        except AbortedError as error:
            raise Unavailable(f"{client.url}: the request was aborted: {error}") from error
        except MalformedError as error:
            raise InvalidAnswer(f"{client.url}: {error}") from error
        self._check_weights(found.meta_info.weight_version)
        client.silence.answered(prompt, len(found.output_ids), seconds)
        return completed(found, request, server=client.url, started=started, seconds=seconds)

    def _started(self) -> tuple[Client, Capabilities]:
        if self._client is None or self._capabilities is None:
            raise Unavailable("the engine isn't started")
        return self._client, self._capabilities

    def _check_weights(self, answered: str | None) -> None:
        """Raise `Unavailable` for an answer by other weights than those that the server was asked about: they
        can be changed while it runs.
        """
        client, limits = self._started()
        known = limits.settings.get("weight_version")
        if answered is not None and known is not None and answered != known:
            raise Unavailable(f"{client.url}: its weights changed from {known} to {answered}")

    def _routed(self, rank: int) -> int | None:
        """Return how a request says which rank is meant; a server with one rank isn't told."""
        _, limits = self._started()
        return rank if limits.ranks > 1 else None

    def _name(self, what: str) -> str:
        return f"{what}.{self._process}.{next(self._sent)}"

    # ---- the start, and what can be wrong

    async def _questions(self, client: Client) -> Capabilities:
        server_info = await self._ask(client, "/server_info", "/get_server_info")
        model_info = await self._ask(client, "/model_info", "/get_model_info")
        try:
            behind = None
            if is_router(server_info):
                behind = workers(await self._ask(client, "/workers"))
                server_info = await self._past_the_router(client, behind)
            found = capabilities(
                server_info,
                model_info,
                url=client.url,
                vocab_size=self._vocab_size,
                context_length=self._context_length,
                max_running=self._spec.max_running,
            )
            if behind is not None:
                return together(found, len(behind), self._spec.max_running)
            self._check_room(found)
            return found
        except MalformedError as error:
            raise self._error(
                f"what answers at {client.url} isn't an SGLang server that generates: {error}",
                self._launch(client.url),
            ) from error

    def _check_room(self, found: Capabilities) -> None:
        """Raise `EngineError` when a rank would have none of the requests that may be in flight."""
        most = self._spec.max_running
        if most is not None and most < found.ranks:
            raise self._error(
                f"{found.server} has {found.ranks} data-parallel ranks, and max_running is {most}",
                f"let it be at least {found.ranks}: each rank is warmed, and needs a request to compute",
                "max_running",
            )

    async def _past_the_router(self, client: Client, behind: Sequence[str]) -> bytes:
        """Return what the first of a router's servers that can be reached from here says of itself."""
        if not behind:
            raise self._error(
                f"the router at {client.url} has no servers", "start them, or wait until it has"
            )
        for url in behind:
            try:
                status, body = await client.get("/server_info", timeout=LOOK, base=url)
            except (aiohttp.ClientError, TimeoutError):
                continue  # In a network of their own, perhaps; `fleet.remarks` tells when none can be.
            if status == 200:
                return body
        return UNKNOWN

    async def _ask(self, client: Client, *paths: str) -> bytes:
        """Return the body of the first of these paths that exists. Raises `EngineError`."""
        for path in paths:
            try:
                status, body = await client.get(path, timeout=START)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise self._unreachable(client.url, error) from error
            if status == 200:
                return body
            if status != 404:
                raise self._bad_status(client.url, path, status, body)
        raise self._error(
            f"what answers at {client.url} isn't an SGLang server: it has no {paths[0]}",
            self._launch(client.url),
        )

    def _bad_status(self, url: str, path: str, status: int, body: bytes) -> EngineError:
        if status in (401, 403):
            name = self._spec.api_key_env
            cure = (
                f"check that {name} holds the server's --api-key"
                if name
                else 'add api_key_env = "SGLANG_API_KEY", and export the server\'s --api-key in it'
            )
            return self._error(
                f"the server at {url} wants another API key (HTTP {status})", cure, "api_key_env"
            )
        if status >= 500:
            said = f"HTTP {status} {error_message(body)}".rstrip()
            return self._error(
                f"the server at {url} isn't ready: {path} answers {said}",
                f"wait until {url}/health answers 200, or look into the server's log",
            )
        return self._error(
            f"what answers at {url} isn't an SGLang server: {path} answers HTTP {status}", self._launch(url)
        )

    def _unreachable(self, url: str, error: Exception) -> EngineError:
        match error:
            case TimeoutError():
                return self._error(
                    f"the server at {url} doesn't answer",
                    "check the address and the firewalls between; restart the server if it hangs",
                )
            case aiohttp.ClientConnectorDNSError():
                return self._error(
                    f"the name of the server can't be found: {error.host}", "check the name in urls"
                )
            case aiohttp.ClientSSLError():
                return self._error(
                    f"no secure connection to {url}: {error}",
                    "write http:// if the server has no certificate; else check the certificate",
                )
            case aiohttp.ClientConnectorError():
                return self._error(f"no server at {url}: {why(error)}", self._launch(url))
        return self._error(f"what answers at {url} isn't an SGLang server: {error}", self._launch(url))

    def _launch(self, url: str) -> str:
        port = urlsplit(url).port
        flag = f" --port {port}" if port else ""
        return f'python -m sglang.launch_server --model-path "$(fafo model)"{flag} --enable-metrics'

    def _error(self, message: str, cure: str, key: str = "urls") -> EngineError:
        return _engine_error(self._spec, message, cure, key)


def server_urls(spec: declaration.Engine) -> tuple[str, ...]:
    """Return the base URLs of an engine's servers, without a slash at their ends. Raises `EngineError`."""
    if not spec.urls and spec.launch is not None:
        message = f"no server of the engine {spec.name} is up"
        raise _engine_error(spec, message, "`fafo engine up` starts them", "launch")
    if not spec.urls:
        raise _engine_error(spec, "no server is given", 'add urls = ["http://127.0.0.1:30000"]')
    urls = tuple(url.rstrip("/") for url in spec.urls)
    for at, url in enumerate(urls):
        if "@" in url:
            # The URL goes into results and exports as the name of who answered, and isn't shown here either.
            message = "a server's URL holds a user or a password"
            raise _engine_error(spec, message, "take it out; a key belongs into api_key_env")
        if not _is_url(url):
            raise _engine_error(spec, f'"{url}" isn\'t the URL of a server', "write it as http://HOST:PORT")
        if url in urls[:at]:
            raise _engine_error(spec, f"{url} is given twice", "name each server once")
    return urls


def api_key(spec: declaration.Engine) -> str | None:
    """Return the key that an engine's servers want, None where they want none. Raises `EngineError`."""
    name = spec.api_key_env
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    cure = f"export {name}=... with the server's --api-key"
    if not key:
        raise _engine_error(spec, f"the environment variable {name} holds no API key", cure, "api_key_env")
    if not (key.isascii() and key.isprintable()):
        raise _engine_error(
            spec,
            f"the API key in {name} has characters that no HTTP header can carry",
            cure,
            "api_key_env",
        )
    return key


def _engine_error(spec: declaration.Engine, message: str, cure: str, key: str = "urls") -> EngineError:
    table = "engine" if spec.name == "default" else f"engines.{spec.name}"
    return EngineError(Problem(message, file="fafo.toml", field=f"{table}.{key}", cure=cure))


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").removesuffix(".")
        host.encode("idna")  # as whoever looks the name up does
        # Routes are appended: behind a query or a fragment the server would never see them.
        sound = not re.search(r"[\s?#]", url)
        return sound and parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except ValueError:  # a port that isn't one, a bracket that isn't closed, a name's part that is too long
        return False
