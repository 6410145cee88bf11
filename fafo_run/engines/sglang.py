"""The engine that asks an SGLang server, by token ids. One server in this version; it starts none.

The server's cache decides what is cached, and its own count is what is reported.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

import aiohttp

from fafo_build.errors import EngineError, Problem
from fafo_build.project import declaration
from fafo_run.engines.base import (
    Capabilities,
    Completion,
    Engine,
    Prefix,
    Rejected,
    Request,
    Unavailable,
    WarmUp,
)
from fafo_run.engines.limits import in_vocabulary, refusal
from fafo_run.engines.sglang_client import Client, RefusedError, why
from fafo_run.engines.sglang_info import capabilities
from fafo_run.engines.sglang_wire import Encoder, MalformedError, completion, error_message, reply
from fafo_run.item import FailureCode

START = 30.0
"""Seconds for each question at the start. A busy server's /health takes up to 20."""


class SglangEngine(Engine):
    """Sends each request to `/generate` of one server, over connections that are kept."""

    def __init__(
        self,
        spec: declaration.Engine,
        *,
        vocab_size: int,
        context_length: int,
        eos_ids: Collection[int],
    ) -> None:
        """Open nothing yet.

        `vocab_size` and `context_length` are the model's; a server answers an id outside its vocabulary by
        dying, so what is sent is checked against them. `eos_ids` end an output, as do the server's own.
        """
        self._spec = spec
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._encoder = Encoder(eos_ids)
        self._client: Client | None = None
        self._capabilities: Capabilities | None = None
        # An aborted or lost request may still be known to the server when its item comes again, and a name
        # that is in use is refused: so names differ between processes and between requests.
        self._process = uuid.uuid4().hex[:8]
        self._sent = itertools.count()

    async def start(self) -> Capabilities:
        """Ask the server what it is. Raises `EngineError`."""
        url = self._url()
        client = Client(
            url, limit=self._spec.max_running, silence=self._spec.timeout_silence, key=self._key()
        )
        try:
            found = await self._questions(client)
        except BaseException:
            await client.close()
            raise
        self._client, self._capabilities = client, found
        return found

    async def warm(self, prefix: Prefix) -> WarmUp:
        """Have the prefix computed. Raises `Unavailable`.

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
            return WarmUp(count, 0)
        rid = self._name(f"warm.{prefix.artifact[:16]}")
        try:
            body = await client.generate(rid, lambda rid: self._encoder.warm(rid, prefix))
            meta = reply(body, prompt_tokens=count, max_new_tokens=1).meta_info
        except RefusedError:
            return WarmUp(count, 0)
        except MalformedError as error:
            raise Unavailable(f"{client.url}: {error}") from error
        if meta.finish_reason.type == "abort":
            raise Unavailable(f"{client.url}: the warm-up was aborted: {meta.finish_reason.message}")
        return WarmUp(count, meta.cached_tokens)

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer as the contract says. Raises `Unavailable`."""
        return [await self._one(request) for request in requests]

    async def stop(self) -> None:
        """Close the connections; the server goes on."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _one(self, request: Request) -> Completion:
        client, limits = self._started()
        no = refusal(
            request,
            vocab_size=limits.vocab_size,
            context_length=limits.context_length,
            server=client.url,
        )
        if no is not None:
            return no
        rid = self._name(f"{request.identity.hex()}.{request.attempt}")
        started, clock = time.time(), time.perf_counter()
        try:
            body = await client.generate(rid, lambda rid: self._encoder.generate(rid, request))
            asked = request.sampling.max_new_tokens
            found = reply(body, prompt_tokens=request.prompt_tokens, max_new_tokens=asked)
        except RefusedError as error:
            return Rejected(request.identity, FailureCode.REJECTED, str(error), client.url)
        except MalformedError as error:
            raise Unavailable(f"{client.url}: {error}") from error
        reason = found.meta_info.finish_reason
        if reason.type == "abort":
            # Somebody at the server ended it; it says nothing about the request.
            raise Unavailable(f"{client.url}: the request was aborted: {reason.message}")
        return completion(
            found,
            request,
            vocab_size=limits.vocab_size,
            server=client.url,
            started=started,
            seconds=time.perf_counter() - clock,
        )

    def _started(self) -> tuple[Client, Capabilities]:
        if self._client is None or self._capabilities is None:
            raise Unavailable("the engine isn't started")
        return self._client, self._capabilities

    def _name(self, what: str) -> str:
        return f"{what}.{self._process}.{next(self._sent)}"

    # ---- the start, and what can be wrong

    async def _questions(self, client: Client) -> Capabilities:
        server_info = await self._ask(client, "/server_info", "/get_server_info")
        model_info = await self._ask(client, "/model_info", "/get_model_info")
        await self._ask(client, "/health")
        try:
            return capabilities(
                server_info,
                model_info,
                url=client.url,
                vocab_size=self._vocab_size,
                context_length=self._context_length,
                max_running=self._spec.max_running,
            )
        except MalformedError as error:
            raise self._error(
                f"what answers at {client.url} isn't an SGLang server that generates: {error}",
                self._launch(client.url),
            ) from error

    def _url(self) -> str:
        """Return the one base URL, without a slash at its end."""
        if not self._spec.urls:
            raise self._error("no server is given", 'add urls = ["http://127.0.0.1:30000"]')
        if len(self._spec.urls) > 1:
            raise self._error(
                f"{len(self._spec.urls)} servers are given, and this version asks one",
                "keep one URL; a router in front of many servers is one URL",
            )
        url = self._spec.urls[0].rstrip("/")
        if not _is_url(url):
            raise self._error(f'"{url}" isn\'t the URL of a server', "write it as http://HOST:PORT")
        return url

    def _key(self) -> str | None:
        name = self._spec.api_key_env
        if name is None:
            return None
        key = os.environ.get(name, "").strip()
        if not key:
            raise self._error(
                f"the environment variable {name} holds no API key",
                f"export {name}=... with the server's --api-key",
                "api_key_env",
            )
        if not (key.isascii() and key.isprintable()):
            raise self._error(
                f"the API key in {name} has characters that no HTTP header can carry",
                f"export {name}=... with the server's --api-key",
                "api_key_env",
            )
        return key

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
        return f"python -m sglang.launch_server --model-path MODEL{f' --port {port}' if port else ''}"

    def _error(self, message: str, cure: str, key: str = "urls") -> EngineError:
        table = "engine" if self._spec.name == "default" else f"engines.{self._spec.name}"
        return EngineError(Problem(message, file="fafo.toml", field=f"{table}.{key}", cure=cure))


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that isn't one, a bracket that isn't closed
        return False
