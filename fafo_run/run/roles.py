"""The three roles of a run at work: started, looked after, and ended in the one order that is safe.

In a service a producer or a dispatcher that dies is started anew; what waits in the queue waits for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fafo_build.errors import StoreError
from fafo_run.run import preflight
from fafo_run.run.backoff import Backoff
from fafo_run.run.completer import Completer
from fafo_run.run.dispatcher import Dispatcher
from fafo_run.run.making import Maker
from fafo_run.run.polling import Polling
from fafo_run.run.pool import Pool
from fafo_run.run.producer import Producer
from fafo_run.run.state import RunState
from fafo_run.run.store import RunStore
from fafo_run.run.totals import Totals, distinct
from fafo_run.run.view import View

_TICK = 0.25
"""Seconds between two looks at how the roles do."""
_SOUND = 600.0
"""Seconds without a failure after which a role counts as mended."""


class Roles:
    """Producer, dispatcher and completer over one store and one pool of servers. One event loop uses it."""

    def __init__(
        self,
        view: View,
        store: RunStore,
        pool: Pool,
        state: RunState,
        workdir: Path,
        totals: Totals | None,
    ) -> None:
        """`pool` is started; `workdir` is where a service's surveys may put a file.

        `totals` is what the sources hold; None in a service, which counts while it works.
        """
        self._view = view
        self._store = store
        self._pool = pool
        self._state = state
        self._service = totals is None
        self._stopping = threading.Event()
        self._drained = asyncio.Event()
        self._found = (
            Polling(view, workdir, state, self._stopping.is_set, every=view.project.run.poll)
            if totals is None
            else distinct(view, totals)
        )
        self._context = preflight.context_length(view, pool.capabilities)
        self._backoff = {"producer": Backoff(), "dispatcher": Backoff()}
        self._failed_at: dict[str, float] = {}
        self._restart_at: float | None = None
        """When the producer is started anew, in seconds of the monotonic clock."""
        self.completer = Completer(store.queue, store.results, state)
        self._dispatcher = self._new_dispatcher()
        self._producer = self._new_producer()

    async def run(self, tick: Callable[[], None]) -> None:
        """Work until nothing is left, or until stopped; call `tick` now and then.

        Raises what ended a role that isn't started anew. Cancelled, it drops what is under way.
        """
        dispatching = asyncio.create_task(self._dispatch())
        self.completer.start()
        self._producer.start()
        try:
            while not dispatching.done():
                await asyncio.wait({dispatching}, timeout=_TICK)
                self._look_after()
                tick()
            await dispatching
        finally:
            dispatching.cancel()
            await asyncio.gather(dispatching, return_exceptions=True)
            self.stop()
            # It may be deep in a source; it can't queue any more.
            self._producer.join(self._view.project.run.stop_within)
            self.completer.finish()
        if self._producer.fault is not None and not self._may_restart(self._producer.fault):
            raise self._producer.fault

    def stop(self) -> None:
        """Take nothing more from the sources and the queue; what is under way is finished."""
        self._stopping.set()
        self._drained.set()
        self._dispatcher.drain()

    def _look_after(self) -> None:
        """End the run for what can't be mended; start a dead producer anew where that may help."""
        fault = self._producer.fault
        if self.completer.fault is not None or (fault is not None and not self._may_restart(fault)):
            self.stop()
        elif fault is not None and not self._stopping.is_set():
            if self._restart_at is None:
                self._restart_at = time.monotonic() + self._failed("producer", fault)
            elif time.monotonic() >= self._restart_at:
                self._restart_at = None
                self._state.wait_for("producer", "")
                self._producer = self._new_producer()
                self._producer.start()

    async def _dispatch(self) -> None:
        while True:
            try:
                return await self._dispatcher.run()
            except Exception as error:
                if not self._may_restart(error) or self._stopping.is_set():
                    raise
                wait = self._failed("dispatcher", error)
            try:
                await asyncio.wait_for(self._drained.wait(), wait)
            except TimeoutError:
                self._state.wait_for("dispatcher", "")
            self._pool.forget()
            self._dispatcher = self._new_dispatcher()
            if self._stopping.is_set():
                self._dispatcher.drain()

    def _may_restart(self, fault: BaseException) -> bool:
        """A store that refuses ends everything: what isn't recorded must not be claimed."""
        return self._service and isinstance(fault, Exception) and not isinstance(fault, StoreError)

    def _failed(self, role: str, fault: BaseException) -> float:
        """Say that a role died; return in how many seconds it is started anew."""
        now = time.monotonic()
        if now - self._failed_at.get(role, now) > _SOUND:
            self._backoff[role].worked()
        self._failed_at[role] = now
        wait = self._backoff[role].failed()
        why = f"{type(fault).__name__}: {fault}"
        self._state.say(f"the {role} failed, and is started anew in {wait:.0f} s: {why}")
        self._state.wait_for(role, f"the {role} failed: {why}")
        return wait

    def _new_producer(self) -> Producer:
        return Producer(
            self._view, Maker(self._view, self._context), self._store.queue, self._store.results,
            self._state, self._found, stopping=self._stopping,
        )  # fmt: skip

    def _new_dispatcher(self) -> Dispatcher:
        return Dispatcher(
            self._store.queue, self._pool, self._view, self.completer, self._state,
            producing=self._producing,
        )  # fmt: skip

    def _producing(self) -> bool:
        return self._service or self._producer.is_alive()
