"""progress.json: how a run goes, for `fafo status` in another process. Derived; may be deleted at any
moment.
"""

from __future__ import annotations

import os
import time
from typing import Any

from fafo_run.engines.base import Capabilities
from fafo_run.log.directory import RunDirectory
from fafo_run.run.state import Snapshot
from fafo_run.run.totals import Totals

_EVERY = 1.0
"""Seconds between two writes."""


class Progress:
    """Writes the file, atomically, about once a second."""

    def __init__(self, directory: RunDirectory, capabilities: Capabilities, totals: Totals) -> None:
        self._directory = directory
        self._capabilities = capabilities
        self._totals = totals
        self._written = 0.0

    def write(self, snapshot: Snapshot, status: str) -> None:
        """Write how things stand; `running` at most once a second, every other status at once."""
        now = time.monotonic()
        if status == "running" and now - self._written < _EVERY:
            return
        self._written = now
        self._directory.write_progress(self._content(snapshot, status))

    def _content(self, snapshot: Snapshot, status: str) -> dict[str, Any]:
        return {
            "status": status,
            "pid": os.getpid(),
            "updated": time.time(),
            "total": snapshot.total,
            "by_class": dict(self._totals.by_class),
            "by_source": dict(self._totals.by_source),
            "in_flight": snapshot.in_flight,
            "rate": snapshot.rate,
            "eta": snapshot.eta,
            "notice": snapshot.notice,
            "engine": self._capabilities.engine,
            "servers": list(self._capabilities.servers),
        }
