"""What recovery may do to a run's folder, as values: each says why, can be printed, and can be done twice.

Finding them is `survey`; the order in which they are done is `recovery`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from attrs import field, frozen

from fafo_build.errors import StoreError
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import Header, pack_header
from fafo_run.log.fs import File, gone, refusing, sync_dir
from fafo_run.log.locking import folder_lock
from fafo_run.log.quarantine import keep_bytes, put_aside
from fafo_run.log.reader import Scan
from fafo_run.log.segment import SegmentWriter

_FOLDERS = ("queue", "results", "quarantine")
"""The folders of a run that hold files of the log."""


class Level(StrEnum):
    """What a reason means to the owner of a store."""

    ROUTINE = "routine"
    """What every kill leaves behind."""
    NOTICE = "notice"
    """Worth a line; nothing that was acknowledged is touched."""
    DAMAGE = "damage"
    """Bytes aren't as they were written: no interruption explains it."""


class Why(StrEnum):
    """Reasons, as docs/durability.md lists them."""

    NEVER_NAMED = "never_named"
    GIVEN_UP = "given_up"
    UNSEALED = "unsealed"
    UNSYNCED = "unsynced"
    INTERRUPTED = "interrupted"
    ABANDONED = "abandoned"
    STRAY = "stray"
    RENUMBERED = "renumbered"
    TORN = "torn"
    GAP = "gap"
    HEADER_LOST = "header_lost"
    HEADER_HALF = "header_half"
    COPY = "copy"
    ODD_MARKER = "odd_marker"
    ODD_PADDING = "odd_padding"
    CHANGED = "changed"
    MISPLACED = "misplaced"
    VERSION = "version"
    UNREADABLE = "unreadable"
    FORMAT_LOST = "format_lost"
    UNCLEAN = "unclean"
    LOCK_LOST = "lock_lost"
    DONE = "done"
    INDEX_LOST = "index_lost"
    INDEX_ELSEWHERE = "index_elsewhere"
    HINT_WRONG = "hint_wrong"
    VANISHED = "vanished"
    DOUBLED = "doubled"
    UNDECODABLE = "undecodable"

    @property
    def level(self) -> Level:
        """How much it means."""
        return _LEVELS.get(self, Level.DAMAGE)


_LEVELS = {
    Why.NEVER_NAMED: Level.ROUTINE,
    Why.GIVEN_UP: Level.ROUTINE,
    Why.UNSEALED: Level.ROUTINE,
    Why.UNSYNCED: Level.ROUTINE,
    Why.INTERRUPTED: Level.NOTICE,
    Why.UNCLEAN: Level.ROUTINE,
    Why.DONE: Level.ROUTINE,
    Why.INDEX_LOST: Level.NOTICE,
    Why.INDEX_ELSEWHERE: Level.NOTICE,
    Why.HINT_WRONG: Level.NOTICE,
    Why.LOCK_LOST: Level.NOTICE,
    Why.ABANDONED: Level.NOTICE,
    Why.STRAY: Level.NOTICE,
    Why.RENUMBERED: Level.NOTICE,
    Why.VERSION: Level.NOTICE,
}


@frozen
class Action(ABC):
    """One thing to do to one file. Doing it again, after it was cut short anywhere, is harmless."""

    do: ClassVar[str]
    """What it does, as `--json` says it."""
    done: ClassVar[str]
    """The same once it was done, for people; empty when there is nothing to do."""

    path: Path
    why: Why
    found: str
    """What was found, for people."""

    @abstractmethod
    def apply(self, directory: RunDirectory) -> None:
        """Do it, durably. The caller holds the lock. Raises `StoreError`."""

    @property
    def where(self) -> str:
        """The file within the run's folder: `results/00000003.seg`, `index`."""
        folder = self.path.parent.name
        return f"{folder}/{self.path.name}" if folder in _FOLDERS else self.path.name

    @property
    def line(self) -> str:
        """What was found and what was done, for people."""
        return "; ".join(part for part in (f"{self.where}: {self.found}", self.done) if part)

    def as_json(self) -> dict[str, Any]:
        """Return it with stable keys."""
        return {
            "do": self.do,
            "file": self.where,
            "why": self.why.value,
            "level": self.why.level.value,
            "found": self.found,
        }


@frozen
class Remove(Action):
    """Remove a file that is no part of the log: `.tmp` never became one, `.dead` was given up."""

    do = "remove"
    done = "removed"

    def apply(self, directory: RunDirectory) -> None:
        """Unlink it, unless it has its name by now: another process may be making a segment."""
        with folder_lock(directory.disk, self.path.parent):
            if directory.disk.is_file(self.path):
                refusing(self.path, directory.disk.unlink, self.path)


@frozen
class PutAside(Action):
    """Move a whole file to quarantine/."""

    do = "put_aside"
    done = "moved to quarantine/"

    def apply(self, directory: RunDirectory) -> None:
        """Move it, after its reason was written."""
        put_aside(directory, self.path, self.line)


@frozen
class WriteHeader(Action):
    """Write both copies of a header, one of which is damaged, from the whole one."""

    do = "write_header"
    done = "written anew from the other"

    header: Header = field(kw_only=True)

    def apply(self, directory: RunDirectory) -> None:
        """Overwrite 4,096 bytes; if that is cut short, one of the two copies is whole all the same."""
        with _opened(directory, self.path) as file:
            file.write_at(0, pack_header(self.header))
            file.sync()


@frozen
class Keep(Action):
    """Copy damaged bytes to quarantine/; in the segment they stay as they are."""

    do = "keep"
    done = "copied to quarantine/; what follows is kept"

    offset: int = field(kw_only=True)
    length: int = field(kw_only=True)

    def apply(self, directory: RunDirectory) -> None:
        """Copy, unless the very bytes lie there already."""
        keep_bytes(directory, self.path, self.offset, self.length, self.line)

    def as_json(self) -> dict[str, Any]:
        """Return it with stable keys."""
        return super().as_json() | {"offset": self.offset, "length": self.length}


@frozen
class Cut(Keep):
    """Cut what stands behind the last entry of an unsealed segment, after it was copied to quarantine/."""

    do = "cut"
    done = "cut, and kept in quarantine/"

    def apply(self, directory: RunDirectory) -> None:
        """Copy first: what is cut is gone, and nobody can be sure that it was worth nothing."""
        super().apply(directory)
        with _opened(directory, self.path) as file:
            file.truncate(self.offset)
            file.sync()


@frozen
class Seal(Action):
    """Seal a segment whose file ends with its last entry."""

    do = "seal"
    done = "sealed"

    scan: Scan = field(kw_only=True, repr=False, eq=False)
    """The walk that found it unsealed."""

    def apply(self, directory: RunDirectory) -> None:
        """Append the provenance once more, then the seal. What was found is synced before."""
        with _opened(directory, self.path) as file:
            file.sync()
            seen = self.scan
            # As at a seal by its writer, provenance stands twice; what a crash left behind isn't repeated.
            times = Counter(entry.payload for entry in seen.provenance)
            once = [said for said, count in times.items() if count == 1]
            SegmentWriter(file, seen.header, seen.end, seen.count, seen.hasher.copy()).seal(once)


@frozen
class Sync(Action):
    """Sync a segment or a folder: bytes that were seen after a crash can still vanish in a power cut."""

    do = "sync"
    done = "synced"

    def apply(self, directory: RunDirectory) -> None:
        """Return when all of it is on the disk."""
        if directory.disk.is_file(self.path):
            with _opened(directory, self.path) as file:
                file.sync()
        else:
            sync_dir(directory.disk, self.path)


@frozen
class Tell(Action):
    """Nothing to do but to say it."""

    do = "tell"
    done = ""

    def apply(self, directory: RunDirectory) -> None:
        """Change nothing."""


@frozen
class Refuse(Action):
    """Nothing that a program may do: the store isn't opened until a person has looked."""

    do = "refuse"
    done = ""

    error: StoreError = field(kw_only=True, eq=False)

    def apply(self, directory: RunDirectory) -> None:
        """Raise the error."""
        raise self.error


@contextmanager
def _opened(directory: RunDirectory, path: Path) -> Iterator[File]:
    try:
        file = File(directory.disk, path, write=True)
    except FileNotFoundError as error:
        raise gone(path) from error
    try:
        yield file
    finally:
        file.close()
