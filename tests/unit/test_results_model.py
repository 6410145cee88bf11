"""The results against a dict: any records in any order, sealed, killed and rebuilt anywhere."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import evolve
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fafo_run.item import FailureCode, Record
from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import Disk
from fafo_run.log.recovery import recover
from fafo_run.results.arrays import ArrayIndex
from fafo_run.results.catalog import Catalog, _pack, _unpack
from fafo_run.results.files import ResultsFiles
from fafo_run.results.place import OUTPUT_RANK, Place, rank_of
from fafo_run.results.reader import ResultsReader, open_reader
from fafo_run.results.results import Results
from fafo_run.results.summary import Tally
from tests.log_nouns import failure, name_of, output, record

CODES = (FailureCode.TOO_LONG, FailureCode.REJECTED)
NUMBERS = range(4)

records = st.builds(
    lambda number, lane, retry, code, tokens: evolve(
        record(number, output(tuple(range(tokens))) if code is None else failure(code), lane=lane),
        retry=retry,
    ),
    st.sampled_from(NUMBERS),
    st.sampled_from((512, 9)),
    st.integers(0, 3),
    st.none() | st.sampled_from(CODES),
    st.integers(0, 3),
)
DEEDS = ("seal", "seal one", "kill", "stop", "reindex", "unindexed")
steps = st.lists(st.lists(records, max_size=4) | st.sampled_from(DEEDS), max_size=14)


def in_order(found: Iterable[Record]) -> list[Record]:
    return sorted(found, key=lambda one: one.key)


class Model:
    """All that was accepted, per identity, in order."""

    def __init__(self) -> None:
        self.kept: dict[bytes, list[Record]] = {}

    def append(self, batch: list[Record]) -> int:
        dropped = 0
        for one in batch:
            known = self.kept.setdefault(one.identity, [])
            if known and rank_of(one) <= rank_of(known[-1]):
                dropped += 1
            else:
                known.append(one)
        return dropped

    def check(self, results: ResultsReader) -> None:
        total = Tally()
        superseded = 0
        for number in NUMBERS:
            known = self.kept.get(name_of(number), [])
            assert results.history(name_of(number)) == known
            assert results.find(name_of(number)) == (known[-1] if known else None)
            for retry in range(4):
                done = bool(known) and rank_of(known[-1]) >= retry
                assert results.is_done(name_of(number), retry) == done
            superseded += max(0, len(known) - 1)
            if known:
                total.add(known[-1])
        found = results.summary().total
        expected = total.summary().total
        assert found.superseded == superseded
        expected.superseded = superseded
        assert found == expected
        counting = [known[-1] for known in self.kept.values() if known]
        failed = [one for one in counting if rank_of(one) != OUTPUT_RANK]
        assert in_order(results.effective()) == in_order(counting)
        assert in_order(results.failures()) == in_order(failed)


# A failure goes into the index while what supersedes it is still in memory; and the other way round.
FAILED = [evolve(record(0, failure(), lane=9), retry=retry) for retry in (0, 2)]
ACROSS = [[FAILED[0], record(1, lane=9)], [evolve(record(0, failure()), retry=1)], [FAILED[1]], [record(0)]]


@settings(deadline=None, max_examples=60)
@given(steps)
@example([*ACROSS, "seal one", "seal one", "kill"])
@example([*ACROSS[:3], "seal one", [record(0)], "seal one", "unindexed"])
@example([*reversed(ACROSS), "seal one", "reindex", *ACROSS, "seal one"])
@example([ACROSS[0], "seal", *ACROSS[1:], "seal one", "seal one"])
def test_what_counts_is_what_a_dict_says(steps):
    with TemporaryDirectory() as name, RunDirectory.own(Path(name) / "run") as directory:
        model = Model()
        results = Results(directory)
        for step in steps:
            if isinstance(step, list):
                assert results.append(step) == model.append(step)
            elif step == "seal":
                results.seal()
            elif step == "seal one":
                # As when one of several is full, or idle.
                for segment in list(results._appender.open.values())[:1]:
                    results._roll(segment)
            elif step == "reindex":
                results.reindex()
            else:
                results.close(clean=step == "stop")
                if step == "unindexed":
                    for file in directory.index.iterdir():
                        file.unlink()
                    reader = open_reader(directory.path)
                    model.check(reader)
                    reader.close()
                recover(directory)
                results = Results(directory)
            model.check(results)
        reader = open_reader(directory.path)
        model.check(reader)
        reader.close()
        results.close(clean=True)


@given(
    st.integers(0, 9_999_999_999),
    st.integers(0, 2**36 - 1).map(lambda at: at * 8),
    st.integers(0, OUTPUT_RANK),
)
def test_a_place_is_one_number(sequence, offset, rank):
    assert _unpack(_pack(sequence, offset, rank)) == Place(sequence, offset, rank)


def test_a_record_in_memory_takes_less_than_200_bytes(tmp_path):
    files = ResultsFiles(Disk(), tmp_path)
    catalog = Catalog(files, ArrayIndex([], files.sum_of))
    one = record(1)
    names = [number.to_bytes(16, "big") for number in range(45_000)]
    tracemalloc.start()
    # 43,690 records are the most that a table of 65,536 slots takes: one more, and there is twice the room.
    for start in range(0, len(names), 1000):
        noted = [
            (evolve(one, identity=bytes(bytearray(name))), 4096 + 8 * at, OUTPUT_RANK)
            for at, name in enumerate(names[start : start + 1000], start)
        ]
        catalog.note(bytes(16), 1, noted, {})
        del noted
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The allocator rounds the 49 bytes of an identity up to 64.
    assert used / len(names) + 15 < 200
