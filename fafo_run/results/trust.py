"""Whether an index may be opened at all, and whether it is of the segments that are there."""

from __future__ import annotations

from collections.abc import Mapping

from fafo_run.log.directory import RunDirectory
from fafo_run.log.locking import boot_id
from fafo_run.results.environment import UnusableIndexError, is_whole, probe
from fafo_run.results.files import ResultsFiles
from fafo_run.results.index import Merged


def is_trusted(directory: RunDirectory) -> bool:
    """Return whether the index may be opened: damage in it can kill whoever reads it, by SIGBUS or worse.

    After a clean stop it must be as large as it was left. After a kill a child process has to read it first.
    After a power cut it is built anew: what the disk kept of it nobody knows. A run that works has looked
    already.
    """
    boot = directory.running_boot()
    if boot is None:
        return is_whole(directory.index) or probe(directory.index)
    if not boot or boot != boot_id():
        return False
    return (directory.lock is None and directory.is_worked_on()) or probe(directory.index)


def unmerged(files: ResultsFiles, merged: Mapping[bytes, Merged]) -> list[int]:
    """Return the segments that an index hasn't taken in, by sequence, oldest first.

    Raises `UnusableIndexError` when it holds segments that aren't there as they were.
    """
    found = files.headers()
    present = {uuid for uuid, _ in found.values()}
    if not present.issuperset(merged):
        raise UnusableIndexError("the index holds segments that aren't there")
    missing: list[int] = []
    for sequence, (uuid, size) in found.items():
        was = merged.get(uuid)
        if was is None:
            missing.append(sequence)
        elif (was.sequence, was.size) != (sequence, size):
            raise UnusableIndexError("a segment has changed since it was indexed")
    return missing


def sizes(files: ResultsFiles) -> Mapping[bytes, int]:
    """Return the size in bytes of each segment that has a readable header, by uuid."""
    found: dict[bytes, int] = {}
    for uuid, size in files.headers().values():
        found.setdefault(uuid, size)
    return found
