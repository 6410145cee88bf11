"""progress.json: how a run goes, for `fafo status` in another process. Derived; may be deleted at any
moment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fafo_run.log.directory import RunDirectory
from fafo_run.run.state import Snapshot
from fafo_run.run.totals import Totals

_EVERY = 1.0
"""Seconds between two writes."""


class Progress:
    """Writes the file, atomically, about once a second."""

    def __init__(self, directory: RunDirectory, *, service: bool = False) -> None:
        self._directory = directory
        self._content: dict[str, Any] = {
            "pid": os.getpid(), "service": service, "total": None, "servers": [], "away": {}
        }  # fmt: skip
        self._written = 0.0
        self._since = ""
        """When it began to wait before it begins, by the clock of people; empty while it doesn't."""
        self.engine: str | None = None
        """Who answers, once that is known: `sglang`, for instance."""

    def begin(self, totals: Totals | None) -> None:
        """The view is counted; not so in a service, which counts while it works."""
        if totals is not None:
            self._content["total"] = sum(totals.by_class.values())
        self._write("running")

    def wait_for(self, what: str) -> None:
        """Write at once what the run waits for before it begins, and since when; empty for nothing."""
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        self._since = (self._since or now) if what else ""
        self._content["notice"] = f"{what}, since {self._since}" if what else ""
        self._write("running")

    def tick(self, snapshot: Snapshot, servers: Sequence[str], away: Mapping[str, str]) -> None:
        """Write how things stand, at most once a second; the end writes what the last tick knew.

        `servers` are URLs; `away` says of those that nothing is sent to, why.
        """
        self._content |= {
            "total": snapshot.total,
            "in_flight": snapshot.in_flight,
            "rate": snapshot.rate,
            "eta": snapshot.eta,
            "notice": snapshot.notice,
        }
        if self.engine is not None:
            self._content |= {"engine": self.engine, "servers": list(servers), "away": dict(away)}
        if time.monotonic() - self._written >= _EVERY:
            self._write("running")

    def end(self, status: str) -> None:
        """Write how the run ended: `finished`, `stopped`, `interrupted` or `failed`."""
        self._write(status)

    def _write(self, status: str) -> None:
        self._written = time.monotonic()
        self._content |= {"status": status, "updated": time.time()}
        self._directory.write_progress(self._content)
