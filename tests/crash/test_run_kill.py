"""kill -9 of a whole `fafo run`, at random moments: afterwards every identity is there exactly once."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers import MAIN, build, exported, fafo, fafo_json, identities, kill, start, write_project

ROWS = 20_000


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = write_project(tmp_path, ROWS, main=MAIN + "\n[run]\nqueue = { low = 500, high = 2_000 }\n")
    build(folder)
    return folder


def test_after_ten_kills_every_identity_is_there_exactly_once(project: Path) -> None:
    expected = identities(project)
    chance = random.Random(20261129)
    killed = 0
    for _ in range(10):
        process = start(project, "run", "--quiet")
        time.sleep(chance.uniform(0.3, 1.4))
        if process.poll() is None:
            killed += 1
        kill(process)
    assert killed >= 5, "most runs had ended before they were killed: the test shows nothing"
    fafo(project, "run")
    report = fafo_json(project, "verify")
    assert report["verdict"] == "ok"
    assert report["completeness"] == {
        "total": ROWS, "completed": ROWS, "failed": 0, "waiting": 0,
        "superseded": 0, "doubled": 0, "lost": 0, "undecodable": 0,
    }  # fmt: skip
    rows = exported(project)
    assert Counter(row["identity"] for row in rows) == Counter(expected)


def test_outputs_are_those_of_a_run_that_nobody_killed(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    process = start(project, "run", "--quiet")
    time.sleep(1.5)
    kill(process)
    fafo(project, "run")
    calm = write_project(tmp_path_factory.mktemp("calm"), ROWS)
    build(calm)
    fafo(calm, "run")
    assert [row["output_ids"] for row in exported(project)] == [row["output_ids"] for row in exported(calm)]
