"""How fast the log appends, takes work from the queue to the results, and recovers: ratios within one run.

    python benchmarks/log.py [append|through|recover] [ITEMS]

What is printed beside each figure is what it should reach, on 2 cores. `through` runs in a process of its own
for each number of items, so that one peak of memory doesn't hide the other.
"""

from __future__ import annotations

import hashlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections import deque
from collections.abc import Callable, Iterator
from operator import add
from pathlib import Path
from random import Random

import xxhash

sys.path.insert(0, str(Path(__file__).parents[1]))

from fafo_run import identity
from fafo_run.item import Claim, FinishReason, Output, PackedIds, QueuedItem, Record, pack_ids
from fafo_run.log.appender import Appender, Draft, Placed
from fafo_run.log.batch import Frames, pack_entries
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import ENTRY_SIZE, HEADER_SIZE, Kind, SegmentKind
from fafo_run.log.fs import Disk, File
from fafo_run.log.reader import read_header, scan
from fafo_run.log.route import Route
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from fafo_run.run.cycles import search_rarely
from tests.log_nouns import FAKE, JUDGE

PAYLOAD = 600
BATCH = 1_000
COVERED = 52
"""Bytes that a checksum covers before the payload."""
SUFFIX = 300
ANSWER = 20
CLAIMS = 64
"""What an engine takes at once."""
GROUP = 2_000
"""What the completer records at once."""


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def said(name: str, figure: str, wanted: str) -> None:
    print(f"{name:58} {figure:>24}   wanted: {wanted}", flush=True)


class CountingDisk(Disk):
    """Counts its syncs of files."""

    syncs = 0

    def fdatasync(self, fd: int) -> None:
        self.syncs += 1
        super().fdatasync(fd)


class PlainFile:
    """A file that takes bytes with one write and one sync."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)

    def append(self, block: bytes) -> None:
        assert os.write(self._fd, block) == len(block)
        os.fdatasync(self._fd)


class Entries:
    """The entries of one batch as the log wrote them, and the least that Python can do to write them."""

    def __init__(self, placed: Placed) -> None:
        first, *others = placed.offsets
        writer = placed.segment.writer
        self.block = writer.file.read_at(first, writer.synced - first)
        ends = [*(offset - first for offset in others), len(self.block)]
        self._entries = [self.block[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        self._heads = [entry[:COVERED] for entry in self._entries]
        self._bodies = [entry[ENTRY_SIZE:] for entry in self._entries]

    def checksums(self) -> list[int]:
        return list(map(xxhash.xxh3_64_intdigest, map(add, self._heads, self._bodies)))

    def join(self) -> bytes:
        return b"".join(self._entries)

    def least(self, file: PlainFile) -> None:
        self.checksums()
        file.append(self.join())


def append(batches: int = 300) -> None:
    """Batches of 1,000 entries of some 600 bytes, against the same bytes with one write and one sync each.

    Between the two is the least that Python can do: a checksum each, a join, a write, a sync. The three take
    turns, batch by batch, and each goes first as often as the others: so a slow moment of the disk, and what
    one leaves for the next one's sync, meets all.
    """
    search_rarely()
    chance = Random(1)
    route, said_ = Route(b"m" * 32, b"a" * 32, 512), b"\x9b" + bytes(11)
    lengths = [chance.randint(PAYLOAD - 60, PAYLOAD + 60) for _ in range(BATCH)]
    names = [chance.randbytes(16) for _ in lengths]
    payloads = [chance.randbytes(length) for length in lengths]
    frames = Frames([int(Kind.OUTPUT)] * BATCH, names, payloads)
    drafts = [Draft(route, said_, *of) for of in zip(*frames, strict=True)]
    with tempfile.TemporaryDirectory() as name:
        disk = CountingDisk()
        directory = RunDirectory.own(Path(name) / "run", disk)
        appender = Appender(directory, SegmentKind.RESULTS, segment_bytes=1 << 40)
        entries = Entries(appender.commit(drafts)[0])
        plain, least = PlainFile(Path(name) / "plain"), PlainFile(Path(name) / "least")
        turns: deque[tuple[str, Callable[[], object]]] = deque()
        turns.append(("log", lambda: appender.commit(drafts)))
        turns.append(("plain", lambda: plain.append(entries.block)))
        turns.append(("least", lambda: entries.least(least)))
        wall: dict[str, list[float]] = {of: [] for of, _ in turns}
        busy = dict.fromkeys(wall, 0.0)
        before = disk.syncs
        for _ in range(batches):
            for of, call in turns:
                begun, worked = time.perf_counter(), time.thread_time()
                call()
                busy[of] += time.thread_time() - worked
                wall[of].append(time.perf_counter() - begun)
            turns.rotate()
        assert disk.syncs - before == batches
        directory.close()
    middle = {of: statistics.median(times) for of, times in wall.items()}
    ratio = f"{middle['plain'] / middle['log']:.2f} of a plain write"
    said("append, one checksum each, one sync per 1,000", ratio, "0.6")
    for of, seconds in middle.items():
        print(f"    {of:10} {seconds * 1e6:6,.0f} us per batch, of CPU {busy[of] / batches * 1e6:4,.0f}")
    parts: dict[str, Callable[[], object]] = {
        "checksums": entries.checksums,
        "join": entries.join,
        "both and the fields": lambda: pack_entries(bytes(16), HEADER_SIZE, frames),
        "digest": lambda: xxhash.xxh3_64(entries.block),
    }
    bill = {
        part: statistics.median(timeit.repeat(call, number=1, repeat=batches)) for part, call in parts.items()
    }
    print("    us per batch: " + ", ".join(f"{part} {seconds * 1e6:.0f}" for part, seconds in bill.items()))


def items(count: int) -> Iterator[list[QueuedItem]]:
    suffix = pack_ids(range(1000, 1000 + SUFFIX)).data
    for start in range(0, count, BATCH):
        batch = []
        for number in range(start, min(start + BATCH, count)):
            name = hashlib.sha256(b"%d" % number).digest()
            batch.append(
                QueuedItem(
                    identity=name[:16],
                    provenance=JUDGE,
                    key=str(number),
                    sample=0,
                    seed=identity.seed(name[:16]),
                    content_hash=name,
                    suffix=PackedIds(suffix, wide=False),
                    bounds=((0, SUFFIX),),
                    prompt_tokens=2000 + SUFFIX,
                    lane=4096,
                )
            )
        yield batch


def answered(claims: list[Claim], outcome: Output) -> list[Record]:
    return [
        Record(
            identity=claim.item.identity,
            provenance=FAKE,
            key=claim.item.key,
            sample=claim.item.sample,
            seed=claim.item.seed,
            content_hash=claim.item.content_hash,
            suffix=claim.item.suffix,
            bounds=claim.item.bounds,
            prompt_tokens=claim.item.prompt_tokens,
            lane=claim.item.lane,
            attempt=claim.attempt,
            server="",
            started=1.0,
            seconds=0.5,
            outcome=outcome,
        )
        for claim in claims
    ]


class Spent:
    """Seconds of CPU and of wall that the log's own calls took; what makes the items isn't the log's."""

    def __init__(self) -> None:
        self.cpu: dict[str, float] = {}
        self.wall: dict[str, float] = {}

    def of(self, name: str, call, *arguments):  # type: ignore[no-untyped-def]
        before, begun = cpu(), time.perf_counter()
        result = call(*arguments)
        self.cpu[name] = self.cpu.get(name, 0.0) + cpu() - before
        self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - begun
        return result


def through(count: int) -> None:
    """Queue, claim, record and retire `count` items with an engine that takes no time."""
    outcome = Output(pack_ids(range(ANSWER)), FinishReason("stop", 3), 2000, 2000)
    spent = Spent()
    search_rarely()
    with tempfile.TemporaryDirectory() as name:
        directory = RunDirectory.own(Path(name) / "run")
        results = spent.of("open", Results, directory)
        queue = spent.of("open", lambda: Queue(directory, done=results.done))
        for batch in items(count):
            spent.of("append", queue.append, batch)
        claims: list[Claim] = []
        done = 0
        while done < count:
            while len(claims) < GROUP and (found := spent.of("claim", queue.claim, CLAIMS)):
                claims += found
            records = answered(claims, outcome)
            assert spent.of("record", results.append, records) == 0
            spent.of("retire", queue.retire, claims)
            done += len(claims)
            claims = []
            if done // 50_000 != (done - len(records)) // 50_000:
                spent.of("sync markers", queue.sync_markers)
                spent.of("collect", queue.collect)
        spent.of("close", lambda: queue.close(clean=True))
        spent.of("close", lambda: results.close(clean=True))
        directory.close()
    took, wall = sum(spent.cpu.values()), sum(spent.wall.values())
    said(f"{count:,} items through queue and results", f"{count / took:,.0f} /CPU s", "40,000")
    said("    with its syncs", f"{count / wall:,.0f} /s", "40,000")
    for name, seconds in spent.cpu.items():
        waited = spent.wall[name] / count * 1e6
        print(f"    {name:14} {seconds / count * 1e6:6.2f} us CPU  {waited:6.2f} us wall")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    said("    peak memory", f"{peak:.0f} MiB", "under 400")


def recover(size: int = 1 << 30, segments: int = 4) -> None:
    """Scan unsealed segments, against one pass of the checksum over the same bytes."""
    with tempfile.TemporaryDirectory() as name:
        directory = RunDirectory.own(Path(name) / "run")
        batches = size // segments // (720 * BATCH)
        paths = []
        for _ in range(segments):
            queue = Queue(directory, segment_bytes=1 << 40)
            for batch in items(batches * BATCH):
                queue.append(batch)
            queue.close(clean=False)
            paths.append(sorted((directory.queue).glob("*.seg"))[-1])
        whole = sum(path.stat().st_size for path in paths)
        times = {"checksum": 1e9, "scan": 1e9}
        for _ in range(3):
            begun = time.perf_counter()
            for path in paths:
                with path.open("rb", buffering=0) as file:
                    digest = xxhash.xxh3_64()
                    while piece := file.read(4 << 20):
                        digest.update(piece)
            times["checksum"] = min(times["checksum"], time.perf_counter() - begun)
            begun = time.perf_counter()
            for path in paths:
                file_ = File(Disk(), path)
                header, _ = read_header(file_)
                assert header is not None
                assert scan(file_, header).count > 0
                file_.close()
            times["scan"] = min(times["scan"], time.perf_counter() - begun)
        directory.close()
    ratio = times["checksum"] / times["scan"]
    said(f"recovery's scan of {whole / 2**20:,.0f} MiB", f"{ratio:.2f} of one xxh3 pass", "0.3")
    print(
        f"    {whole / times['scan'] / 2**20:,.0f} MiB/s, xxh3 {whole / times['checksum'] / 2**20:,.0f} MiB/s"
    )


def main() -> None:
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what in ("", "append"):
        append()
    if what == "":
        for count in (100_000, 1_000_000):
            subprocess.run([sys.executable, __file__, "through", str(count)], check=True)
    if what == "through":
        through(int(sys.argv[2]) if len(sys.argv) > 2 else 100_000)
    if what in ("", "recover"):
        recover(int(sys.argv[2]) if what and len(sys.argv) > 2 else 1 << 30)


if __name__ == "__main__":
    main()
