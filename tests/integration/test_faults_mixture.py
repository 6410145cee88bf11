"""All faults at random at three servers, for 20,000 items: nothing lost, nothing doubled, flat memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import kill, start, until, write_project
from tests.integration.faults_kit import ask_these, asked, prove, recorded, run_here
from tests.serving import faulty_processes

ITEMS = 20_000
EARLY = 5_000
SHARE = 0.004
"""How many of the requests meet a fault: few enough that no item meets three of them by chance."""
FLAT = 24
"""MiB that the process may grow by while it does the last three quarters of the items."""


def peak(pid: int) -> float:
    """Return the most memory that a process has had, in MiB; 0 of one that has just ended."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_thousand_items_and_all_faults_at_random(tmp_path: Path) -> None:
    with faulty_processes(3, seconds_per_token=0.0005, metrics=True) as servers:
        sound = ask_these(write_project(tmp_path / "sound", ITEMS), servers)
        expected = run_here(sound).recorded.outputs
        assert len(expected) == ITEMS
        refused, deadly = sorted(expected)[1::4_000], sorted(expected)[2::7_000]
        folder = ask_these(write_project(tmp_path / "faulty", ITEMS), servers)
        for seed, server in enumerate(servers):
            server.reset()
            server.on("refuse", identities=refused)
            server.on("poison", identities=deadly, seconds=0.2)
            server.mix(seed, SHARE)
        process = start(folder, "run", "--quiet")
        mib = []
        try:
            until(lambda: sum(server.count() for server in servers) >= EARLY, "a quarter is done", 300)

            def ended() -> bool:
                mib.append(peak(process.pid))
                return process.poll() is not None

            until(ended, "the run ends", 600)
            _, said = process.communicate()
        finally:
            kill(process)
        assert process.returncode == 3, said
        failures = dict.fromkeys(refused, "rejected") | dict.fromkeys(deadly, "attempts_exhausted")
        records = prove(recorded(folder), expected, servers, failures)
    met = {kind for record in records for kind, count in record.met.items() if count}
    assert len(met) >= 15, f"only these were met: {sorted(met)}"
    cost = asked(records)
    assert sum(cost.values()) <= 1.1 * ITEMS
    assert max(cost.values()) <= 10
    assert all(cost[name] == 1 for name in refused)
    assert max(mib) - mib[0] <= FLAT, f"{mib[0]:.0f} MiB at {EARLY} items, {max(mib):.0f} MiB at the end"
