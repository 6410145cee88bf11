"""What goes to an SGLang server and what comes back, as bytes. No network, no decision to send again.

The native route is meant, `POST /generate` with `input_ids`: token ids in, token ids out.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

import msgspec
from attrs import evolve

from fafo_build.project.declaration import Sampling
from fafo_run.engines.base import Answer, Prefix, Request
from fafo_run.engines.limits import same, stranger
from fafo_run.engines.sglang_json import CONTROL, Count, MalformedError, Name, Text, Whole, Word, read
from fafo_run.item import FinishReason, Ids

GREEDY_ONE = Sampling(max_new_tokens=1, temperature=0.0)
"""A warm-up computes the prompt; one token is the least that every version of the server takes."""

_MESSAGE_LENGTH = 500
"""Characters of a server's error text that are kept: it may be a whole HTML page."""

_PARAMETERS = 1024
"""Sets of parameters that are kept as JSON: each class has one."""

_ABORT = "abort"

_WHERE_SET = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "stop": (),
    "json_schema": None,
    "regex": None,
    "ebnf": None,
}
"""Parameters that are sent where they aren't this."""


class OtherPromptError(MalformedError):
    """The server computed another number of prompt tokens than it was sent."""


class AbortedError(Exception):
    """Somebody at the server ended the request, which says nothing about it."""


class _FinishReason(msgspec.Struct):
    type: Word
    matched: Whole | Text | list[Whole] | None = None
    message: str = ""


class _MetaInfo(msgspec.Struct):
    finish_reason: _FinishReason
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count
    weight_version: Name | None = None


class _Reply(msgspec.Struct):
    output_ids: list[Whole]
    meta_info: _MetaInfo


_reply = msgspec.json.Decoder(_Reply)


class _EndedMeta(msgspec.Struct):
    finish_reason: _FinishReason


class _Ended(msgspec.Struct):
    """All that is sure to be said of a request that was aborted while it waited: nothing was counted."""

    meta_info: _EndedMeta


_ended = msgspec.json.Decoder(_Ended)
_anything = msgspec.json.Decoder()


class Encoder:
    """Makes request bodies. What requests share is turned into JSON once: the prefix and the parameters."""

    def __init__(self, eos_ids: Collection[int]) -> None:
        """`eos_ids` end an output, in addition to those that the server takes from its model."""
        self._eos = frozenset(eos_ids)
        self._prefixes: dict[str, tuple[Ids, bytes]] = {}
        """By artifact. A tuple of ids would be hashed anew for each request."""
        self._parameters: dict[int, tuple[Sampling, bytes]] = {}
        """By object, which is kept so that its id can't pass to another."""

    def generate(self, rid: str, request: Request, rank: int | None = None) -> bytes:
        """Return the body for one request; `rid` must not be in use at the server. `rank` is the
        data-parallel rank that is to compute it, None for whichever the server chooses.
        """
        body = self._body(rid, request.prefix, request.suffix, request.sampling, request.seed, rank)
        if not request.namespace:
            return body
        return b'%s,"extra_key":%s}' % (body[:-1], msgspec.json.encode(request.namespace))

    def warm(self, rid: str, prefix: Prefix, rank: int | None = None) -> bytes:
        """Return the body that makes the server compute the prefix, and next to nothing else."""
        return self._body(rid, prefix, (), GREEDY_ONE, 0, rank)

    def probe(self, rid: str, token: int, sampling: Sampling) -> bytes:
        """Return the body that makes the server read the parameters, and next to nothing else."""
        return self._body(rid, Prefix("", ()), (token,), evolve(sampling, max_new_tokens=1), 0)

    def _body(
        self, rid: str, prefix: Prefix, suffix: Ids, sampling: Sampling, seed: int, rank: int | None = None
    ) -> bytes:
        begin, end = self._prefix(prefix), _numbers(suffix)
        return b'{"rid":%s,"input_ids":[%s%s%s],"sampling_params":%s%s,"stream":false%s}' % (
            msgspec.json.encode(rid),
            begin,
            b"," if begin and end else b"",
            end,
            self._shared(sampling),
            b',"sampling_seed":%d}' % seed if sampling.temperature > 0 else b"}",
            b"" if rank is None else b',"routed_dp_rank":%d' % rank,
        )

    def _prefix(self, prefix: Prefix) -> bytes:
        known = self._prefixes.get(prefix.artifact)
        if known is None or not same(known[0], prefix.ids):
            known = self._prefixes[prefix.artifact] = (prefix.ids, _numbers(prefix.ids))
        return known[1]

    def _shared(self, sampling: Sampling) -> bytes:
        """Return the parameters as JSON, but for the seed and the brace at the end."""
        known = self._parameters.get(id(sampling))
        if known is None:
            if len(self._parameters) >= _PARAMETERS:
                self._parameters.clear()
            known = (sampling, msgspec.json.encode(self._sampling(sampling))[:-1])
            self._parameters[id(sampling)] = known
        return known[1]

    def _sampling(self, sampling: Sampling) -> dict[str, object]:
        """Return the parameters under SGLang's names. One that it doesn't know would be refused (400)."""
        params: dict[str, object] = {
            "max_new_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
        }
        if ends := sorted({*self._eos, *sampling.stop_token_ids}):
            params["stop_token_ids"] = ends
        if sampling.temperature > 0:
            params["top_p"] = sampling.top_p
            params["top_k"] = -1 if sampling.top_k is None else sampling.top_k
            params["min_p"] = sampling.min_p
        for name, unset in _WHERE_SET.items():
            value = getattr(sampling, name)
            if value != unset:
                params[name] = value
        return params


def _numbers(ids: Ids) -> bytes:
    return msgspec.json.encode(ids)[1:-1]


def reply(body: bytes, *, prompt_tokens: int, max_new_tokens: int, vocab_size: int) -> _Reply:
    """Read the answer to a prompt of `prompt_tokens` tokens, and check that it agrees with itself, with what
    was asked, and with the vocabulary.

    Raises `MalformedError`, and `AbortedError` where there is nothing to check.
    """
    try:
        found = read(_reply, body)
    except MalformedError as error:
        _check_ended(body)
        raise MalformedError(f"the answer isn't what /generate gives: {error}") from error
    meta = found.meta_info
    if meta.finish_reason.type == _ABORT:
        raise AbortedError(_line(meta.finish_reason.message))
    if len(found.output_ids) != meta.completion_tokens:
        raise MalformedError(f"{len(found.output_ids)} output ids, but {meta.completion_tokens} were counted")
    if len(found.output_ids) > max_new_tokens:
        raise MalformedError(f"{len(found.output_ids)} output ids, at most {max_new_tokens} were asked for")
    if meta.prompt_tokens != prompt_tokens:
        raise OtherPromptError(f"{prompt_tokens} prompt tokens were sent, {meta.prompt_tokens} were computed")
    if not 0 <= meta.cached_tokens <= prompt_tokens:
        raise MalformedError(f"{meta.cached_tokens} of {prompt_tokens} prompt tokens from the cache")
    if (message := stranger(found.output_ids, vocab_size)) is not None:
        raise MalformedError(f"in the answer: {message}")
    return found


def _check_ended(body: bytes) -> None:
    """Raise `AbortedError` when what isn't an answer says that the request was aborted."""
    with suppress(MalformedError):
        reason = read(_ended, body).meta_info.finish_reason
        if reason.type == _ABORT:
            raise AbortedError(_line(reason.message))


def completed(found: _Reply, request: Request, *, server: str, started: float, seconds: float) -> Answer:
    """Turn a checked answer into what the engine's contract promises."""
    ids = tuple(found.output_ids)
    matched = found.meta_info.finish_reason.matched
    reason = FinishReason(
        found.meta_info.finish_reason.type, matched if isinstance(matched, int | str) else None
    )
    return Answer(request.identity, ids, reason, found.meta_info.cached_tokens, server, started, seconds)


def error_message(body: bytes) -> str:
    """Return what a server says in an error's body: `{"error": {"message": …}}`, `{"error": …}`,
    `{"message": …}`, or any other text."""
    try:
        found = read(_anything, body)
    except MalformedError:
        found = body.decode("utf-8", "replace")
    for key in ("error", "message"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return _line(found if isinstance(found, str) else msgspec.json.encode(found).decode())


def _line(text: str) -> str:
    """Return a server's words as one line that isn't too long, and commands no terminal."""
    text = " ".join(CONTROL.sub(" ", text).split())
    return text if len(text) <= _MESSAGE_LENGTH else text[:_MESSAGE_LENGTH] + "…"
