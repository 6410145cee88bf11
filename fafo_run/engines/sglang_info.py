"""What an SGLang server says of itself, read into `Capabilities`. No network.

`/server_info` is the server's resolved command line and the state of its schedulers; `/model_info` is what
it serves now.
"""

from __future__ import annotations

import msgspec

from fafo_run.engines.base import Capabilities
from fafo_run.engines.sglang_wire import MalformedError
from fafo_run.item import Value

WAITING = 128
"""With more requests than this waiting, SGLang's prefix-aware schedule turns itself into first come, first
served."""

_SETTINGS = (
    "attention_backend",
    "dp_size",
    "dtype",
    "enable_deterministic_inference",
    "kv_cache_dtype",
    "quantization",
    "sampling_backend",
    "schedule_policy",
    "speculative_algorithm",
    "tp_size",
)
"""Of `/server_info`: what decides the output, or the order of the work."""


class _State(msgspec.Struct):
    effective_max_running_requests_per_dp: int | None = None


class _Server(msgspec.Struct):
    version: str
    model_path: str
    page_size: int | None = None
    disable_radix_cache: bool = False
    max_req_input_len: int | None = None
    max_running_requests: int | None = None
    dp_size: int = 1
    internal_states: list[_State] = []


class _Model(msgspec.Struct):
    model_path: str
    is_generation: bool = True
    weight_version: str | None = None
    preferred_sampling_params: str | None = None


def capabilities(
    server_info: bytes, model_info: bytes, *, url: str, vocab_size: int, context_length: int, max_running: int
) -> Capabilities:
    """Read the two answers of the server at `url`.

    `vocab_size` and `context_length` are the model's: the server doesn't tell its vocabulary, and may take
    less than the whole context. `max_running` is how many requests the user wants in flight.

    Raises `MalformedError` when this isn't a server that generates.
    """
    try:
        server = msgspec.json.decode(server_info, type=_Server)
        model = msgspec.json.decode(model_info, type=_Model)
        everything = msgspec.json.decode(server_info, type=dict[str, Value])
    except msgspec.MsgspecError as error:
        raise MalformedError(str(error)) from error
    if not model.is_generation:
        raise MalformedError(f"{model.model_path} is a model for embeddings, it generates nothing")
    settings = {name: everything[name] for name in _SETTINGS if everything.get(name) is not None}
    for name in ("weight_version", "preferred_sampling_params"):
        if getattr(model, name) is not None:
            settings[name] = getattr(model, name)
    running = _running(server)
    return Capabilities(
        engine="sglang",
        version=server.version,
        model=model.model_path,
        vocab_size=vocab_size,
        context_length=_context(server, context_length),
        page_size=server.page_size or 1,
        prefix_cache=not server.disable_radix_cache,
        batch=1,
        concurrency=max_running if running is None else min(max_running, running + WAITING),
        settings=settings,
        servers=(url,),
    )


def _context(server: _Server, context_length: int) -> int:
    """Return how many tokens prompt and output may have together.

    The server refuses a prompt of `max_req_input_len` tokens, and silently cuts an output that would reach
    beyond a few more (4 in 0.5.23: 91 requested tokens became 90). Staying below the first is safe for both.
    """
    if server.max_req_input_len is None:
        return context_length
    return min(context_length, server.max_req_input_len - 1)


def _running(server: _Server) -> int | None:
    """Return how many requests the server computes at once, over all its data-parallel ranks."""
    per_rank = [
        state.effective_max_running_requests_per_dp
        for state in server.internal_states
        if state.effective_max_running_requests_per_dp is not None
    ]
    return min(per_rank) * server.dp_size if per_rank else server.max_running_requests
