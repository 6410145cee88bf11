"""What the servers of the crash tests share: forked workers, and an oracle that is told what they do.

A forked child needs no imports, so that there are many in a second.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from fafo_build.errors import StoreError
from fafo_run.item import Claim
from fafo_run.log.fs import Disk
from tests.disk.life import make_item, make_record
from tests.disk.oracle import Broken, Oracle
from tests.disk.watched import SelfKilling

LANES = 3
BROKEN = 3
"""The exit code of a worker that found the rule broken."""


class Unkilled(Disk):
    """Syncs nothing: a kill leaves the page cache alone, and there are thousands of them."""

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_dir(self, path: Path) -> None:
        pass


class FastSelfKilling(SelfKilling, Unkilled):
    """Kills itself, and syncs nothing."""


Say = Callable[[str, Sequence[int]], None]
"""Says a word and numbers to whoever holds the oracle."""


class Told(Oracle):
    """An oracle that is told by lines, each written before or after what it says was done."""

    def hear(self, line: str) -> None:
        word, *said = line.split()
        numbers = [int(number) for number in said]
        items = [make_item(number, LANES) for number in numbers]
        match word:
            case "offer":
                self.offer_items(items)
                for one in items:
                    # What a claim's record holds depends on its item alone.
                    self.offer_records([make_record(Claim(b"", 0, 0, 1, one))])
            case "queued":
                self.acknowledge_items(items)
            case "recorded":
                for one in items:
                    self.acknowledge_records(self.records[one.identity])


def forked(does: Callable[[], object]) -> int:
    """Run in a child, which says with its exit code what became of it; return its process id."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            does()
            code = 0
        except Broken:
            code = BROKEN
            traceback.print_exc()
        except (StoreError, OSError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(code)
    return pid


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
