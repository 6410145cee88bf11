"""How long `fafo --help` takes, beside what any click program takes on this machine."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 15
FAFO = str(Path(sys.executable).with_name("fafo"))


def milliseconds(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return 1000 * (time.perf_counter() - begun)


def main() -> None:
    commands = {"fafo --help": [FAFO, "--help"], "python + click": [sys.executable, "-c", "import click"]}
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            times[name].append(milliseconds(command))
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, median in medians.items():
        print(f"{name:16} {median:7.1f} ms  (best {min(times[name]):.1f})")
    print(f"ratio            {medians['fafo --help'] / medians['python + click']:7.2f}")


if __name__ == "__main__":
    main()
