"""`fafo store check` beside a run that rotates, collects, is killed and starts again: no false alarm."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from fafo_run.log.actions import Level
from fafo_run.run.check import check

ROOT = Path(__file__).parents[2]
TOTAL = 6000


def test_check_beside_a_writer_that_is_killed_and_starts_again(tmp_path):
    path, looks = tmp_path / "run", 0
    for kill_after in (3, 6, None):
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.log_child", str(path), str(TOTAL)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert writer.stdout
        writer.stdout.readline()
        drain = threading.Thread(target=writer.stdout.read)
        drain.start()
        rounds = 0
        while writer.poll() is None:
            found = check(path)
            assert found.sound, [of for of in found.findings if of.why.level is Level.DAMAGE]
            rounds += 1
            if rounds == kill_after:
                writer.kill()
        drain.join()
        writer.stdout.close()
        looks += rounds
        assert check(path).sound
    found = check(path)
    assert writer.returncode == 0 and looks > 3
    assert (found.outputs, found.waiting, found.findings) == (TOTAL, 0, ())
