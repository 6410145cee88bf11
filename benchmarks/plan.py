"""What `fafo plan` costs for a source of a million short rows, and of three million: CPU time, peak memory.

    python benchmarks/plan.py [ROWS …]

Memory should hardly grow with the rows, and time as they do.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.helpers import FAFO, fafo, write_project

ROWS = (1_000_000, 3_000_000)
CHILD = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
"""Only a process with no other children knows what one of them took."""


def measure(rows: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        fafo(write_project(Path(name), rows), "build", "--quiet")
        command = [sys.executable, "-c", CHILD, str(FAFO), "-C", name, "plan", "--cache-tokens", "400000"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    print(f"{rows:>12,} rows: {float(said[0]):6.1f} s of CPU, {int(said[1]) / 1024:6.0f} MiB", flush=True)


if __name__ == "__main__":
    for count in [int(each) for each in sys.argv[1:]] or ROWS:
        measure(count)
