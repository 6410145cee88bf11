import errno
import os
import shutil

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from fafo_build.errors import StoreError
from fafo_run.item import FailureCode, FinishReason
from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import Disk, DiskFull, StoreGone, SyncFailed
from fafo_run.log.recovery import recover
from fafo_run.results.reader import open_reader
from fafo_run.results.results import Results
from tests.log_nouns import FAKE, failure, look, name_of, output, provenance, record

OTHER = provenance("explain", engine="fake")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def directory(path):
    with RunDirectory.own(path) as directory:
        yield directory


@pytest.fixture
def results(directory):
    results = Results(directory)
    yield results
    results.close()


def reopen(results: Results, directory: RunDirectory, *, clean: bool = False) -> Results:
    results.close(clean=clean)
    recover(directory)
    return Results(directory)


SAMPLES = [
    record(1),
    record(2, output((), finish="length"), server="http://a:1"),
    record(3, output((65_536, 2**32 - 1), cached=0), suffix=()),
    record(4, failure(message="1,000 tokens ☃")),
    evolve(record(5, failure(FailureCode.ROW_INVALID)), suffix=(), bounds=(), prompt_tokens=0, attempt=0),
    record(6, evolve(output(), finish_reason=FinishReason("stop", "END")), OTHER, lane=2048),
    record(7, evolve(output(), finish_reason=FinishReason("weird"))),
]


def test_records_come_back_exactly(results, directory):
    assert results.append(SAMPLES) == 0
    assert [results.find(sample.identity) for sample in SAMPLES] == SAMPLES
    results = reopen(results, directory)
    assert [results.find(sample.identity) for sample in SAMPLES] == SAMPLES
    assert sorted(results.scan(), key=lambda found: found.key) == SAMPLES
    assert results.find(name_of(99)) is None
    results.close()


@settings(deadline=None, max_examples=30)
@given(
    ids=st.lists(st.integers(0, 2**32 - 1)),
    text=st.text(),
    number=st.floats(allow_nan=False),
    matched=st.none() | st.integers(0, 2**32) | st.text(),
)
def test_any_record_round_trips(tmp_path_factory, ids, text, number, matched):
    sample = record(1, evolve(output(tuple(ids)), finish_reason=FinishReason(text, matched)), server=text)
    sample = evolve(sample, key=text, started=number)
    with RunDirectory.own(tmp_path_factory.mktemp("run")) as directory:
        results = Results(directory)
        results.append([sample])
        assert results.find(sample.identity) == sample
        results.close()


def test_the_first_output_counts(results):
    first, second = record(1), record(1, output((9,)))
    assert results.append([first]) == 0
    assert results.append([second, record(2), second]) == 2
    assert results.append([record(1, failure())]) == 1
    assert results.find(name_of(1)) == first
    assert [found.key for found in results.scan()] == [first.key, record(2).key]


def test_an_output_takes_the_place_of_a_failure(results, directory):
    failed, answered = record(1, failure(), server="http://a:1"), record(1)
    assert results.append([failed]) == 0
    assert name_of(1) in results and not results.has_output(name_of(1))
    assert results.append([record(1, failure(FailureCode.REJECTED))]) == 1
    for store in (results, results := reopen(results, directory)):
        if store is results:
            assert store.append([answered]) == 0
    assert results.has_output(name_of(1)) and results.find(name_of(1)) == answered
    assert list(results.scan()) == [failed, answered] and list(results.effective()) == [answered]
    total = results.summary().total
    assert (total.outputs, dict(total.failures), total.superseded) == (1, {}, 1)
    results = reopen(results, directory)
    assert results.summary().total == total
    results.reindex()
    assert results.summary().total == total
    results.close()


@pytest.mark.parametrize("clean", [False, True])
def test_what_is_new_was_recorded_since_the_results_were_opened(results, directory, clean):
    results.append([record(1), record(2, failure())])
    assert [results.is_new(name_of(number)) for number in (1, 2, 3)] == [True, True, False]
    results = reopen(results, directory, clean=clean)
    results.append([record(2), record(3)])
    for _ in range(2):
        assert [results.is_new(name_of(number)) for number in (1, 2, 3)] == [False, True, True]
        results.seal()
    results.close()


def test_a_failure_takes_the_place_of_one_of_an_earlier_retry(results, directory):
    first, again, late = (evolve(record(1, failure(message=str(at))), retry=at) for at in (0, 2, 1))
    assert results.append([first]) == 0 and results.is_done(name_of(1))
    assert not results.is_done(name_of(1), retry=1), "it was put back"
    assert results.append([again, record(2)]) == 0
    assert results.append([late, evolve(again, server="other"), first]) == 3

    def check():
        assert results.find(name_of(1)) == again and results.history(name_of(1)) == [first, again]
        assert results.is_done(name_of(1), retry=2) and not results.is_done(name_of(1), retry=3)
        assert results.is_done(name_of(2), retry=99) and not results.is_done(name_of(3))
        assert list(results.failures()) == [again]
        total = results.summary().total
        assert (total.outputs, total.failed, total.superseded) == (1, 1, 1)

    check()
    results = reopen(results, directory)
    check()
    results = reopen(results, directory, clean=True)
    check()
    assert results.append([record(1)]) == 0
    assert results.append([evolve(again, retry=9)]) == 1, "nothing comes after an output"
    assert results.history(name_of(1)) == [first, again, record(1)] and list(results.failures()) == []
    results.reindex()
    total = results.summary().total
    assert (total.outputs, total.failed, total.superseded) == (2, 0, 2)
    results.close()


def test_which_record_counts_does_not_depend_on_the_order_of_segments(results, directory):
    results.append([record(1, failure())])
    results.append([record(1, lane=1024)])
    results.close(clean=True)
    first, second = sorted(directory.results.glob("*.seg"))
    first.rename(first.with_name("00000003.seg"))
    second.rename(first)
    assert len(recover(directory).findings) == 2, "the headers say another number"
    results = Results(directory)
    assert results.find(name_of(1)) == record(1, lane=1024)
    total = results.summary().total
    assert (total.outputs, total.failed, total.superseded) == (1, 0, 1)
    assert list(results.effective()) == [record(1, lane=1024)]
    results.close()


def test_both_in_one_batch(results):
    assert results.append([record(1, failure()), record(1), record(1)]) == 1
    assert results.has_output(name_of(1))
    assert results.summary().total.superseded == 1 and results.summary().total.failed == 0


def test_summary(results, directory, path):
    results.append(SAMPLES)
    before = results.summary()
    total = before.total
    assert (total.outputs, total.failed, total.empty_outputs) == (5, 2, 1)
    assert total.failures == {"too_long": 1, "row_invalid": 1}
    assert total.finish_reasons == {"stop": 3, "length": 1, "weird": 1}
    assert total.prompt_tokens == 303 * 4 + 300
    assert (total.cached_tokens, total.expected_cached_tokens) == (4 * 256, 5 * 288)
    assert total.credited_tokens == 4 * 256
    assert total.output_tokens == 3 + 0 + 2 + 3 + 3
    keys = {(group.class_name, group.server) for group in before.groups}
    assert keys == {("judge", ""), ("judge", "http://a:1"), ("explain", "")}
    with_reader = open_reader(path)
    assert with_reader.summary() == before
    with_reader.close()
    results = reopen(results, directory)
    assert results.summary() == before
    results.close()


def test_a_surplus_of_cached_tokens_hides_no_lack(results):
    results.append([record(1, output(cached=999, expected=100)), record(2, output(cached=0, expected=100))])
    assert results.summary().total.credited_tokens == 100


def test_what_is_long_idle_is_sealed_and_still_found(directory, path):
    now = [0.0]
    results = Results(directory, idle=30.0, monotonic=lambda: now[0])
    results.append([record(1)])
    file = path / "results" / "00000001.seg"
    now[0] = 29.9
    results.seal_idle()
    assert look(file)[1].seal is None
    now[0] = 30.0
    results.seal_idle()
    assert look(file)[1].seal is not None
    assert results.find(name_of(1)) == record(1)
    assert results.append([record(1), record(2)]) == 1
    results.close()


def test_rotation_moves_segments_into_the_index(directory, path):
    results = Results(directory, segment_bytes=8192)
    results.append([record(0, failure())])
    for number in range(100):
        results.append([record(number)])
    files = sorted((path / "results").glob("*.seg"))
    assert len(files) > 2 and all(look(file)[1].seal for file in files[:-1])
    assert all(results.find(name_of(number)) == record(number) for number in range(100))
    summary = results.summary()
    assert (summary.total.outputs, summary.total.superseded) == (100, 1)
    assert results.append([record(number, output((4,))) for number in range(100)]) == 100
    reader = open_reader(path)
    assert reader.summary() == summary and all(reader.has_output(name_of(number)) for number in range(100))
    reader.close()
    results = reopen(results, directory)
    assert results.summary() == summary and results.append([record(50)]) == 1
    results.close()


def test_reader_beside_a_writer_with_and_without_an_index(results, directory, path):
    results.append([record(1)])
    reader = open_reader(path)
    results.append([record(2)])
    assert record(1).identity in reader and record(2).identity not in reader
    reader.close()
    reader = open_reader(path)
    assert reader.find(name_of(2)) == record(2) and len(list(reader.effective())) == 2
    reader.close()
    results.close()
    for file in (path / "index").iterdir():
        file.unlink()
    reader = open_reader(path)
    assert reader.find(name_of(2)) == record(2) and len(list(reader.scan())) == 2
    assert not list((path / "index").iterdir()), "a reader writes nothing"
    reader.close()


def test_duplicates_are_found_on_disk_without_the_index(results, directory):
    zeros = evolve(record(8), identity=bytes(16))
    results.append([record(1), record(2), record(3, failure()), zeros])
    results.append([record(3)])
    check = results.duplicates()
    assert (check.identities, check.outputs, check.failures, check.undecodable) == ((), 4, 1, 0)
    results.seal()
    results.close()
    (file,) = directory.results.glob("*.seg")
    (directory.results / "00000009.seg").write_bytes(file.read_bytes())
    reader = open_reader(directory.path)
    assert reader.summary().total.outputs == 4, "a copied file counts once"
    check = reader.duplicates()
    assert check.identities == tuple(sorted([bytes(16), name_of(1), name_of(2), name_of(3)]))
    assert check.damaged == ("00000009.seg: a copy of 00000001.seg",)
    reader.close()
    report = recover(directory)
    assert any("copy" in line for line in report.findings)
    results = Results(directory)
    check = results.duplicates()
    assert check.identities == () and check.damaged == ()
    assert (directory.quarantine / "results-00000009.seg").read_bytes() == file.read_bytes()
    assert results.append([record(20)]) == 0
    assert (directory.results / "00000010.seg").exists(), "a number that was there isn't used again"
    results.close()


def test_an_undecodable_record_is_counted(results, directory):
    results.append([record(1), record(2)])
    results.close()
    (file,) = directory.results.glob("*.seg")
    data = bytearray(file.read_bytes())
    data[4096 + 60] ^= 1  # the provenance, which stands twice only once the segment is sealed
    file.write_bytes(data)
    recover(directory)
    results = Results(directory)
    assert results.summary().undecodable == 2 and list(results.scan()) == []
    assert results.duplicates().undecodable == 2
    assert results.append([record(1)]) == 0, "what can't be read is done again"
    results.close()


def test_damaged_provenance_is_read_from_before_the_seal(results, directory):
    results.append([record(1)])
    results.close(clean=True)
    (file,) = directory.results.glob("*.seg")
    data = bytearray(file.read_bytes())
    data[4096 + 60] ^= 1
    file.write_bytes(data)
    results = Results(directory)
    assert results.find(name_of(1)) == record(1)
    assert len(results.duplicates().damaged) > 0
    results.close()


class FaultyDisk(Disk):
    room = 1 << 40
    fail_sync = False

    def pwrite(self, fd, data, offset):
        if offset + len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwrite(fd, data, offset)

    def fdatasync(self, fd):
        if self.fail_sync:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(fd)


def test_full_disk_records_nothing_and_can_go_on(path):
    disk = FaultyDisk()
    with RunDirectory.own(path, disk) as directory:
        results = Results(directory)
        results.append([record(1)])
        disk.room = 6000
        with pytest.raises(DiskFull):
            results.append([record(number) for number in range(2, 50)])
        assert name_of(2) not in results
        disk.room = 1 << 40
        assert results.append([record(2)]) == 0
        results.close()
        assert recover(directory).dropped_bytes == 0
        results = Results(directory)
        assert len(list(results.scan())) == 2
        results.close()


def test_nothing_is_acknowledged_after_a_failed_sync(path):
    disk = FaultyDisk()
    with RunDirectory.own(path, disk) as directory:
        results = Results(directory)
        disk.fail_sync = False
        results.append([record(1)])
        disk.fail_sync = True
        with pytest.raises(SyncFailed):
            results.append([record(2)])
        disk.fail_sync = False
        assert name_of(2) not in results
        with pytest.raises(SyncFailed):
            results.append([record(3)])
        results.close(clean=True)


def test_reading_where_no_store_is(tmp_path):
    with pytest.raises(StoreError, match="no store"):
        open_reader(tmp_path)


def test_provenance_of_two_engines_in_one_segment(results):
    again = evolve(FAKE, engine_version="2.0")
    results.append([record(1), record(2, said=again)])
    assert [found.provenance.engine_version for found in results.scan()] == ["1.0", "2.0"]


def test_the_folder_is_gone_while_results_are_recorded(results, directory):
    results.append([record(1)])
    shutil.rmtree(directory.path)
    with pytest.raises(StoreGone, match="the run's folder is gone") as caught:
        results.append([record(2)])
    assert caught.value.problems[0].cure
    with pytest.raises(StoreGone):
        results.append([record(3)])
    results.close(clean=True)


@pytest.mark.parametrize("what", ["run", "results", "segment"])
def test_a_new_segment_in_a_folder_that_is_gone(results, directory, what):
    results.append([record(1)])
    (file,) = directory.results.glob("*.seg")
    if what == "segment":
        file.unlink()
    else:
        shutil.rmtree(directory.path if what == "run" else directory.results)
    expected = "a file of the run is gone" if what == "segment" else "the run's folder is gone"
    with pytest.raises(StoreGone, match=expected):
        results.append([record(2, lane=9), record(3)])


def test_a_folder_that_is_moved_takes_no_new_segment(results, directory):
    results.append([record(1)])
    directory.path.rename(directory.path.with_name("moved"))
    with pytest.raises(StoreGone, match="the run's folder is gone"):
        results.append([record(2, lane=9)])
    directory.path.with_name("moved").rename(directory.path)


def test_a_file_system_that_counts_no_names(path):
    class Counting(Disk):
        def links(self, fd):
            return 0

    with RunDirectory.own(path, Counting()) as directory:
        results = Results(directory)
        assert results.append([record(1)]) == 0
        results.close(clean=True)
