"""The supervisor: starts the three roles of a run over one store and one engine, and ends them in the
one order that is safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from attrs import define, field, frozen

from fafo_build.errors import ExitCode, StoreError
from fafo_run.engines.base import Capabilities, Engine, WarmUp
from fafo_run.engines.open import open_engine
from fafo_run.item import QueuedItem
from fafo_run.prompt import PromptEncoder
from fafo_run.run import preflight, signals
from fafo_run.run.completer import Completer
from fafo_run.run.dispatcher import Dispatcher
from fafo_run.run.patience import Patience
from fafo_run.run.plan import RunPlan
from fafo_run.run.producer import Producer
from fafo_run.run.progress import Progress
from fafo_run.run.state import RunState, Snapshot
from fafo_run.run.store import RunStore
from fafo_run.run.totals import Totals, count
from fafo_run.run.view import View, items

_TICK = 0.25
"""Seconds between two snapshots."""


@frozen
class Started:
    """What a run found when it began."""

    capabilities: Capabilities
    totals: Totals
    waiting: int
    """Items that an earlier run left in the queue."""
    done: int
    """Outcomes that earlier runs recorded for these classes as they are now."""
    superseded: int
    """Queued items of prompts, parameters or models that have changed since; they were taken out."""


class Listener(Protocol):
    """Is told how a run goes, in the event loop's thread."""

    def started(self, started: Started) -> None:
        """The engine is ready and the work begins."""

    def tick(self, snapshot: Snapshot) -> None:
        """Some time has passed."""

    def notice(self, text: str) -> None:
        """Something happened that a person should know."""


@frozen
class Outcome:
    """How a run ended."""

    snapshot: Snapshot
    interrupted: bool
    dropped: int
    """Completions of items that had an output already."""
    warm_ups: tuple[WarmUp, ...]

    @property
    def exit_code(self) -> ExitCode:
        """0, 3 or 130."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        failed = self.snapshot.failed + self.snapshot.failed_before
        return ExitCode.ITEMS_FAILED if failed else ExitCode.DONE

    def as_json(self) -> dict[str, Any]:
        """Return what `fafo run --json` prints."""
        snapshot = self.snapshot
        return {
            "status": "interrupted" if self.interrupted else "finished",
            "total": snapshot.total,
            "completed": snapshot.completed,
            "failed": snapshot.failed,
            "before": snapshot.before,
            "left": snapshot.left,
            "dropped": self.dropped,
            "warm_ups": len(self.warm_ups),
            "prompt_tokens": snapshot.prompt_tokens,
            "cached_tokens": snapshot.cached_tokens,
            "ceiling_tokens": snapshot.expected_cached_tokens,
            "failed_before": snapshot.failed_before,
            "failures": {code: found.count for code, found in snapshot.failures.items()},
            "output_tokens": snapshot.output_tokens,
            "finish_reasons": dict(snapshot.finish_reasons),
            "empty": snapshot.empty,
            "hit_rate": snapshot.hit_rate,
            "ceiling": snapshot.ceiling,
            "seconds": snapshot.elapsed,
        }


@define
class Supervisor:
    """One run."""

    plan: RunPlan
    folder: Path
    """Of the run: `runs/NAME`."""
    listener: Listener
    _interrupts: int = field(default=0, init=False)
    _totals: Mapping[str, int] = field(factory=dict, init=False)
    """Items per class, as soon as they are counted."""

    def run(self) -> Outcome:
        """Run until every item of the plan has an outcome, or until interrupted by SIGINT or SIGTERM.

        Raises `StoreError` when the store can't be used or a disk refuses, `EngineError` when the engine
        can't start or is gone for good, `SourceError` when a source can't be read. What was acknowledged
        until then is safe.
        """
        with signals.terminating():
            release = signals.defer()
            store = RunStore.open(self.folder, self._view.project.run)
            progress = Progress(store.directory)
            clean, status = True, "failed"
            try:
                release()
                outcome = self._work(store, progress)
                status = "interrupted" if outcome.interrupted else "finished"
            except (KeyboardInterrupt, asyncio.CancelledError):
                status = "interrupted"
                outcome = Outcome(RunState(self._totals).snapshot(store.queue.depth()), True, 0, ())
            except StoreError:
                clean = False
                raise
            finally:
                signals.ignore()
                # An error that is on its way already says more than a progress.json that can't be written.
                with suppress(StoreError):
                    progress.end(status)
                store.close(clean=clean)
            return outcome

    def _work(self, store: RunStore, progress: Progress) -> Outcome:
        for line in store.recovered:
            self.listener.notice(f"recovered: {line}")
        totals = count(self._view, self.folder)
        self._totals = totals.by_class
        progress.begin(totals)
        return self._finished(store, totals) or asyncio.run(self._with_engine(store, totals, progress))

    def _finished(self, store: RunStore, totals: Totals) -> Outcome | None:
        """Return the outcome of a run that has nothing to do, and so needs no engine; None if it has."""
        if store.done(self._view) < sum(totals.by_class.values()):
            return None
        state = RunState(totals.by_class)
        for item in items(self._view):
            if item.identity not in store.results:
                return None
            state.found_done(item.of.name, failed=not store.results.has_output(item.identity))
        return Outcome(state.snapshot(store.queue.depth()), interrupted=False, dropped=0, warm_ups=())

    async def _with_engine(self, store: RunStore, totals: Totals, progress: Progress) -> Outcome:
        engine = self._engine()
        try:
            return await self._run(store, engine, await engine.start(), totals, progress)
        finally:
            await engine.stop()

    async def _run(
        self, store: RunStore, engine: Engine, capabilities: Capabilities, totals: Totals, progress: Progress
    ) -> Outcome:
        preflight.check(self._view, capabilities)
        superseded = store.queue.drop(lambda item: self._view.owner(item.provenance) is None)
        store.queue.select(self._wanted())
        started = Started(
            capabilities=capabilities,
            totals=totals,
            waiting=store.queue.depth(),
            done=store.done(self._view),
            superseded=superseded,
        )
        self.listener.started(started)
        progress.engine = capabilities
        state = RunState(totals.by_class, self._costs())
        completer = Completer(store.queue, store.results, state)
        producer = Producer(
            self._view, self._encoders(), store.queue, store.results, completer, state,
            preflight.context_length(self._view, capabilities),
        )  # fmt: skip
        dispatcher = Dispatcher(
            store.queue, engine, capabilities, self._view, completer, state,
            Patience(engine, self._view.project.run.attempts), producing=producer.is_alive,
        )  # fmt: skip
        task = asyncio.create_task(dispatcher.run())
        with signals.calling(self._interrupter(dispatcher, producer, task)):
            completer.start()
            producer.start()
            try:
                while not task.done():
                    await asyncio.wait({task}, timeout=_TICK)
                    if producer.fault is not None or completer.fault is not None:
                        producer.stop()
                        dispatcher.drain()
                    snapshot = state.snapshot(store.queue.depth())
                    self.listener.tick(snapshot)
                    progress.tick(snapshot)
            finally:
                producer.stop()
                producer.join()
                completer.finish()
        if not task.cancelled():
            task.result()
        if producer.fault is not None:
            raise producer.fault
        snapshot = state.snapshot(store.queue.depth())
        return Outcome(snapshot, bool(self._interrupts), completer.dropped, tuple(dispatcher.warmth.done))

    def _interrupter(
        self, dispatcher: Dispatcher, producer: Producer, task: asyncio.Task[None]
    ) -> Callable[[], None]:
        """Return what a signal does: the first one drains, the second stops at once."""

        def interrupt() -> None:
            self._interrupts += 1
            producer.stop()
            dispatcher.drain()
            if self._interrupts == 1:
                self.listener.notice("finishing what is under way; once more to stop now")
            else:
                task.cancel()

        return interrupt

    @property
    def _view(self) -> View:
        return self.plan.view

    def _engine(self) -> Engine:
        facts = self.plan.facts
        return open_engine(
            self.plan.engine,
            self.plan.model,
            root=self._view.project.root,
            vocab_size=facts.vocab_size,
            context_length=facts.context_length,
            eos_ids=facts.eos_ids,
        )

    def _costs(self) -> dict[str, float]:
        return {of.name: of.sampling.max_new_tokens for of in self._view.classes}

    def _encoders(self) -> dict[str, PromptEncoder]:
        return {of.name: PromptEncoder(of.artifact, of.model.encoder) for of in self._view.classes}

    def _wanted(self) -> Callable[[QueuedItem], bool]:
        """Return which waiting items belong to this run: the filters hold for what an earlier run
        queued, too.
        """
        chosen = {(of.work, source.name) for of in self._view.classes for source in of.sources}
        limited = None if self._view.limit is None else {item.identity for item in items(self._view)}

        def wanted(item: QueuedItem) -> bool:
            of = item.provenance
            work = (of.artifact, of.sampling_hash, of.model_fingerprint)
            return (work, of.source) in chosen and (limited is None or item.identity in limited)

        return wanted
