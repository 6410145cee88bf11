"""How fast the index takes results in, and how long a store with many results takes to open.

    python benchmarks/index.py [MILLIONS]

Segments of 625,000 small records each are written by the log's own writer, and their hints made from them;
then the index is filled segment by segment, and built anew from the hints. The yardstick is LMDB alone: the
same keys in sorted order, a million per transaction. Opening is measured in a process of its own: after a
clean stop, after a kill, and after a power cut. Takes about 2 GB of disk per 10 million.
"""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
from attrs import evolve

sys.path.insert(0, str(Path(__file__).parents[1]))

from fafo_build.project.declaration import Run
from fafo_run.item import FinishReason, Output, Record, pack_ids
from fafo_run.log.batch import Frames
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import Header, Kind, SegmentKind
from fafo_run.log.fs import Disk
from fafo_run.log.payload import ProvenanceCache, number_provenance
from fafo_run.log.segment import SegmentWriter
from fafo_run.results.arrays import ArrayIndex
from fafo_run.results.catalog import Catalog
from fafo_run.results.files import ResultsFiles
from fafo_run.results.index import Index, build
from fafo_run.results.loading import Loader
from fafo_run.results.payload import draft
from fafo_run.results.place import OUTPUT_RANK
from fafo_run.results.table import Table
from fafo_run.run.store import RunReader, RunStore
from tests.log_nouns import FAKE

SEGMENT = 625_000
"""Records per segment: of such small ones some 100 MiB."""
BATCH = 25_000
"""Records per write."""


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def took(what: Callable[[], object]) -> float:
    before = cpu()
    what()
    return cpu() - before


def said(name: str, figure: str, wanted: str = "") -> None:
    print(f"{name:58} {figure:>28}" + (f"   wanted: {wanted}" if wanted else ""), flush=True)


def record() -> Record:
    outcome = Output(pack_ids(()), FinishReason("stop"), 0, 0)
    return Record(
        identity=bytes(16), provenance=FAKE, key="", sample=0, seed=0, content_hash=b"", suffix=(), bounds=(),
        prompt_tokens=0, lane=512, attempt=1, server="", started=1.0, seconds=0.5, outcome=outcome,
    )  # fmt: skip


def write(directory: RunDirectory, number: int, names: bytes) -> None:
    """Write a sealed segment by the log's own writer: one payload, an identity each."""
    made = draft(record(), ProvenanceCache())
    header = Header(SegmentKind.RESULTS, number, hashlib.md5(b"%d" % number).digest(), *made.route, 0)
    writer = SegmentWriter.create(directory.disk, directory.results, header)
    said_ = number_provenance(0, made.provenance)
    writer.stage(Frames.unnamed(Kind.PROVENANCE, [said_]))
    writer.sync()
    for start in range(0, len(names), 16 * BATCH):
        piece = names[start : start + 16 * BATCH]
        identities = [piece[at : at + 16] for at in range(0, len(piece), 16)]
        writer.stage(Frames([made.word] * len(identities), identities, [made.payload] * len(identities)))
        writer.sync()
    writer.seal([said_])
    writer.close()


def raw(path: Path, names: np.ndarray) -> float:
    """Put the same keys into LMDB, sorted, a million at a time; return seconds of CPU."""
    before = cpu()
    path.mkdir()
    with lmdb.open(str(path), map_size=16 << 30) as environment:
        for start in range(0, len(names), 1_000_000):
            data = np.sort(names[start : start + 1_000_000]).tobytes()
            pairs = [(data[at : at + 16], b"\0" * 20) for at in range(0, len(data), 16)]
            with environment.begin(write=True) as transaction:
                transaction.cursor().putmulti(pairs)
    spent = cpu() - before
    shutil.rmtree(path)
    return spent


def opened(folder: Path, what: str) -> None:
    """Report the CPU of opening, in this process and the children that it waited for."""
    before = cpu()
    if what == "store":
        RunStore.open(folder, Run()).close(clean=True)
    else:
        with RunReader.open(folder) as reader:
            assert reader.results.summary().total.outputs
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(cpu() - before + children.ru_utime + children.ru_stime)


def in_a_process(*arguments: str) -> float:
    command = [sys.executable, __file__, *arguments]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    millions = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    count = int(millions * 1_000_000)
    each = in_a_process("remember")
    said("memory of a record in a segment that isn't sealed", f"{each:.0f} bytes", "under 200")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        names = np.frombuffer(os.urandom(16 * count), "V16")
        plain = raw(Path(name) / "raw", names)
        said("LMDB alone, sorted, a million per transaction", f"{count / plain:,.0f} /CPU s")
        with RunDirectory.own(folder) as directory:
            for number, start in enumerate(range(0, count, SEGMENT), 1):
                write(directory, number, names[start : start + SEGMENT].tobytes())
            files = ResultsFiles(directory.disk, directory.results)
            loader = Loader(directory.disk, files, owner=True)
            spent = took(lambda: loader.load(1))
            said("hint of one segment, from its entries", f"{min(SEGMENT, count) / spent:,.0f} /CPU s")
            for sequence in files.list():
                loader.load(sequence)
            fill(directory, files, loader, count, plain)
        opening(folder, count)


def remember() -> None:
    """Report the memory that a record takes in a segment that isn't sealed, in this process alone."""
    with tempfile.TemporaryDirectory() as name:
        files = ResultsFiles(Disk(), Path(name))
        catalog = Catalog(files, ArrayIndex([], files.sum_of))
        one = record()
        before = resident()
        for start in range(0, SEGMENT, 2_000):
            batch = range(start, start + 2_000)
            made = [(evolve(one, identity=os.urandom(16)), 4096 + 160 * at, OUTPUT_RANK) for at in batch]
            catalog.note(bytes(16), 1, made, {})
        print((resident() - before) / SEGMENT)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fill(directory: RunDirectory, files: ResultsFiles, loader: Loader, count: int, plain: float) -> None:
    index, store, judge = directory.index, directory.store, files.sum_of
    tables = [table for at in files.list() if isinstance(table := loader.load(at), Table)]
    assert sum(table.count for table in tables) == count

    build(index, store, [], judge)
    live = Index.open(index, store, write=True)

    def merge() -> None:
        for table in tables:
            live.merge([table], judge)

    spent = took(merge)
    live.close()
    said(f"merged segment by segment, {SEGMENT:,} records each", rate(count, spent, plain), "250,000 /CPU s")

    def rebuild() -> None:
        found = [table for at in files.list() if isinstance(table := loader.load(at), Table)]
        build(index, store, found, judge)

    said("built anew from the hints", rate(count, took(rebuild), plain), "250,000 /CPU s")
    size = (index / "data.mdb").stat().st_size
    said("    bytes per identity", f"{size / count:.0f}")


def rate(count: int, spent: float, plain: float) -> str:
    return f"{count / spent:,.0f} /CPU s, {plain / spent:.2f} of LMDB"


def opening(folder: Path, count: int) -> None:
    RunStore.open(folder, Run()).close(clean=True)
    for what, wanted in (("store", "under 2 s"), ("reader", "under 2 s")):
        spent = in_a_process("open", str(folder), what)
        said(f"opening as a {what} after a clean stop, {count:,} results", f"{spent:.2f} s of CPU", wanted)
    with RunDirectory.own(folder) as directory:
        directory.mark_running()
    spent = in_a_process("open", str(folder), "reader")
    said("opening as a reader after a kill, a child's look included", f"{spent:.2f} s of CPU")
    (folder / "RUNNING").write_text('{"boot_id": "another"}')
    spent = in_a_process("open", str(folder), "reader")
    said("opening as a reader after a power cut, from the hints", f"{spent:.2f} s of CPU")
    spent = in_a_process("open", str(folder), "store")
    said("opening as a store after a power cut, from the hints", f"{spent:.2f} s of CPU")


if __name__ == "__main__":
    if sys.argv[1:2] == ["open"]:
        opened(Path(sys.argv[2]), sys.argv[3])
    elif sys.argv[1:2] == ["remember"]:
        remember()
    else:
        main()
