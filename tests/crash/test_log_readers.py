"""Another process reads while one writes, rotates and collects: it sees whole records and stops nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fafo_run.queue.reader import QueueReader
from fafo_run.results.reader import open_reader
from tests.log_nouns import name_of

ROOT = Path(__file__).parents[2]
TOTAL = 6000


def test_readers_beside_a_writer(tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.log_child", str(tmp_path), str(TOTAL)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert writer.stdout
    recorded: set[int] = set()
    indexed = looks = 0
    for line in writer.stdout:
        word, number = line.split()
        if word != b"recorded":
            continue
        recorded.add(int(number))
        if len(recorded) % 500:
            continue
        reader = open_reader(tmp_path)
        looks += 1
        indexed += reader.is_indexed
        found = {record.identity for record in reader.effective()}
        assert {name_of(number) for number in recorded} <= found
        assert all(reader.find(name_of(number)) for number in list(recorded)[::50])
        assert reader.summary().total.outputs >= len(recorded)
        check = reader.duplicates()
        assert check.identities == () and check.damaged == () and check.undecodable == 0
        reader.close()
        queue = QueueReader.open(tmp_path)
        assert queue.depth() <= TOTAL and sum(1 for _ in queue.items()) <= TOTAL
    assert writer.wait() == 0
    writer.stdout.close()
    assert len(recorded) == TOTAL and looks == TOTAL // 500 and indexed > 0
