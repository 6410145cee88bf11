"""Looks at a whole store and changes nothing: what `fafo store check` says, and what a repair would do.

Takes no lock and may run beside a run, a producer and a collector: what another process is just writing, or
has removed since, is no finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from attrs import frozen

from fafo_build.errors import StoreError
from fafo_run.log.actions import Action, Level, Refuse, Sync, Tell, Why
from fafo_run.log.directory import FormatLost, FormatUnreadable, RunDirectory
from fafo_run.log.fs import Disk, File, refusing
from fafo_run.log.locking import is_held, is_used
from fafo_run.log.quarantine import Kept, kept
from fafo_run.log.recovery import planned
from fafo_run.results.reader import ResultsReader
from fafo_run.run.check_derived import derived
from fafo_run.run.check_entries import Entries

_IN_PLACE = frozenset({Why.GAP, Why.ODD_MARKER, Why.ODD_PADDING, Why.CHANGED})
"""What recovery leaves where it is: damage within a segment, whose other entries count."""
_READ_CLOSELY = frozenset({Why.GAP, Why.HINT_WRONG, Why.INDEX_ELSEWHERE})
"""What a run doesn't see in results: it doesn't read again what is sealed."""


@frozen
class Checked:
    """What a look at a whole store found."""

    running: bool
    """Whether a run works on it."""
    segments: int
    entries: int
    """Valid ones of all kinds but SEAL."""
    outputs: int
    failures: int
    waiting: int
    """ITEM entries that are LIVE."""
    findings: tuple[Action, ...]
    quarantine: tuple[Kept, ...]

    @property
    def repairs(self) -> tuple[Action, ...]:
        """What a repair would do."""
        return tuple(found for found in self.findings if not isinstance(found, Tell | Refuse))

    @property
    def sound(self) -> bool:
        """False when there is damage: bytes that aren't as they were written, or that are gone."""
        return not any(found.why.level is Level.DAMAGE for found in self.findings)

    @property
    def cures(self) -> tuple[str, ...]:
        """What helps, a line for people each, in the order in which to do it; empty when nothing does."""
        return tuple(self._cures())

    def _cures(self) -> Iterator[str]:
        problems = [
            (of.where, one) for of in self.findings if isinstance(of, Refuse) for one in of.error.problems
        ]
        if problems:
            # Nothing else opens the store before that.
            yield from (f"{where}: {one.cure}" for where, one in problems if one.cure)
            return
        if self.repairs and not self.running:
            of_results = (found for found in self.repairs if found.path.parent.name != "queue")
            unseen = any(found.why in _READ_CLOSELY for found in of_results)
            also = "" if unseen else ", and so does the next `fafo run`"
            yield f"`fafo store repair` mends what recovery can{also}"
        in_place = {found.path.parent.name for found in self.findings if found.why in _IN_PLACE}
        if "results" in in_place:
            when = "once the run has ended, " if self.running else ""
            yield (
                f"{when}`fafo store compact --damaged` writes the results anew without their damage, "
                "and `fafo run` then does again what is gone"
            )
        if "queue" in in_place:
            yield "`fafo run` does what waits in queue/, and the damage there goes with its segment"

    def as_json(self) -> dict[str, Any]:
        """Return it with stable keys."""
        return {
            "sound": self.sound,
            "running": self.running,
            "segments": self.segments,
            "entries": self.entries,
            "outputs": self.outputs,
            "failures": self.failures,
            "waiting": self.waiting,
            "findings": [found.as_json() for found in self.findings],
            "quarantine": [
                {"file": of.name, "bytes": of.size, "reason": of.reason} for of in self.quarantine
            ],
        }


def check(path: Path) -> Checked:
    """Look at the store at `path`. Takes 16 bytes of memory per output.

    Raises `StoreError` when no store is there, or one of another format.
    """
    directory, findings = look_at(path)
    return checked(directory, findings)


def checked(directory: RunDirectory, findings: Sequence[Action] = ()) -> Checked:
    """Look at a store that is open already; `findings` come before those that are found."""
    running = is_held(directory.path / "LOCK")
    found = [*findings, *_state(directory, running)]
    try:
        results, unreadable = ResultsReader(directory), None
    except StoreError as error:
        # A segment that no program may touch; the others are looked at all the same.
        results, unreadable = None, error
    with closing(results) if results is not None else nullcontext():
        seen = Entries(directory, results)
        found += [action for action in _planned(directory, seen) if not isinstance(action, Sync)]
        found += seen.findings()
        if results is not None:
            found += derived(directory, results, seen.sizes, seen.done)
    if unreadable is not None and not any(isinstance(of, Refuse) for of in found):
        found.append(Refuse(directory.results, Why.UNREADABLE, str(unreadable), error=unreadable))
    return Checked(
        running, seen.segments, seen.entries, len(seen.outputs) // 16, seen.failures, seen.waiting,
        tuple(found), tuple(kept(directory)),
    )  # fmt: skip


def _state(directory: RunDirectory, running: bool) -> Iterator[Action]:
    lock = directory.path / "LOCK"
    if running and refusing(lock, directory.disk.inode, lock) is None:
        line = "deleted while a run works; the lock on the folder still keeps others out"
        yield Tell(lock, Why.LOCK_LOST, line)
    if not running and not directory.stopped_cleanly():
        line = "the last run was killed, or the machine went down"
        yield Tell(directory.path / "RUNNING", Why.UNCLEAN, line)


def look_at(path: Path) -> tuple[RunDirectory, list[Action]]:
    """Return a store as it is, also without a readable FORMAT, and what is wrong with that.

    Raises `StoreError` when no store is there, or one of another format.
    """
    try:
        return RunDirectory.look(path), []
    except FormatLost:
        directory = RunDirectory(path, Disk(), "")
        directory.remade = True
        return directory, []
    except FormatUnreadable as error:
        refusal = Refuse(path / "FORMAT", Why.FORMAT_LOST, error.problems[0].message, error=error)
        return RunDirectory(path, Disk(), ""), [refusal]


def _planned(directory: RunDirectory, seen: Entries) -> Iterator[Action]:
    """Yield what recovery would do to the segments, without a lock."""
    lock = directory.path / "LOCK"

    def free(file: File) -> bool:
        return not (is_used(file.path) if file.path.parent == directory.queue else is_held(lock))

    return planned(
        directory,
        clean=lambda: directory.stopped_cleanly() and not is_held(lock),
        free=free,
        thorough=True,
        visit=seen.visit,
        walked=seen.walked,
    )
