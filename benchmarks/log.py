"""How fast the log appends, takes work from the queue to the results, and recovers: ratios within one run.

    python benchmarks/log.py [append|through|recover] [ITEMS]

What is printed beside each figure is what it should reach, on 2 cores. `through` runs in a process of its own
for each number of items, so that one peak of memory doesn't hide the other.
"""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import xxhash

sys.path.insert(0, str(Path(__file__).parents[1]))

from fafo_run import identity
from fafo_run.item import Claim, FinishReason, Output, PackedIds, QueuedItem, Record, pack_ids
from fafo_run.log.appender import Appender, Draft
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import Kind, SegmentKind
from fafo_run.log.fs import Disk, File
from fafo_run.log.reader import read_header, scan
from fafo_run.log.route import Route
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from fafo_run.run.cycles import search_rarely
from tests.log_nouns import FAKE, JUDGE

PAYLOAD = 600
BATCH = 1_000
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


def append(batches: int = 400) -> None:
    """Batches of 1,000 entries of 600 bytes, against the same bytes with one write and one sync per batch.

    The two take turns, batch by batch, so that a slow moment of the disk meets both.
    """
    search_rarely()
    chance = Random(1)
    payloads = [chance.randbytes(PAYLOAD) for _ in range(BATCH)]
    names = [chance.randbytes(16) for _ in range(BATCH)]
    route = Route(b"m" * 32, b"a" * 32, 512)
    with tempfile.TemporaryDirectory() as name:
        directory = RunDirectory.own(Path(name) / "run")
        appender = Appender(directory, SegmentKind.RESULTS, segment_bytes=1 << 40)
        drafts = [
            Draft(route, b"\x9b" + bytes(11), of, lambda _, payload=payload: (Kind.OUTPUT, payload))
            for of, payload in zip(names, payloads, strict=True)
        ]
        appender.commit(drafts)
        (segment,) = appender.open.values()
        bytes_of_a_batch = -(segment.writer.synced - (appender.commit(drafts)[0].segment.writer.synced))
        raw = os.open(Path(name) / "raw", os.O_RDWR | os.O_CREAT)
        block = chance.randbytes(bytes_of_a_batch)
        logged = plain = 0.0
        for _ in range(batches):
            begun = time.perf_counter()
            appender.commit(drafts)
            middle = time.perf_counter()
            os.write(raw, block)
            os.fdatasync(raw)
            plain += time.perf_counter() - middle
            logged += middle - begun
        directory.close()
    rate = batches * BATCH / logged
    said("append, one checksum each, one sync per 1,000", f"{plain / logged:.2f} of a plain write", "0.6")
    print(f"    {rate:,.0f} entries/s, plain {batches * BATCH / plain:,.0f}")


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
