"""The contract of an engine. It knows nothing of tokenization, prompts or logs: token ids in, token ids out.

Every implementation passes `tests/contract/test_engines.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from attrs import frozen

from fafo_build.errors import EngineError
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
    """How many `generate` calls may be under way at the same time on one rank."""
    unable: Mapping[str, str]
    """The keys of `[sampling]` that it can't obey: name to what a person can do about it."""
    settings: dict[str, Value]
    """What else decides the output (dtype, device, server flags); goes into the provenance."""
    server: str = ""
    """Its URL; empty for an engine in this process."""
    ranks: int = 1
    """How many data-parallel ranks it has, each with a prefix cache of its own."""
    running: int = 1
    """How many requests one rank computes at the same time; more wait inside."""
    cache_tokens: int | None = None
    """How many tokens the prefix cache of one rank holds, those of running requests included; None when it
    isn't told."""
    batch_tokens: int | None = None
    """How many tokens one rank computes in one prefill batch, at most; None when it isn't told."""
    boot: str = ""
    """Changes when the engine starts afresh, and has an empty cache; empty when it isn't told."""


@frozen
class Load:
    """What a server has to do at this moment, for all its clients; per rank."""

    running: int
    """Requests that are computed."""
    waiting: int


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
    namespace: str = ""
    """Requests of different namespaces share nothing in the cache of a server. Only `sglang` knows them; they
    are for measuring."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the whole prompt."""
        return len(self.prefix.ids) + len(self.suffix)


@frozen
class Answer:
    """What came back for one request."""

    identity: bytes
    ids: Ids
    """Output ids; what stopped it is part of it: a stop token the last id, a stop text in the last ids."""
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
    computed: bool = True
    """False when the engine wasn't asked, or refused, as it will refuse every request with this prefix."""


@frozen
class Counters:
    """What a server counts over all its clients, since its process started."""

    prompt_tokens: int
    """Of finished requests; those of its health checks aren't among them."""
    cached_tokens: int
    """How many of them came from its prefix cache."""
    requests: int
    """Finished ones, aborted ones included."""
    aborted: int = 0
    """How often an abort was asked for."""
    evicted_tokens: int | None = None
    """Tokens that its prefix cache dropped to make room; None when it doesn't tell, or dropped none yet."""


class Unavailable(Exception):
    """The engine can't answer now, and says nothing about the requests: they may be sent again.

    The message is for people; nothing is decided by its text.
    """

    code: ClassVar[FailureCode] = FailureCode.ATTEMPTS_EXHAUSTED
    """What an item fails as when each of its attempts ended so."""

    def __init__(self, message: str, *, broken: bool = False) -> None:
        """`broken` when the connection broke while the requests were under way, as when a server dies."""
        super().__init__(message)
        self.broken = broken


class Busy(Unavailable):
    """The engine lives, and takes no more requests at this moment."""


class InvalidAnswer(Unavailable):
    """What came can't be the answer: it has another form, contradicts itself or what was asked, or has ids
    outside the vocabulary. That may be the server's fault, so another one may do better.
    """

    code = FailureCode.ANSWER_INVALID


class Engine(ABC):
    """Answers prompts. One event loop uses it; it is started once and stopped once."""

    server: str = ""
    """The URL of the server that it asks; empty for an engine in this process."""

    @abstractmethod
    async def start(self) -> Capabilities:
        """Make ready and return what this engine is.

        Raises `fafo_build.errors.EngineError` when it can't serve: a missing package, no server at the URL,
        a server that doesn't answer in the expected form. Nothing is left running after that.
        """

    async def refuses(self, sampling: Sampling) -> str | None:
        """Return why it would refuse every request with these parameters, or None.

        It is asked once, before the first item, about what `Capabilities` can't say: whether it understands a
        grammar, for instance. Raises `Unavailable`.
        """
        return None

    async def look(self) -> Capabilities:
        """Ask anew what the engine is: after an outage it may be another one. Of a started engine only.

        Raises `fafo_build.errors.EngineError` when it can't be asked, or can't serve.
        """
        raise EngineError.of("this engine can't be asked anew", cure="start the run again")

    async def load(self) -> Sequence[Load]:
        """Return the load of each rank; nothing when the engine doesn't tell. Raises `Unavailable`."""
        return ()

    async def counters(self) -> Counters | None:
        """Return what it counted since it started; None when it doesn't tell. Raises `Unavailable`."""
        return None

    @property
    def sent_again(self) -> int:
        """How many requests it sent once more by itself since its start: a server may have counted both."""
        return 0

    @abstractmethod
    async def warm(self, prefix: Prefix, rank: int = 0) -> WarmUp:
        """Put a prefix into a rank's cache, and return when it is there. Harmless when it is there already.

        Raises `Unavailable`.
        """

    @abstractmethod
    async def generate(self, requests: Sequence[Request], rank: int = 0) -> list[Completion]:
        """Answer 1 to `Capabilities.batch` requests of one prefix; completions come in the same order.

        With `temperature` 0 decoding is greedy and the seed has no effect. Otherwise the output depends on
        the request and its seed, not on which requests share the batch, as far as the engine's arithmetic
        allows. A request that is refused yields `Rejected` and the others are answered all the same. A prompt
        longer than the context, or with an id outside the vocabulary, or with a parameter in
        `Capabilities.unable`, is `Rejected` and never reaches the model.

        Raises `Unavailable` when the answers of this call are lost; then none of them counts. `Busy` is one,
        and so is `InvalidAnswer`: ids outside the vocabulary are never an `Answer`.
        May be cancelled; the engine stays usable.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Give back what `start` took. Safe to call twice, and after a failed start."""
