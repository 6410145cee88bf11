import os
import shutil
import struct

import lmdb
import numpy as np
import pytest
from attrs import evolve

from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import StoreGone
from fafo_run.log.recovery import recover
from fafo_run.results.environment import UnusableIndexError
from fafo_run.results.index import Index, build
from fafo_run.results.place import OUTPUT_RANK, Place, in_order, make_rows
from fafo_run.results.reader import open_reader
from fafo_run.results.results import Results
from fafo_run.results.summary import Tally
from fafo_run.results.table import Table
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


def table_of(uuid: bytes, sequence: int, offsets: dict[int, int], rank: int = OUTPUT_RANK) -> Table:
    """The table of a made-up segment: per item's number an offset."""
    identities = b"".join(name_of(number) for number in offsets)
    rows = make_rows(
        sequence, identities, np.array([*offsets.values()], "u8"), np.array([rank] * len(offsets), "u4")
    )
    return Table.of(uuid, sequence, 9, Tally(), in_order(rows))


def unjudged(identity, place):
    return Tally()


def lie(path):
    """Add an item that no segment holds."""
    with RunDirectory.own(path) as directory:
        index = Index.open(path / "index", directory.store, write=True)
        ((uuid, was),) = index.merged().items()
        table = evolve(table_of(uuid, 1, {99: 4096}), size=was.size, tally=was.tally)
        index.merge([table], unjudged)
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
        index.merge([table_of(b"z" * 16, 9, {99: 4096})], unjudged)
        index.close()


def wrong_places(path):
    with RunDirectory.own(path) as directory:
        index = Index.open(path / "index", directory.store, write=True)
        ((uuid, was),) = index.merged().items()
        index.close()
        table = evolve(table_of(uuid, 1, dict.fromkeys(range(20), 4096)), size=was.size, tally=was.tally)
        build(directory.index, directory.store, [table], unjudged)


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


def test_a_transaction_that_does_not_fit_is_repeated_whole(tmp_path):
    (tmp_path / "index").mkdir()
    build(tmp_path / "index", "s", [], unjudged, map_size=1 << 16)
    index = Index.open(tmp_path / "index", "s", write=True, map_size=1 << 16)
    index.merge([table_of(b"u" * 16, 1, {number: 8 * number for number in range(5000)})], unjudged)
    assert index.find(map(name_of, range(5001))) == {
        name_of(number): Place(1, 8 * number, OUTPUT_RANK) for number in range(5000)
    }
    assert list(index.merged()) == [b"u" * 16]
    index.close()


def test_open_makes_nothing(tmp_path):
    with pytest.raises(UnusableIndexError, match="no index"):
        Index.open(tmp_path / "index", "s", write=True)
    assert not (tmp_path / "index").exists()


def test_no_index_in_a_folder_that_is_gone(tmp_path):
    with pytest.raises(StoreGone, match="the run's folder is gone"):
        build(tmp_path / "run" / "index", "s", [], unjudged)


@pytest.mark.parametrize("begins", ["clean", "killed"])
def test_damage_that_only_a_write_meets_costs_the_index_and_no_record(path, begins):
    """The list of free pages: no reader looks at it, so neither does the child that tries the index."""
    _grow(path)
    data = path / "index" / "data.mdb"
    held = bytearray(data.read_bytes())
    for meta in (0, 4096):
        (root,) = struct.unpack_from("<Q", held, meta + _FREE_ROOT)
        held[root * 4096 : root * 4096 + 4096] = os.urandom(4096)
    data.write_bytes(held)
    with RunDirectory.own(path) as directory:
        if begins == "killed":
            directory.mark_running()
        index = Index.open(directory.index, directory.store, write=True)
        with pytest.raises(UnusableIndexError):
            index.merge([table_of(b"u" * 16, 9, {99: 4096})], unjudged)
        index.close()
        results = Results(directory)
        results.append([record(30)])
        results.seal()
        results.append([record(31)])
        results.close(clean=True)
        again = Results(directory)
        assert all(again.has_output(name_of(number)) for number in (*range(20), 25, 30, 31))
        assert again.is_indexed and again.summary().total.outputs == 23
        again.close(clean=True)


_FREE_ROOT = 16 + 24 + 40
"""Where in a meta page the root of the free pages' tree is: behind the page's header, magic, version, address
and size, and the seven fields before it (`MDB_meta` and `MDB_db` of LMDB 0.9, mdb.c).
"""


def _grow(path):
    """Change the index once more, so that it has free pages."""
    with RunDirectory.own(path) as directory:
        results = Results(directory)
        results.append([record(25)])
        results.close(clean=True)
