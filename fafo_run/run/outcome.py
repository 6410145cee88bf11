"""What a run tells whoever started it: what it found, how it goes, how it ended."""

from __future__ import annotations

from typing import Any, Protocol

from attrs import frozen

from fafo_build.errors import ExitCode, StoppedError
from fafo_run.engines.base import Capabilities, WarmUp
from fafo_run.run.state import Snapshot
from fafo_run.run.totals import Totals


@frozen
class Started:
    """What a run found when it began."""

    capabilities: Capabilities
    """Of the first server; what decides the outputs is the same at all."""
    servers: tuple[str, ...]
    """URLs; empty for an engine in this process."""
    totals: Totals | None
    """None in a service, which counts while it works."""
    waiting: int
    """Items that wait in the queue already."""
    done: int
    """Outcomes that earlier runs recorded for these classes as they are now."""
    beside_fake: bool
    """Whether some of these outcomes were made by the fake engine, and this run has another."""


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
    """Whether it was told to end before it was done; a service always is."""
    cut: bool
    """Whether answers that were under way weren't waited for."""
    dropped: int
    """Completions of items that had an output already."""
    warm_ups: tuple[WarmUp, ...]
    service: bool = False
    beside_fake: bool = False
    """Whether outcomes of the fake engine count here as done, and this run had another engine."""
    error: StoppedError | None = None
    """Why `run.stop_when` ended it before it was done; None when it didn't."""

    @property
    def status(self) -> str:
        """`finished`, `interrupted`, `failed` with `error`, or `stopped`, of a service that ended well."""
        if self.error is not None:
            return "failed"
        if not self.interrupted:
            return "finished"
        return "stopped" if self.service and not self.cut else "interrupted"

    @property
    def exit_code(self) -> ExitCode:
        """0, 3 or 130; of a service 0 or 130: it has no end of its own at which to count. With `error` 1."""
        if self.error is not None:
            return self.error.exit_code
        if self.status == "interrupted":
            return ExitCode.INTERRUPTED
        failed = self.snapshot.failed + self.snapshot.failed_before
        return ExitCode.ITEMS_FAILED if failed and not self.service else ExitCode.DONE

    def as_json(self) -> dict[str, Any]:
        """Return what `fafo run --json` prints."""
        snapshot = self.snapshot
        return {
            "status": self.status,
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
            "beside_fake": self.beside_fake,
        }
