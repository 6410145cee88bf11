"""Every byte of a small store is flipped, and every file cut at every byte: through the code that a run uses.

Never a wrong payload; what other entries hold is kept; the damage is said; and the store goes on: what is
appended afterwards is there at the start after. `tests/unit/test_log_recovery.py` looks at the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fafo_build.errors import StoreError
from fafo_run.log.format import HEADER_SIZE, Kind
from fafo_run.log.fs import File
from fafo_run.log.reader import Entry, read_header, scan
from tests.disk import faults
from tests.disk.life import RUN, Life, fresh, key_number, make_item, repeatable
from tests.disk.oracle import Broken
from tests.disk.proof import Bench
from tests.disk.simulated import SimulatedDisk
from tests.log_nouns import failure

LATER = [100, 102]


class Store(NamedTuple):
    """A small store on a simulated disk: six items, of which three have records."""

    disk: SimulatedDisk
    bench: Bench


def make(*, sealed: bool) -> Store:
    with repeatable():
        disk = fresh()
        bench = Bench(disk)
        bench.enqueue([0, 2, 4, 6, 8, 10])
        bench.finish(bench.life.claim(2))
        bench.finish(bench.life.claim(1), failure())
        if sealed:
            bench.life.close()
        else:
            bench.life.drop()
    return Store(disk.untouched(), bench)


def files(disk: SimulatedDisk, part: str) -> list[Path]:
    found = [path for path, _ in disk.files() if path.parent == RUN / part]
    return [path for path in found if path.suffix in (".seg", ".hint")]


def entries(disk: SimulatedDisk, path: Path) -> list[Entry]:
    if path.suffix != ".seg":
        return []
    file = File(disk, path)
    header, _ = read_header(file)
    assert header is not None
    found: list[Entry] = []
    scan(file, header, found.append)
    file.close()
    return found


def flips(data: bytes, step: int) -> Iterator[tuple[int, bytes]]:
    """Yield damaged bytes, and where the damage begins."""
    for at in (*range(0, min(HEADER_SIZE, len(data)), 61 * step), *range(HEADER_SIZE, len(data), step)):
        broken = bytearray(data)
        broken[at] ^= 1 << at % 8
        yield at, bytes(broken)


def cuts(data: bytes, step: int) -> Iterator[tuple[int, bytes]]:
    for at in (*range(0, min(HEADER_SIZE, len(data)), 61 * step), *range(HEADER_SIZE, len(data), step)):
        yield at, data[:at]


Harm = Callable[[bytes, int], Iterator[tuple[int, bytes]]]


def check(store: Store, path: Path, at: int, data: bytes, harm: Harm) -> None:
    """Start a run on the damaged store. Raises `Broken`."""
    disk = store.disk.untouched()
    originals = entries(store.disk, path)
    # Of a cut everything behind it is gone, of a flip only what it hit; a lost header takes the whole file.
    hit = [one for one in originals if (one.end > at if harm is cuts else one.offset <= at < one.end)]
    headless = path.suffix == ".seg" and at < HEADER_SIZE // 2 and harm is cuts
    lost = {one.identity for one in (originals if headless else hit)}
    disk.spoil(path, data)
    life = Life(disk)
    try:
        waiting, found = life.waiting(), life.records()
    except StoreError as error:
        # The only copy of provenance in a segment that wasn't sealed: nobody can say what the items are.
        if not any(one.kind == Kind.PROVENANCE for one in hit) or not error.problems[0].cure:
            raise Broken(f"{path.name} damaged at {at}: {error}") from error
        return
    oracle = store.bench.oracle
    for item in waiting:
        _hold(oracle.items[item.identity] == item, "wrong item", item)
    for record in found:
        _hold(record in oracle.records[record.identity], "wrong record", record)
    unreadable = any(one.kind == Kind.PROVENANCE for one in hit)
    there = {one.identity for one in (*waiting, *found)}
    _hold(unreadable or oracle.queued - there <= lost, "lost more than was hit", (path.name, at))
    said = life.report.findings or life.results.duplicates().damaged
    clean_end = harm is cuts and at in {HEADER_SIZE, *(one.end for one in originals)}
    # Nothing reads the markers of records, and a hint is made anew.
    starts = [one.offset for one in originals] + [originals[-1].end] if originals else []
    marker = harm is flips and any(4 <= at - start < 8 for start in starts)
    unread = path.suffix == ".hint" or (path.parent.name == "results" and marker)
    _hold(bool(said) or clean_end or unread, "damage that nobody speaks of", (path.name, at))
    life.enqueue([make_item(number) for number in LATER])
    life.drop()
    later = Life(disk)
    waits = {key_number(item) for item in later.waiting()}
    _hold(waits >= set(LATER), "not there afterwards", (path.name, at))


def _hold(holds: bool, what: str, seen: object) -> None:
    if not holds:
        raise Broken(f"{what}: {seen}")


def everywhere(part: str, harm: Harm, step: int, *, sealed: bool) -> int:
    """Damage each file of a part of the store at each `step`th byte; return how often."""
    store = make(sealed=sealed)
    times = 0
    for path in files(store.disk, part):
        for at, data in harm(store.disk.read(path), step):
            check(store, path, at, data, harm)
            times += 1
    return times


CASES = pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "unsealed"])
PARTS = pytest.mark.parametrize("part", ["queue", "results"])
HARMS = pytest.mark.parametrize("harm", [flips, cuts])


@CASES
@PARTS
@HARMS
def test_some_bytes(part: str, harm: Harm, sealed: bool) -> None:
    assert everywhere(part, harm, 37, sealed=sealed) > 20


@pytest.mark.slow
@CASES
@PARTS
@HARMS
def test_every_byte(part: str, harm: Harm, sealed: bool) -> None:
    assert everywhere(part, harm, 1, sealed=sealed) > 500


@CASES
@PARTS
def test_flips_show_a_checksum_that_is_left_out(part: str, sealed: bool) -> None:
    with faults.no_checksum(), pytest.raises((Broken, StoreError, ValueError)):
        everywhere(part, flips, 7, sealed=sealed)
