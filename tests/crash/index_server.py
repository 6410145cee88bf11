"""Opens stores whose index isn't what it should be, in children that may die of it.

A process of its own, since it forks: `python -m tests.crash.index_server FOLDER …` prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.crash.forking import Unkilled, ended, forked
from tests.disk.life import Life
from tests.disk.oracle import Broken, Oracle
from tests.disk.proof import Bench
from tests.log_nouns import failure


def with_index_spoiled(folder: Path, cycles: int, seed: int) -> list[str]:
    """Open a store whose index isn't what it should be, in a child that may die of it; return what was wrong.

    The index is deleted, old, ahead of the segments, cut, or has other bytes in it; after a clean stop and
    after a kill. Other bytes may hide a record, since LMDB has no checksums: it is there when the index is
    made anew.
    """
    chance = random.Random(seed)
    wrong: list[str] = []
    for cycle in range(cycles):
        path = folder / f"index-{cycle}"
        bench = Bench(Unkilled(), life=Life(Unkilled(), path, indexed=True, segment_bytes=1))
        older = None
        for first in range(0, 12, 4):
            bench.enqueue(range(first, first + 4))
            bench.complete(4, failure() if first == 4 else None)
            if first == 4:
                bench.life.drop()
                older = Path(shutil.copytree(path, folder / f"older-{cycle}"))
                bench.life = Life(Unkilled(), path, indexed=True, segment_bytes=1)
        if chance.random() < 0.5:
            bench.life.close()
        else:
            bench.life.drop()
        how = SPOILS[cycle % len(SPOILS)]
        spoil(path, older, how, chance)

        def does(path: Path = path, oracle: Oracle = bench.oracle, how: str = how) -> None:
            again = Bench(Unkilled(), oracle, Life(Unkilled(), path, indexed=True))
            if how == "bytes":
                for identity, records in oracle.records.items():
                    found = again.life.results.find(identity)
                    if found is not None and found not in records:
                        raise Broken(f"invented record: {found}")
                again.life.results.reindex()
            oracle.check(again.life)
            again.enqueue([100, 101])
            again.complete(2)
            again.reopen()
            oracle.check(again.life)
            if again.life.results.duplicates().identities:
                raise Broken("two outputs of one identity")
            again.life.close()

        code = ended(forked(does))
        if code:
            wrong.append(f"seed {seed}, {how}, cycle {cycle}: ended with {code}")
    return wrong


def trusting() -> AbstractContextManager[Any]:
    """A seeded fault: whatever index is there is opened, and believed."""
    trusted = patch("fafo_run.results.results.is_trusted", lambda *_: True)
    believed = patch("fafo_run.results.results.unmerged", lambda *_: [])
    both = contextlib.ExitStack()
    both.enter_context(trusted)
    both.enter_context(believed)
    return both


SPOILS = ["deleted", "old", "ahead", "bytes", "cut", "no size", "swapped"]


def spoil(path: Path, older: Path, how: str, chance: random.Random) -> None:
    index, data = path / "index", path / "index" / "data.mdb"
    match how:
        case "deleted":
            shutil.rmtree(index)
        case "old":
            shutil.rmtree(index)
            shutil.copytree(older / "index", index)
        case "ahead":
            # Of a copy of the store in which more was done.
            other = Path(shutil.copytree(path, older.with_name(older.name + "-ahead")))
            bench = Bench(Unkilled(), life=Life(Unkilled(), other, indexed=True))
            bench.enqueue([50, 51])
            bench.complete(2)
            bench.life.close()
            shutil.rmtree(index)
            shutil.copytree(other / "index", index)
        case "bytes":
            held = bytearray(data.read_bytes())
            for _ in range(chance.randrange(1, 2000)):
                held[chance.randrange(len(held))] = chance.randrange(256)
            data.write_bytes(held)
        case "cut":
            os.truncate(data, chance.randrange(data.stat().st_size))
        case "no size":
            (index / "SIZE").unlink(missing_ok=True)
            os.truncate(data, data.stat().st_size // 2)
        case "swapped":
            shutil.copy(older / "index" / "data.mdb", data)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cycles", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", choices=["", "trusting"], default="")
    asked = parser.parse_args()
    with trusting() if asked.fault else contextlib.nullcontext():
        print(json.dumps({"wrong": with_index_spoiled(asked.folder, asked.cycles, asked.seed)}))


if __name__ == "__main__":
    main()
