"""Makes a run's segments whole again after a crash: steps 2 to 5 of docs/format.md.

What it does is what `survey` finds, in the order in which it is found; it can be killed at any point and run
again, and never loses a byte that may be an entry: what it takes out of the way lies in quarantine/.
Step 6 is `Results`, step 7 `Queue.settle`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import field, frozen

from fafo_run.log.actions import Action, Cut, Keep, Level, PutAside, Seal, Tell, Why
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import Header, SegmentKind
from fafo_run.log.fs import File, refusing
from fafo_run.log.listing import SegmentFile
from fafo_run.log.quarantine import has_bytes
from fafo_run.log.reader import Scan, scan
from fafo_run.log.survey import Survey, Visit, Walked, examine


@frozen
class RecoveryReport:
    """What recovery found and did."""

    actions: tuple[Action, ...]
    """Those that aren't routine, and every seal, in order."""
    queue: dict[bytes, Scan] = field(factory=dict, repr=False)
    """The walk of each segment of the queue, by uuid: whoever opens the queue need not walk it again."""

    @property
    def findings(self) -> tuple[str, ...]:
        """One line for people per thing that was found."""
        return tuple(action.line for action in self.actions if action.why.level is not Level.ROUTINE)

    @property
    def sealed(self) -> int:
        """Segments that were found unsealed, made whole and sealed."""
        return sum(isinstance(action, Seal) for action in self.actions)

    @property
    def dropped_bytes(self) -> int:
        """Cut from the tails of unsealed segments: interrupted writes."""
        return sum(
            action.length for action in self.actions if isinstance(action, Cut) and action.why is not Why.TORN
        )

    @property
    def torn(self) -> int:
        """Segments that had been sealed and weren't any more: their end was lost or damaged."""
        return len({action.path for action in self.actions if action.why is Why.TORN})

    @property
    def quarantined(self) -> int:
        """Gaps, cut ends and files put aside; no interrupted writes."""
        return sum(
            isinstance(action, Keep | PutAside) and action.why.level is Level.DAMAGE
            for action in self.actions
        )

    @property
    def damaged(self) -> bool:
        """True when something was found that a mere interruption doesn't explain."""
        return any(action.why.level is Level.DAMAGE for action in self.actions)


def recover(directory: RunDirectory, *, thorough: bool = False) -> RecoveryReport:
    """Make every segment of a run readable and sealed, durably. The caller holds the lock.

    Sealed segments of the queue are walked; sealed results are only looked at unless `thorough`, since their
    entries are checked whenever they are read. A segment of the queue that another process holds is left
    alone. Raises `StoreError` (`DiskFull`, `SyncFailed`) when the disk refuses, or for a segment of another
    format version.
    """
    done: list[Action] = []
    walked: dict[bytes, Scan] = {}

    def keep(segment: SegmentFile, file: File, seen: Scan) -> None:
        if seen.header.kind is SegmentKind.QUEUE:
            walked[seen.header.uuid] = seen

    for action in to_do(directory, thorough=thorough, walked=keep):
        action.apply(directory)
        if action.why.level is not Level.ROUTINE or isinstance(action, Seal):
            done.append(action)
    return RecoveryReport(tuple(done), walked)


def to_do(
    directory: RunDirectory,
    *,
    thorough: bool = False,
    walked: Walked | None = None,
) -> Iterator[Action]:
    """Yield what recovery does, each to be applied before the next is asked for. The caller holds the lock.

    The arguments are those of `Survey`. Raises `StoreError`.
    """
    if directory.lock is None:
        raise ValueError("recovery needs the store's lock")
    return planned(
        directory, clean=directory.stopped_cleanly, free=_claimed, thorough=thorough, walked=walked
    )


def planned(
    directory: RunDirectory,
    *,
    clean: Callable[[], bool],
    free: Callable[[File], bool],
    thorough: bool,
    visit: Visit | None = None,
    walked: Walked | None = None,
) -> Iterator[Action]:
    """Yield what recovery does to the segments of a run; applying it or not is up to the caller.

    The arguments are those of `Survey`. Raises `StoreError`.
    """
    if directory.remade:
        line = (
            "gone, though segments are here; written anew, and the index with it: segments say what they are"
        )
        yield Tell(directory.path / "FORMAT", Why.FORMAT_LOST, line)
    for folder, kind in ((directory.queue, SegmentKind.QUEUE), (directory.results, SegmentKind.RESULTS)):
        survey = Survey(
            directory.disk, folder, kind, clean, free, thorough=thorough, visit=visit, walked=walked
        )
        for action in survey.actions():
            yield _unless_kept(directory, action)


def _unless_kept(directory: RunDirectory, action: Action) -> Action:
    """Return the action, or only what it says when it was done before: a gap stays where it is."""
    if type(action) is Keep and has_bytes(directory, action.path, action.offset, action.length):
        return Tell(action.path, action.why, f"{action.found}, and kept in quarantine/")
    return action


def mend(directory: RunDirectory, file: File, header: Header) -> tuple[str, ...]:
    """Make one unsealed segment of the queue whole and seal it, durably, as recovery would; return findings.

    For a segment whose writer is gone: the caller holds the lock of the store, and the exclusive flock of
    `file`, which it keeps. Harmless when it is sealed already. Raises `StoreError`.
    """
    if directory.lock is None:
        raise ValueError("recovery needs the store's lock")
    findings: list[str] = []
    for action in examine(file.path, scan(file, header)):
        action.apply(directory)
        findings += [action.line] if action.why.level is not Level.ROUTINE else []
    file.sync()
    return tuple(findings)


def _claimed(file: File) -> bool:
    """Take the flock that says that nobody writes or reads it, until the file is closed."""
    return refusing(file.path, file.disk.lock, file.fd, exclusive=True)
