"""The embedded engine: a model of transformers in this process, on the CPU or one GPU.

It owns the promises of an engine (limits, threads, cancelling, honest counts). How the model is run is
`transformers_decode`'s business, where its weights come from that of `weights`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fafo_build.errors import EngineError, Problem
from fafo_build.project import declaration
from fafo_build.tokens.model_files import context_length, folder_eos_ids, read_json, vocab_size
from fafo_run.engines.base import (
    Answer,
    Capabilities,
    Completion,
    Engine,
    Prefix,
    Rejected,
    Request,
    Unavailable,
    WarmUp,
)
from fafo_run.engines.limits import BATCH, NO_TEXT, Prefixes, in_vocabulary, refusal
from fafo_run.engines.weights import model_folder
from fafo_run.item import FailureCode

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from fafo_run.engines.transformers_decode import Decoder, Generated

KEEP_BYTES = 2 * 1024**3
"""Memory for kept prefixes; those unused for longest go first."""

T = TypeVar("T")


class TransformersEngine(Engine):
    """Answers in one worker thread, one batch after the other; the event loop stays free."""

    def __init__(
        self,
        spec: declaration.Engine,
        model: declaration.Model,
        root: Path,
        *,
        vocab_size: int | None = None,
        context_length: int | None = None,
        eos_ids: Collection[int] | None = None,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        """`root` is the project's folder, from which relative model paths start.

        `vocab_size` and `context_length` (tokens) can only narrow what the model's own files say, `eos_ids`
        replaces it.
        """
        self._model, self._root, self._keep_bytes = model, root, keep_bytes
        self._batch = spec.max_running or BATCH
        self._vocab_size, self._context_length, self._eos_ids = vocab_size, context_length, eos_ids
        self._worker: ThreadPoolExecutor | None = None
        self._decoder: Decoder | None = None
        self._limits: Capabilities | None = None
        self._prefixes = Prefixes()
        self._calls: set[threading.Event] = set()

    async def start(self) -> Capabilities:
        """Load the model, converting its weights first if need be; this can take minutes.

        Raises `EngineError` when torch isn't installed or the model can't be loaded, `ModelError` when its
        files can't be found.
        """
        if self._limits is not None:
            return self._limits
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="transformers")
        try:
            self._limits = await asyncio.get_running_loop().run_in_executor(self._worker, self._load)
        except BaseException:
            await self.stop()
            raise
        return self._limits

    async def look(self) -> Capabilities:
        """Return what it is, as at the start. Raises `Unavailable` after `stop`."""
        return self._running()[1]

    async def warm(self, prefix: Prefix, rank: int = 0) -> WarmUp:
        """Compute the prefix and keep it. Raises `Unavailable` when memory is short, or after `stop`."""
        decoder, limits = self._running()
        count = len(prefix.ids)
        # Requests with such a prefix are refused one by one; the model must not see it.
        if not in_vocabulary(prefix.ids, limits.vocab_size) or count >= limits.context_length:
            return WarmUp(count, 0, computed=False)
        known = await self._call(lambda _: decoder.warm(prefix.ids))
        return WarmUp(count, max(count - 1, 0) if known else 0)

    async def generate(self, requests: Sequence[Request], rank: int = 0) -> list[Completion]:
        """Answer as the contract says. Raises `Unavailable` when memory is short, or after `stop`."""
        decoder, limits = self._running()
        prefix = requests[0].prefix.ids
        if any(request.prefix.ids != prefix for request in requests):
            raise ValueError("the requests of one call must share their prefix")
        refused = [refusal(request, limits, self._prefixes) for request in requests]
        good = [request for request, no in zip(requests, refused, strict=True) if no is None]
        started, clock = time.time(), time.perf_counter()
        outcomes = iter(await self._call(lambda event: _generate(decoder, good, event)) if good else ())
        seconds = time.perf_counter() - clock
        return [
            no or _completion(request, next(outcomes), started, seconds)
            for request, no in zip(requests, refused, strict=True)
        ]

    async def stop(self) -> None:
        """End what is under way, and give back the memory."""
        for event in self._calls:
            event.set()
        worker, self._worker = self._worker, None
        self._limits = None
        if worker is not None:
            await asyncio.to_thread(worker.shutdown)
        if self._decoder is not None:
            self._decoder = None
            _give_back_memory()

    def _running(self) -> tuple[Decoder, Capabilities]:
        if self._decoder is None or self._limits is None:
            raise Unavailable("the transformers engine isn't running")
        return self._decoder, self._limits

    async def _call(self, work: Callable[[threading.Event], T]) -> T:
        """Run `work` in the worker thread; it is told through its event when nobody waits any more."""
        import torch

        from fafo_run.engines.transformers_decode import CancelledError

        event = threading.Event()
        self._calls.add(event)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, work, event)
        except CancelledError as error:
            raise Unavailable("the transformers engine was stopped") from error
        except (torch.OutOfMemoryError, MemoryError) as error:
            _give_back_memory()
            raise Unavailable(
                f"out of memory with {self._batch} items at once; lower engine.max_running"
            ) from error
        finally:
            event.set()
            self._calls.discard(event)

    def _load(self) -> Capabilities:
        """Load the model, in the worker thread: torch keeps its number of threads per thread."""
        # Read once, as torch is loaded. Threads that spin while they wait for each other take four times the
        # CPU time as soon as anything else wants a core.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        try:
            import torch
        except ImportError as error:
            raise EngineError(
                Problem(
                    f"the transformers engine needs torch, which can't be imported: {error}",
                    field="engine.kind",
                    cure="pip install 'fafo[local]'",
                )
            ) from error
        import transformers

        from fafo_run.engines.transformers_decode import Decoder

        threads = _threads()
        torch.set_num_threads(threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        folder = model_folder(self._model, self._root)
        shown = self._model.path
        config = read_json(folder / "config.json", shown)
        model: PreTrainedModel = self._load_model(folder)
        model.to(torch.device(device))  # type: ignore[arg-type]
        ends = folder_eos_ids(folder, shown) if self._eos_ids is None else self._eos_ids
        self._decoder = Decoder(model, ends, self._keep_bytes)
        settings: dict[str, object] = {
            "dtype": self._model.dtype,
            "device": device,
            "torch": str(torch.__version__),
        }
        if device == "cpu":
            settings["threads"] = threads
        return Capabilities(
            engine="transformers",
            version=transformers.__version__,
            model=shown if self._model.revision is None else f"{shown}@{self._model.revision}",
            vocab_size=_narrowed(vocab_size(config, shown), self._vocab_size),
            context_length=_narrowed(context_length(config, shown), self._context_length),
            page_size=1,
            prefix_cache=True,
            batch=self._batch,
            concurrency=1,
            unable=NO_TEXT,
            settings=settings,
        )

    def _load_model(self, folder: Path) -> PreTrainedModel:
        import torch
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, DynamicCache
        from transformers.cache_utils import DynamicLayer
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=getattr(torch, self._model.dtype),
                attn_implementation="sdpa",
                local_files_only=True,
                trust_remote_code=self._model.trust_remote_code,
            )
            model.eval()  # type: ignore[no-untyped-call]
        except (OSError, ValueError, ImportError, RuntimeError, KeyError, SafetensorError) as error:
            raise EngineError(
                Problem(
                    f"transformers can't load {self._model.path}: {error}",
                    field="model.path",
                    cure="check the model's folder, or serve it with SGLang",
                )
            ) from error
        if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=model.config).layers):
            raise EngineError(
                Problem(
                    f"{self._model.path} hasn't full attention in every layer (a sliding window, a state)",
                    field="engine.kind",
                    cure='serve it with SGLang: engine.kind = "sglang"',
                )
            )
        return model


def _generate(decoder: Decoder, requests: Sequence[Request], event: threading.Event) -> list[Generated]:
    from fafo_run.engines.transformers_decode import Prompt

    prompts = [Prompt(request.suffix, request.sampling, request.seed) for request in requests]
    return decoder.generate(requests[0].prefix.ids, prompts, event)


def _completion(request: Request, said: Generated, started: float, seconds: float) -> Completion:
    if said.finish_reason is None:
        message = 'the model\'s numbers overflowed; set model.dtype to "bfloat16" or "float32"'
        return Rejected(request.identity, FailureCode.REJECTED, message)
    return Answer(
        identity=request.identity,
        ids=said.ids,
        finish_reason=said.finish_reason,
        cached_tokens=said.cached_tokens,
        server="",
        started=started,
        seconds=seconds,
    )


def _narrowed(own: int, wanted: int | None) -> int:
    return own if wanted is None else min(own, wanted)


def _threads() -> int:
    """Return how many threads compute: as the user set OMP_NUM_THREADS, else one per core of this process."""
    declared = os.environ.get("OMP_NUM_THREADS", "")
    return int(declared) if declared.isdecimal() and int(declared) > 0 else len(os.sched_getaffinity(0))


def _give_back_memory() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
