"""The promises of the README, by the README's commands, with the real model and the real server.

Minutes long: `.ci/run` runs them, `make test` doesn't.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests import sglang_server
from tests.helpers import REPO, exported, fafo, fafo_json, identities, kill, start

pytestmark = [pytest.mark.slow, pytest.mark.alone]

PROJECT = ("fafo.toml", "classes", "prompts", "examples")
ITEMS = 60


def copy_project(folder: Path) -> Path:
    """Copy the repository's own project, without what it was built into and without its runs."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in PROJECT:
        source = REPO / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("build", "runs"))
        else:
            shutil.copy(source, folder / name)
    return folder


def everything_once(folder: Path, items: int = ITEMS) -> None:
    report = fafo_json(folder, "verify")
    assert report["verdict"] == "ok", report
    assert report["ratio"] >= 0.99
    assert report["completeness"] == {
        "total": items, "completed": items, "failed": 0, "waiting": 0,
        "superseded": 0, "doubled": 0, "lost": 0, "undecodable": 0,
    }  # fmt: skip
    assert [row["identity"] for row in exported(folder)] == identities(folder)


def completed(folder: Path) -> int:
    count: int = fafo_json(folder, "status")["completed"]
    return count


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The main job, done by the embedded engine."""
    folder = copy_project(tmp_path_factory.mktemp("embedded"))
    fafo(folder, "build")
    fafo(folder, "run")
    return folder


def test_the_main_job_is_done_from_the_cache(embedded: Path) -> None:
    everything_once(embedded)
    prefixes = fafo_json(embedded, "build")["classes"]
    assert all(found["prefix_tokens"] >= 300 for found in prefixes.values())
    assert all(row["text"].strip() for row in exported(embedded))


def test_ten_kills_of_the_real_engine_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    folder = copy_project(tmp_path)
    # Without the limits there is twice as much to do, so that no run is done before it is killed.
    main = (folder / "fafo.toml").read_text("utf-8")
    (folder / "fafo.toml").write_text(main.replace("limit = 10\n", ""), "utf-8")
    fafo(folder, "build")
    chance = random.Random(7)
    killed = 0
    for number in range(10):
        before = completed(folder)
        process = start(folder, "run", "--quiet")
        time.sleep(chance.uniform(1, 14))
        if number in (3, 7):
            # On a slow machine nothing may be done so early; twice a run gets as far as its first results.
            while process.poll() is None and completed(folder) == before:
                time.sleep(0.5)
        killed += process.poll() is None
        kill(process)
    assert killed >= 8, "too many runs had ended before they were killed: the test shows too little"
    assert 0 < completed(folder) < 2 * ITEMS
    fafo(folder, "run")
    everything_once(folder, 2 * ITEMS)


def test_the_real_server_gives_the_same_identities_and_its_own_count_says_ok(
    embedded: Path, tmp_path: Path
) -> None:
    folder = copy_project(tmp_path / "server")
    fafo(folder, "build")
    model = Path(fafo(folder, "model").stdout.strip())
    with sglang_server.running(model, tmp_path / "server.log") as url:
        done = fafo(folder, "run", "--engine", "server", "--json", env={"FAFO_ENGINE_URLS": url})
    assert json.loads(done.stdout)["completed"] == ITEMS
    everything_once(folder)
    assert list(fafo_json(folder, "verify")["by_server"]) == [url]
    assert identities(folder) == identities(embedded)


def test_make_run_in_a_clean_clone_does_the_main_job_and_the_second_time_nothing(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(REPO), str(clone)], check=True)
    env = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "MAKEFLAGS")}
    env["FAFO_CACHE"] = str(tmp_path / "cache")

    def make() -> str:
        done = subprocess.run(
            ["make", "run"], cwd=clone, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    first = make()
    assert f"{ITEMS} done · 0 failed" in first
    assert f"{ITEMS} of {ITEMS} items · artifacts current · records sound" in first
    second = make()
    assert "nothing to do: every item has an outcome" in second
    assert "unchanged" in second
