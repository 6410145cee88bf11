"""What a person sees while a run goes on: a bar per class on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from fafo_build.visible import visible
from fafo_run.run.outcome import Outcome, Started
from fafo_run.run.plan import RunPlan
from fafo_run.run.state import Snapshot
from fafo_run.watch.words import counted

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


def cache_share(snapshot: Snapshot) -> str:
    """Return `96.1 % of prompt tokens from cache (ceiling 96.1 %)`."""
    return f"{percent(snapshot.hit_rate)} of prompt tokens from cache (ceiling {percent(snapshot.ceiling)})"


def summary(snapshot: Snapshot) -> str:
    """Return a run in one line, the most important first: a narrow terminal shows its beginning."""
    done = snapshot.before + snapshot.completed + snapshot.failed
    parts = [f"{done}/{snapshot.total}"]
    parts += [f"{snapshot.failed} failed"] if snapshot.failed else []
    parts += [snapshot.notice] if snapshot.notice else []
    parts += [f"{snapshot.rate:.1f}/s"] if snapshot.rate else []
    if snapshot.left and snapshot.eta is not None:
        parts.append(f"about {duration(snapshot.eta)} left")
    parts += [cache_share(snapshot)] if snapshot.hit_rate is not None else []
    return " · ".join(parts)


class RunView:
    """Shows a run on stderr, as `run.supervisor.Listener`; a context manager.

    On a terminal a bar per class and a line below them; elsewhere a line every ten seconds in which something
    changed, as text or, if asked for, as JSON.
    """

    def __init__(self, plan: RunPlan, *, as_json: bool = False, quiet: bool = False) -> None:
        self._plan = plan
        self._json = as_json
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        self._printed = time.monotonic()
        self._shown: Mapping[str, Any] = {}
        """The numbers of the last line, where lines are printed."""
        self._bars = Progress(
            TextColumn("  {task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=24),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[note]}"),
            console=self._console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._live: Live | None = None

    def __enter__(self) -> RunView:
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def started(self, started: Started) -> None:
        """Say what was found, and draw the bars."""
        engine = started.capabilities
        if started.servers:
            details = counted(len(started.servers), "server")
        else:
            details = ", ".join(str(value) for value in engine.settings.values() if isinstance(value, str))
        project = self._plan.view.project.name
        self.notice(f"{project} · {engine.engine}{f' ({details})' if details else ''} · {engine.model}")
        if started.beside_fake:
            self.notice(
                "WARNING: outcomes of the fake engine stand in this run and count as done, though its "
                "answers mean nothing. Give it a run of its own (--run NAME), and take another name here, too"
            )
        if started.done or started.waiting:
            self.notice(
                f"resuming: {started.done} done or failed before, {started.waiting} waiting in the queue"
            )
        totals = started.totals
        if totals is None:
            self.notice("a service: it stays until it is stopped, with Ctrl-C or SIGTERM")
        elif totals.repeated:
            self.notice(f"{counted(totals.repeated, 'row')} more than once in a source; each is taken once")
        if totals is not None and totals.broken:
            self.notice(
                f"{counted(totals.broken, 'row')} can't be read; such a row fails when the run comes to it"
            )
        for line in totals.unmatched if totals is not None else ():
            self.notice(line)
        if self._console.is_terminal and not self._quiet and not self._json:
            self._draw({of.name: 0 for of in self._plan.view.classes} if totals is None else totals.by_class)

    def notice(self, text: str) -> None:
        """Say something that a person should know."""
        self._say(f"  {text}", {"event": "notice", "text": text})

    def tick(self, snapshot: Snapshot) -> None:
        """Show how things stand."""
        if self._live is not None:
            for name, count in snapshot.by_class.items():
                failed = count.failed + count.failed_before
                self._bars.update(
                    self._tasks[name],
                    total=count.total,
                    completed=count.before + count.completed + count.failed,
                    note=f"{failed} failed" if failed else "",
                )
            line = Text(visible(f"  {summary(snapshot)}"), no_wrap=True, overflow="ellipsis")
            self._live.update(Group(self._bars, line))
        elif time.monotonic() - self._printed >= _LINE_EVERY:
            told = snapshot_json(snapshot)
            # How fast it was fades while nothing happens.
            numbers = {name: value for name, value in told.items() if name not in ("rate", "eta")}
            if numbers != self._shown:
                self._printed, self._shown = time.monotonic(), numbers
                self._say(f"  {summary(snapshot)}", {"event": "progress"} | told)

    def ended(self, outcome: Outcome) -> None:
        """Show the end; as text the command itself says it."""
        if self._live is not None:
            self.tick(outcome.snapshot)
        if self._json:
            self._say("", {"event": "ended"} | outcome.as_json())

    def _draw(self, totals: Mapping[str, int]) -> None:
        width = max(map(len, totals))
        for name, total in totals.items():
            self._tasks[name] = self._bars.add_task(name.ljust(width), total=total, note="")
        self._live = Live(self._bars, console=self._console, refresh_per_second=4)
        self._live.start()

    def _say(self, text: str, event: Mapping[str, Any]) -> None:
        if not self._quiet:
            shown = json.dumps(event) if self._json else visible(text)
            self._console.print(shown, markup=False, soft_wrap=True)


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
