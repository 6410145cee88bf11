"""What an SGLang server says of itself, read into `Capabilities`. No network.

`/server_info` is the server's resolved command line and the state of its schedulers; `/model_info` is what
it serves now.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from fafo_build.project.declaration import FORMS
from fafo_run.engines.base import Capabilities, Load
from fafo_run.engines.sglang_json import LARGEST, Count, MalformedError, Name, Some, Text, Whole, read
from fafo_run.item import Value

WAITING = 128
"""With more requests than this waiting, SGLang's prefix-aware schedule turns itself into first come, first
served."""

_RUNNING = 64
"""How many requests a server that doesn't tell is taken to compute at once."""

_LEAST_INPUT = 3
"""One token of a prompt and one of an output: see `_context`."""

_MOST_RANKS = 4096
"""Data-parallel ranks that one server can have: more than there are in any machine."""

_Setting = Whole | Name | float | bool | None


class _Settings(msgspec.Struct):
    """Of `/server_info`: what decides the output, or the order of the work."""

    attention_backend: _Setting = None
    dp_size: _Setting = None
    dtype: _Setting = None
    enable_deterministic_inference: _Setting = None
    grammar_backend: _Setting = None
    kv_cache_dtype: _Setting = None
    quantization: _Setting = None
    sampling_backend: _Setting = None
    schedule_policy: _Setting = None
    speculative_algorithm: _Setting = None
    tp_size: _Setting = None


class _Boot(msgspec.Struct):
    """Of `/server_info`: what differs between two starts of a server. How long the parts of the start took
    (0.5.23), and the random seed, which is drawn anew unless it is given.
    """

    startup_time: Value | msgspec.UnsetType = msgspec.UNSET
    random_seed: Value | msgspec.UnsetType = msgspec.UNSET


class _State(msgspec.Struct):
    effective_max_running_requests_per_dp: Some | None = None


class _Server(msgspec.Struct):
    version: Name
    model_path: Name
    skip_tokenizer_init: bool = False
    grammar_backend: str | None = None
    page_size: Count | None = None
    disable_radix_cache: bool = False
    max_req_input_len: Annotated[int, msgspec.Meta(ge=_LEAST_INPUT, le=LARGEST)] | None = None
    max_running_requests: Some | None = None
    dp_size: Annotated[int, msgspec.Meta(ge=1, le=_MOST_RANKS)] = 1
    max_total_num_tokens: Some | None = None
    chunked_prefill_size: Whole | None = None
    max_prefill_tokens: Whole | None = None
    internal_states: list[_State] = []


class _Model(msgspec.Struct):
    model_path: Name
    is_generation: bool = True
    weight_version: Name | None = None
    preferred_sampling_params: Text | None = None


_server = msgspec.json.Decoder(_Server)
_settings = msgspec.json.Decoder(_Settings)
_boot = msgspec.json.Decoder(_Boot)
_model = msgspec.json.Decoder(_Model)


def capabilities(
    server_info: bytes,
    model_info: bytes,
    *,
    url: str,
    vocab_size: int,
    context_length: int,
    max_running: int | None,
) -> Capabilities:
    """Read the two answers of the server at `url`.

    `vocab_size` and `context_length` are the model's: the server doesn't tell its vocabulary, and may take
    less than the whole context. `max_running` is how many requests the user wants in flight at most, over all
    ranks; None for all that the server takes.

    Raises `MalformedError` when this isn't a server that generates.
    """
    server, model = read(_server, server_info), read(_model, model_info)
    if not model.is_generation:
        raise MalformedError(f"{model.model_path} is a model for embeddings, it generates nothing")
    settings = msgspec.structs.asdict(read(_settings, server_info))
    settings |= {name: getattr(model, name) for name in ("weight_version", "preferred_sampling_params")}
    running = _running(server)
    room = running + WAITING
    return Capabilities(
        engine="sglang",
        version=server.version,
        model=model.model_path,
        vocab_size=vocab_size,
        context_length=_context(server, context_length),
        page_size=server.page_size or 1,
        prefix_cache=not server.disable_radix_cache,
        batch=1,
        concurrency=room if max_running is None else max(1, min(max_running // server.dp_size, room)),
        unable=_unable(server),
        settings={name: value for name, value in settings.items() if value is not None},
        server=url,
        ranks=server.dp_size,
        running=running,
        cache_tokens=server.max_total_num_tokens,
        batch_tokens=_batch(server),
        boot=_told(read(_boot, server_info)),
    )


def _unable(server: _Server) -> dict[str, str]:
    """Return what of `[sampling]` this server can't obey, and how to start one that can.

    A server that says nothing of a grammar backend has its default one, which takes every form.
    """
    if server.skip_tokenizer_init:
        cure = "start the server without --skip-tokenizer-init"
        return {**dict.fromkeys(FORMS, cure), "stop": f"write the ids in stop_token_ids, or {cure}"}
    cure = "start the server with --grammar-backend xgrammar"
    if server.grammar_backend == "none":
        return dict.fromkeys(FORMS, cure)
    return {"ebnf": cure} if server.grammar_backend == "outlines" else {}


def _context(server: _Server, context_length: int) -> int:
    """Return how many tokens prompt and output may have together.

    The server refuses a prompt of `max_req_input_len` tokens, and silently cuts an output that would reach
    beyond a few more (4 in 0.5.23: 91 requested tokens became 90). Staying below the first is safe for both.
    """
    if server.max_req_input_len is None:
        return context_length
    return min(context_length, server.max_req_input_len - 1)


def _running(server: _Server) -> int:
    """Return how many requests one data-parallel rank computes at once."""
    per_rank = [
        state.effective_max_running_requests_per_dp
        for state in server.internal_states
        if state.effective_max_running_requests_per_dp is not None
    ]
    if per_rank:
        return min(per_rank)
    return _RUNNING if server.max_running_requests is None else server.max_running_requests


def _batch(server: _Server) -> int | None:
    """Return how many tokens one prefill batch has at most; chunks of -1 are no chunks."""
    told = (server.chunked_prefill_size, server.max_prefill_tokens)
    return min((most for most in told if most is not None and most > 0), default=None)


def _told(boot: _Boot) -> str:
    found = msgspec.json.encode(boot, order="sorted").decode()
    return found if found != "{}" else ""


class _Load(msgspec.Struct):
    num_running_reqs: Count = 0
    num_waiting_reqs: Count = 0


class _Loads(msgspec.Struct):
    loads: list[_Load]


_loads = msgspec.json.Decoder(_Loads)


def loads(body: bytes) -> tuple[Load, ...]:
    """Read the answer of `/v1/loads`, one per rank. Raises `MalformedError`."""
    return tuple(Load(load.num_running_reqs, load.num_waiting_reqs) for load in read(_loads, body).loads)
