"""Where a run stands, seen from another process: what is true from the logs, what is live from
progress.json.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from attrs import asdict, define, field, frozen

from fafo_build.project.load import active_overrides
from fafo_run.log.directory import NoStore, RunDirectory
from fafo_run.log.fs import Disk
from fafo_run.log.listing import open_segments
from fafo_run.log.locking import is_held
from fafo_run.run.store import RunReader
from fafo_run.run.view import View


@define
class Count:
    """Outcomes of one class or one source."""

    completed: int = 0
    failed: int = 0


@define
class Tokens:
    """Sums over the outputs of the classes as they are now."""

    prompt: int = 0
    cached: int = 0
    ceiling: int = 0
    output: int = 0


@frozen
class Hint:
    """What progress.json says; every field may be missing."""

    status: str = ""
    total: int | None = None
    servers: tuple[str, ...] = ()
    away: Mapping[str, str] = field(factory=dict)
    in_flight: int = 0
    rate: float | None = None
    eta: float | None = None
    service: bool = False
    notice: str = ""


@frozen
class StoreSize:
    """Where the run is, and how large."""

    path: str
    segments: int
    bytes: int
    overrides: tuple[str, ...]
    """The FAFO_* variables that are in force."""


@frozen
class Status:
    """A run at one moment. The fields are the contract of `fafo status --json`."""

    run: str
    status: str
    """`new`, `running`, `finished`, `stopped`, `interrupted`, `failed` or `crashed`."""
    service: bool
    """Whether a service works on it now."""
    notice: str
    """What it waits for; empty when nothing holds it up, or nobody works on it."""
    total: int | None
    queued: int
    in_flight: int
    completed: int
    failed: int
    superseded: int
    """Records that count, of work that no class stands for now."""
    replaced: int
    """Records that don't count any more: failures whose item has a later record."""
    by_class: Mapping[str, Count]
    by_source: Mapping[str, Count]
    finish_reasons: Mapping[str, int]
    """Outputs by what ended them."""
    empty: int
    """Outputs without a token but the one that ended them."""
    servers: tuple[str, ...]
    """URLs of those that the last run asked."""
    away: Mapping[str, str]
    """Of the servers that nothing is sent to now, why; by URL."""
    tokens: Tokens
    rate: float | None
    eta: float | None
    store: StoreSize

    def as_json(self) -> dict[str, Any]:
        """Return the contract that docs/commands.md describes."""
        return asdict(self)


def status_of(view: View, folder: Path) -> Status:
    """Return where the run in `folder` stands. Raises `StoreError` when its store can't be read."""
    try:
        reader = RunReader.open(folder)
    except NoStore:
        return _new(view, folder)
    with reader:
        hint = _hint(reader.directory)
        by_class = {of.name: Count() for of in view.classes}
        by_source = {source.name: Count() for source in view.sources}
        tokens = Tokens()
        finish_reasons: Counter[str] = Counter()
        superseded = replaced = empty = 0
        for group, counts in reader.results.summary().groups.items():
            replaced += counts.superseded
            owner = view.owner(group)
            if owner is None:
                superseded += counts.outputs + counts.failed
                continue
            for count in (by_class[owner], by_source.setdefault(group.source, Count())):
                count.completed += counts.outputs
                count.failed += counts.failed
            finish_reasons.update(counts.finish_reasons)
            empty += counts.empty_outputs
            tokens.prompt += counts.prompt_tokens
            tokens.cached += counts.cached_tokens
            tokens.ceiling += counts.expected_cached_tokens
            tokens.output += counts.output_tokens
        for name in reader.retries():
            record = reader.results.find(name)
            owner = view.owner(record.provenance) if record is not None else None
            if record is not None and owner is not None:
                # It waits, and so it hasn't failed yet.
                by_class[owner].failed -= 1
                by_source[record.provenance.source].failed -= 1
        state = _state(reader.directory, hint, recorded=bool(reader.results.summary().groups))
        live = hint if state == "running" else Hint()
        return Status(
            run=folder.name,
            status=state,
            service=live.service,
            notice=live.notice,
            total=hint.total,
            queued=reader.queue.depth(),
            in_flight=live.in_flight,
            completed=sum(count.completed for count in by_class.values()),
            failed=sum(count.failed for count in by_class.values()),
            superseded=superseded,
            replaced=replaced,
            by_class=by_class,
            by_source=by_source,
            finish_reasons=dict(finish_reasons),
            empty=empty,
            servers=hint.servers,
            away=live.away,
            tokens=tokens,
            rate=live.rate,
            eta=live.eta,
            store=_size(folder),
        )


def _new(view: View, folder: Path) -> Status:
    return Status(
        run=folder.name,
        status="new",
        service=False,
        notice="",
        total=None,
        queued=0,
        in_flight=0,
        completed=0,
        failed=0,
        superseded=0,
        replaced=0,
        by_class={of.name: Count() for of in view.classes},
        by_source={source.name: Count() for source in view.sources},
        finish_reasons={},
        empty=0,
        servers=(),
        away={},
        tokens=Tokens(),
        rate=None,
        eta=None,
        store=_size(folder),
    )


def _hint(directory: RunDirectory) -> Hint:
    try:
        return msgspec.convert(directory.read_progress() or {}, Hint)
    except msgspec.ValidationError:
        return Hint()  # It is only a hint: whoever wrote something else into it changes nothing that counts.


def _state(directory: RunDirectory, hint: Hint, *, recorded: bool) -> str:
    if is_held(directory.path / "LOCK"):
        return "running"
    if hint.status == "failed":
        return "failed"
    if not directory.stopped_cleanly():
        return "crashed"
    if not hint.status and not recorded:
        return "new"  # Something was submitted, and no run has begun.
    return hint.status if hint.status in ("interrupted", "stopped") else "finished"


def _size(folder: Path) -> StoreSize:
    disk = Disk()
    sizes = [file.size() for part in ("queue", "results") for file in open_segments(disk, folder / part)]
    return StoreSize(str(folder), len(sizes), sum(sizes), active_overrides())
