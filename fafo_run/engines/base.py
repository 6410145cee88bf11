"""The contract of an engine. It knows nothing of tokenization, prompts or logs: token ids in, token ids out.

Every implementation passes `tests/contract/test_engines.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from attrs import frozen

from fafo_build.project.declaration import Sampling
from fafo_run.item import FailureCode, FinishReason, Ids, Value


@frozen
class Capabilities:
    """What an engine is and can do; known before the first item is sent."""

    engine: str
    """`transformers`, `sglang` or `fake`."""
    version: str
    """Of the library or the server that computes."""
    model: str
    """What the engine says it serves."""
    vocab_size: int
    """Ids are valid from 0 to this, exclusive."""
    context_length: int
    """Prompt and output together, in tokens."""
    page_size: int
    """Cached prefixes are whole pages of this many tokens."""
    prefix_cache: bool
    """False when the engine would compute every prompt whole."""
    batch: int
    """The most requests that `generate` takes at once."""
    concurrency: int
    """How many `generate` calls may be under way at the same time."""
    settings: dict[str, Value]
    """What else decides the output (dtype, device, server flags); goes into the provenance."""
    servers: tuple[str, ...] = ()
    """URLs; empty for an engine in this process."""


@frozen
class Prefix:
    """The ids that every item of an artifact shares."""

    artifact: str
    """Hash of the artifact, 64 hex digits; engines may use it as the name of a cache entry."""
    ids: Ids


@frozen
class Request:
    """One prompt to answer."""

    identity: bytes
    attempt: int
    prefix: Prefix
    suffix: Ids
    sampling: Sampling
    seed: int

    @property
    def prompt_tokens(self) -> int:
        """Length of the whole prompt."""
        return len(self.prefix.ids) + len(self.suffix)


@frozen
class Answer:
    """What came back for one request."""

    identity: bytes
    ids: Ids
    """Output ids; a matched stop token is the last of them."""
    finish_reason: FinishReason
    cached_tokens: int
    """Prompt tokens that came from the prefix cache; counted by the engine, never computed from the plan."""
    server: str
    """Which server answered; empty for an engine in this process."""
    started: float
    """Seconds since the epoch."""
    seconds: float


@frozen
class Rejected:
    """The engine refused this request, and would refuse it again: sending it once more is no use."""

    identity: bytes
    code: FailureCode
    message: str
    server: str = ""


Completion = Answer | Rejected


@frozen
class WarmUp:
    """What a warm-up found."""

    prompt_tokens: int
    cached_tokens: int
    """0 on a cold cache."""


class Unavailable(Exception):
    """The engine can't answer now, and says nothing about the requests: they may be sent again.

    The message is for people; nothing is decided by its text.
    """


class Engine(ABC):
    """Answers prompts. One event loop uses it; it is started once and stopped once."""

    @abstractmethod
    async def start(self) -> Capabilities:
        """Make ready and return what this engine is.

        Raises `fafo_build.errors.EngineError` when it can't serve: a missing package, no server at the URL,
        a server that doesn't answer in the expected form. Nothing is left running after that.
        """

    @abstractmethod
    async def warm(self, prefix: Prefix) -> WarmUp:
        """Put a prefix into the cache, and return when it is there. Harmless when it is there already.

        Raises `Unavailable`.
        """

    @abstractmethod
    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer 1 to `Capabilities.batch` requests of one prefix; completions come in the same order.

        With `temperature` 0 decoding is greedy and the seed has no effect. Otherwise the output depends on
        the request and its seed, not on which requests share the batch, as far as the engine's arithmetic
        allows. A request that is refused yields `Rejected` and the others are answered all the same. A prompt
        longer than the context, or with an id outside the vocabulary, is `Rejected` and never reaches the
        model.

        Raises `Unavailable` when the answers of this call are lost; then none of them counts.
        May be cancelled; the engine stays usable.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Give back what `start` took. Safe to call twice, and after a failed start."""
