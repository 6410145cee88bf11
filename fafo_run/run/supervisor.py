"""The supervisor: opens store and engine, has the three roles work over them, and closes what it opened."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from attrs import define, field

from fafo_build.errors import StoppedError, StoreError
from fafo_build.project import declaration
from fafo_run.engines.base import Engine, WarmUp
from fafo_run.engines.launch_run import launched
from fafo_run.engines.open import open_engines
from fafo_run.item import Provenance
from fafo_run.queue.queue import Queue
from fafo_run.queue.selection import Chosen, Selection
from fafo_run.run import cycles, signals
from fafo_run.run.evidence import Evidence
from fafo_run.run.outcome import Listener, Outcome, Started
from fafo_run.run.plan import RunPlan
from fafo_run.run.pool import Pool
from fafo_run.run.progress import Progress
from fafo_run.run.roles import Roles
from fafo_run.run.state import RunState, Snapshot
from fafo_run.run.stop import Stop
from fafo_run.run.store import RunStore
from fafo_run.run.totals import Totals, count, distinct
from fafo_run.run.view import View, crossing_off, items

_FAKE = "fake"


@define
class Supervisor:
    """One run."""

    plan: RunPlan
    folder: Path
    """Of the run: `runs/NAME`."""
    listener: Listener
    service: bool = False
    """Whether it stays when nothing is left, and waits for more."""
    _interrupts: int = field(default=0, init=False)
    _cut: bool = field(default=False, init=False)
    """Whether answers that were under way weren't waited for."""
    _totals: Mapping[str, int] = field(factory=dict, init=False)
    """Items per class, as soon as they are counted."""

    def run(self) -> Outcome:
        """Run until every item of the plan has an outcome, until interrupted by SIGINT or SIGTERM, or until
        `run.stop_when` ends it.

        Raises `StoreError` when the store can't be used or a disk refuses, `EngineError` when the engine
        can't start or is gone for good, `SourceError` when a source can't be read. What was acknowledged
        until then is safe.
        """
        cycles.search_rarely()
        with signals.terminating():
            release = signals.defer()
            store = RunStore.open(self.folder, self._view.project.run)
            progress = Progress(store.directory, service=self.service)
            clean, status = True, "failed"
            try:
                release()
                outcome = self._work(store, progress)
                status = outcome.status
            except (KeyboardInterrupt, asyncio.CancelledError):
                # Before anything was asked for, so nothing was cut short.
                outcome = self._outcome(
                    RunState(self._totals).snapshot(store.queue.depth()), interrupted=True
                )
                status = outcome.status
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
        totals, superseded = self._look_over(store.queue)
        if totals is not None:
            self._totals = totals.by_class
        progress.begin(totals)
        current: Chosen | None = (lambda name: name not in superseded) if superseded else None
        declared = Selection(lambda said: self._view.owner(said) is not None, current)
        if dropped := store.queue.drop(declared):
            newer = "superseded by newer prompts or rows"
            self.listener.notice(f"{dropped} waiting items are {newer}; taken out")
        waiting = store.queue.depth()
        store.queue.select(Selection(self._wanted(), self._limited() or current))
        if others := waiting - store.queue.depth():
            self.listener.notice(f"{others} more wait in the queue, and aren't asked for; they wait on")
        done = None if totals is None else self._all_done(store, totals)
        if done is not None:
            return self._outcome(done.snapshot(0), interrupted=False)
        return asyncio.run(self._with_servers(store, totals, progress))

    def _look_over(self, queue: Queue) -> tuple[Totals | None, set[bytes]]:
        """Read each source once. Return what they hold, and what of this run waits and no row stands for now.

        A service reads its sources as it goes, and asks for all that waits.
        """
        if self.service:
            return None, set()
        # In this order: what another process queues later is of rows that are as new as those read here.
        unseen = queue.identities(Selection(self._wanted()))
        totals = count(self._view, self.folder, crossing_off(self._view, unseen))
        # A copy: a set that is emptied keeps its memory.
        return totals, set(unseen)

    def _all_done(self, store: RunStore, totals: Totals) -> RunState | None:
        """Return what earlier runs finished, if nothing is left to do; None if something is."""
        if store.queue.depth() or store.done(self._view) < sum(totals.by_class.values()):
            return None
        state = RunState(totals.by_class, is_new=store.results.is_new)
        for item in distinct(self._view, totals):
            if item.identity not in store.results:
                return None
            failed = not store.results.has_output(item.identity)
            state.found_done(item, failed)
        return state

    async def _with_servers(self, store: RunStore, totals: Totals | None, progress: Progress) -> Outcome:
        project = self._view.project
        servers = launched(
            self.plan.engine,
            self.plan.model,
            root=project.root,
            runs=project.runs_dir,
            run=self.folder,
            tell=self.listener.notice,
            waits=progress.wait_for,
        )
        with signals.cancelling():
            async with servers as spec:
                pool = Pool(self._engines(spec), self._view, Evidence(self.folder), self.listener.notice)
                try:
                    progress.wait_for("waiting for the engine to get ready")
                    await pool.start()
                    progress.wait_for("")
                    return await self._run(store, pool, totals, progress)
                finally:
                    await pool.stop()

    async def _run(self, store: RunStore, pool: Pool, totals: Totals | None, progress: Progress) -> Outcome:
        capabilities = pool.capabilities[0]
        started = Started(
            capabilities=capabilities,
            servers=tuple(pool.names),
            totals=totals,
            waiting=store.queue.depth(),
            done=store.done(self._view),
            beside_fake=capabilities.engine != _FAKE and _FAKE in store.engines(self._view),
        )
        self.listener.started(started)
        progress.engine = capabilities.engine
        by_class = totals.by_class if totals else dict.fromkeys(self._costs(), 0)
        state = RunState(by_class, self._costs(), store.results.is_new)
        roles = Roles(self._view, store, pool, state, self.folder, totals)
        stop = Stop(self._view.project.run.stop_when)

        def tick() -> None:
            for line in state.said():
                self.listener.notice(line)
            snapshot = state.snapshot(store.queue.depth())
            self.listener.tick(snapshot)
            progress.tick(snapshot, pool.names, pool.away)
            if stop.reached(snapshot):
                roles.stop()

        work = asyncio.create_task(roles.run(tick))
        with signals.calling(self._interrupter(roles, state, work)):
            await asyncio.wait({work})
        error = None
        if not work.cancelled():
            work.result()
            error = stop.error
        if error is not None and totals is not None:
            # Maybe the last outcomes were one failure too many, and there was nothing left to end.
            whole = self._all_done(store, totals)
            if whole is not None:
                error = None
                state.find_as(whole)
        return self._outcome(
            state.snapshot(store.queue.depth()),
            interrupted=bool(self._interrupts),
            cut=self._cut,
            roles=roles,
            warm_ups=pool.warm_ups,
            beside_fake=started.beside_fake,
            error=error,
        )

    def _interrupter(self, roles: Roles, state: RunState, work: asyncio.Task[None]) -> Callable[[int], None]:
        """Return what a signal does: the first one drains, the second stops at once.

        A person may wait as long as it takes; whoever sends SIGTERM mostly kills soon after.
        """

        def interrupt(number: int) -> None:
            self._interrupts += 1
            roles.stop()
            if self._interrupts > 1:
                cut()
                return
            self.listener.notice("finishing what is under way; once more to stop now")
            if number == signal.SIGTERM:
                asyncio.get_running_loop().call_later(self._view.project.run.stop_within, cut)

        def cut() -> None:
            if not work.cancelling():  # Once: the end itself must not be torn.
                self._cut = state.in_flight > 0
                work.cancel()

        return interrupt

    def _outcome(
        self,
        snapshot: Snapshot,
        *,
        interrupted: bool,
        cut: bool = False,
        roles: Roles | None = None,
        warm_ups: tuple[WarmUp, ...] = (),
        beside_fake: bool = False,
        error: StoppedError | None = None,
    ) -> Outcome:
        return Outcome(
            snapshot,
            interrupted,
            cut,
            dropped=roles.completer.dropped if roles else 0,
            warm_ups=warm_ups,
            service=self.service,
            beside_fake=beside_fake,
            error=error,
        )

    @property
    def _view(self) -> View:
        return self.plan.view

    def _engines(self, spec: declaration.Engine) -> list[Engine]:
        facts = self.plan.facts
        return open_engines(
            spec,
            self.plan.model,
            root=self._view.project.root,
            vocab_size=facts.vocab_size,
            context_length=facts.context_length,
            eos_ids=facts.eos_ids,
        )

    def _costs(self) -> dict[str, float]:
        return {of.name: of.sampling.max_new_tokens for of in self._view.classes}

    def _wanted(self) -> Callable[[Provenance], bool]:
        """Return which waiting items belong to this run: the filters hold for what an earlier run
        queued, too.
        """
        chosen = {(of.work, source.name) for of in self._view.classes for source in of.sources}
        return lambda said: (
            ((said.artifact, said.sampling_hash, said.model_fingerprint), said.source) in chosen
        )

    def _limited(self) -> Chosen | None:
        """Return which identities a limited run is after; None when it takes all."""
        if self._view.limit is None:
            return None
        return {item.identity for item in items(self._view)}.__contains__
