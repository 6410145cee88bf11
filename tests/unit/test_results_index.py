import os
import shutil

import lmdb
import pytest

from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import StoreGone
from fafo_run.log.recovery import recover
from fafo_run.results.index import Index, Merged, Place, UnusableIndexError
from fafo_run.results.reader import open_reader
from fafo_run.results.results import Results
from fafo_run.results.summary import Tally
from tests.log_nouns import name_of, output, record


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "run"
    with RunDirectory.own(path) as directory:
        results = Results(directory)
        results.append([record(number) for number in range(20)])
        results.close(clean=True)
    return path


def delete(path):
    shutil.rmtree(path / "index")


def garbage(path):
    (path / "index" / "data.mdb").write_bytes(os.urandom(100_000))


def empty(path):
    (path / "index" / "data.mdb").write_bytes(b"")


def cut(path):
    # Its pages end within the tree: LMDB's reader dies of that, so only a child may find out.
    size = (path / "index" / "data.mdb").stat().st_size
    os.truncate(path / "index" / "data.mdb", 8192 if size > 8192 else 0)
    with RunDirectory.own(path) as directory:
        directory.mark_running()


def lie(path):
    """Add an item that no segment holds."""
    with RunDirectory.own(path) as directory:
        index = Index.open(path / "index", directory.store, write=True)
        ((uuid, merged),) = index.merged().items()
        index.merge(uuid, merged, {name_of(99): Place(1, 4096, True)}, {})
        index.close()


def foreign(path):
    lie(path)
    with lmdb.open(str(path / "index"), max_dbs=4) as env, env.begin(write=True) as transaction:
        transaction.put(b"store", b"f" * 32, db=env.open_db(b"meta", txn=transaction))


def of_another_format(path):
    lie(path)
    with lmdb.open(str(path / "index"), max_dbs=4) as env, env.begin(write=True) as transaction:
        transaction.put(b"format", b"0", db=env.open_db(b"meta", txn=transaction))


def ahead(path):
    with RunDirectory.own(path) as directory:
        index = Index.open(path / "index", directory.store, write=True)
        index.merge(b"z" * 16, Merged(9, 9, Tally()), {name_of(99): Place(9, 4096, True)}, {})
        index.close()


def wrong_places(path):
    with RunDirectory.own(path) as directory:
        index = Index.open(path / "index", directory.store, write=True)
        (uuid,) = index.merged()
        places = {name_of(number): Place(1, 4096, True) for number in range(20)}
        index.merge(uuid, index.merged()[uuid], places, {})
        index.close()


BROKEN = [delete, garbage, empty, cut, foreign, of_another_format, ahead, wrong_places]


@pytest.mark.parametrize("spoil", BROKEN)
def test_a_writer_rebuilds_an_index_that_is_not_to_be_trusted(path, spoil):
    spoil(path)
    with RunDirectory.own(path) as directory:
        recover(directory)
        results = Results(directory)
        assert name_of(99) not in results
        assert [results.find(name_of(number)) for number in range(20)] == [record(at) for at in range(20)]
        assert results.find(name_of(99)) is None
        assert results.append([record(3, output((7,)))]) == 1
        assert results.summary().total.outputs == 20
        results.close(clean=True)
        index = Index.open(directory.index, directory.store, write=False)
        assert len(index.find(name_of(number) for number in range(20))) == 20
        index.close()


@pytest.mark.parametrize("spoil", BROKEN)
def test_a_reader_does_without(path, spoil):
    spoil(path)
    reader = open_reader(path)
    assert [reader.find(name_of(number)) for number in range(20)] == [record(at) for at in range(20)]
    assert reader.summary().total.outputs == 20
    reader.close()


def test_an_old_index_is_caught_up(path, tmp_path):
    shutil.copytree(path / "index", tmp_path / "old")
    with RunDirectory.own(path) as directory:
        results = Results(directory)
        results.append([record(30)])
        results.close(clean=True)
    delete(path)
    shutil.copytree(tmp_path / "old", path / "index")
    with RunDirectory.own(path) as directory:
        results = Results(directory)
        assert results.has_output(name_of(30)) and results.has_output(name_of(3))
        results.close()


def test_the_map_grows(tmp_path):
    with RunDirectory.own(tmp_path / "run") as directory:
        results = Results(directory, map_size=1 << 17)
        for start in range(0, 6000, 2000):
            results.append([record(number) for number in range(start, start + 2000)])
            results.seal()
        assert all(results.has_output(name_of(number)) for number in range(6000))
        results.close()
        results = Results(directory, map_size=1 << 17)
        assert results.summary().total.outputs == 6000 and results.find(name_of(5999)) == record(5999)
        results.close()


def test_nothing_of_a_merge_is_there_without_the_rest(tmp_path):
    index = Index.create(tmp_path / "index", "s", map_size=1 << 16)
    places = {name_of(number): Place(1, number, True) for number in range(5000)}
    index.merge(b"u" * 16, Merged(1, 5, Tally()), places, {})
    assert len(index.find(places)) == 5000 and list(index.merged()) == [b"u" * 16]
    index.close()


def test_open_makes_nothing(tmp_path):
    with pytest.raises(UnusableIndexError, match="no index"):
        Index.open(tmp_path / "index", "s", write=True)
    assert not (tmp_path / "index").exists()


def test_no_index_in_a_folder_that_is_gone(tmp_path):
    with pytest.raises(StoreGone, match="the run's folder is gone"):
        Index.create(tmp_path / "run" / "index", "s")
