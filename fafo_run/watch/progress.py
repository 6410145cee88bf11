"""What a person sees while a run goes on: a bar per class on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from fafo_run.run.plan import RunPlan
from fafo_run.run.state import Snapshot
from fafo_run.run.supervisor import Started

_LINE_EVERY = 10.0
"""Seconds between two lines where no bar can be drawn."""


def duration(seconds: float) -> str:
    """Return `42s`, `3m05s`, `19h04m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def percent(share: float | None) -> str:
    """Return `96.1 %`, or `-` when there is nothing to tell."""
    return "-" if share is None else f"{100 * share:.1f} %"


def summary(snapshot: Snapshot) -> str:
    """Return a run in one line: `60 done · 0 failed · 1.9/s · 96.1 % of prompt tokens from cache (…)`."""
    parts = [f"{snapshot.completed} done", f"{snapshot.failed} failed"]
    if snapshot.rate:
        parts.append(f"{snapshot.rate:.1f}/s")
    if snapshot.left and snapshot.eta is not None:
        parts.append(f"{snapshot.left} left, about {duration(snapshot.eta)}")
    if snapshot.hit_rate is not None:
        parts.append(
            f"{percent(snapshot.hit_rate)} of prompt tokens from cache (ceiling {percent(snapshot.ceiling)})"
        )
    if snapshot.notice:
        parts.append(snapshot.notice)
    return " · ".join(parts)


class RunView:
    """Shows a run on stderr, as `run.supervisor.Listener`; a context manager.

    On a terminal a bar per class; elsewhere a line every ten seconds, as text or as JSON.
    """

    def __init__(self, plan: RunPlan, *, as_json: bool = False, quiet: bool = False) -> None:
        self._plan = plan
        self._json = as_json
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        self._printed = time.monotonic()
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> RunView:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def started(self, started: Started) -> None:
        """Say what was found, and draw the bars."""
        engine = started.capabilities
        details = ", ".join(str(value) for value in engine.settings.values() if isinstance(value, str))
        project = self._plan.view.project.name
        self._say(f"  {project} · {engine.engine}{f' ({details})' if details else ''} · {engine.model}")
        if started.superseded:
            self._say(f"  {started.superseded} waiting items are superseded by newer prompts; taken out")
        if started.done or started.waiting:
            self._say(f"  resuming: {started.done} done, {started.waiting} waiting in the queue")
        if started.totals.repeated:
            self._say(
                f"  {started.totals.repeated} rows stand more than once in their source; each is taken once"
            )
        if started.totals.broken:
            self._say(f"  {started.totals.broken} rows can't be read; they become failure records")
        if self._console.is_terminal and not self._quiet and not self._json:
            self._draw(started.totals.by_class)

    def notice(self, text: str) -> None:
        """Say something that a person should know."""
        self._say(f"  {text}", event="notice")

    def tick(self, snapshot: Snapshot) -> None:
        """Show how things stand."""
        if self._bars is not None:
            for name, count in snapshot.by_class.items():
                note = (
                    f"{count.failed + count.failed_before} failed"
                    if count.failed + count.failed_before
                    else ""
                )
                done = count.before + count.completed + count.failed
                self._bars.update(self._tasks[name], completed=done, note=note)
            done = snapshot.before + snapshot.completed + snapshot.failed
            self._bars.update(self._tasks[""], completed=done, note=summary(snapshot))
        elif time.monotonic() - self._printed >= _LINE_EVERY:
            self._printed = time.monotonic()
            self._say(f"  {summary(snapshot)}", event="progress", values=snapshot_json(snapshot))

    def _draw(self, totals: Mapping[str, int]) -> None:
        self._bars = Progress(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
        )
        width = max(map(len, [*totals, "all"]))
        for name, total in totals.items():
            self._tasks[name] = self._bars.add_task(name.ljust(width), total=total, note="")
        if len(totals) > 1:
            self._tasks[""] = self._bars.add_task("all".ljust(width), total=sum(totals.values()), note="")
        else:
            self._tasks[""] = self._tasks[next(iter(totals))]
        self._bars.start()

    def _say(self, text: str, *, event: str = "notice", values: Mapping[str, Any] | None = None) -> None:
        if self._quiet:
            return
        if self._json:
            text = json.dumps({"event": event} | dict(values or {"text": text.strip()}))
        self._console.print(text, markup=False, soft_wrap=True)


def snapshot_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as `fafo run --log-json` prints it."""
    return {
        "total": snapshot.total,
        "before": snapshot.before,
        "completed": snapshot.completed,
        "failed": snapshot.failed,
        "left": snapshot.left,
        "queued": snapshot.queued,
        "in_flight": snapshot.in_flight,
        "rate": snapshot.rate,
        "eta": snapshot.eta,
        "hit_rate": snapshot.hit_rate,
        "ceiling": snapshot.ceiling,
        "notice": snapshot.notice,
    }
