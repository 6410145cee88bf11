"""`fafo store check` and `repair` through the front door."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.damaged_stores import DAMAGES, make, tree
from tests.helpers import fafo, fafo_json, write_project


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make(write_project(tmp_path / "p") / "runs" / "main")
    return tmp_path / "p"


def test_a_sound_store(folder: Path) -> None:
    told = fafo_json(folder, "store", "check")
    assert list(told) == [
        "sound", "running", "segments", "entries", "outputs", "failures", "waiting", "findings", "quarantine",
    ]  # fmt: skip
    assert told["sound"] and told["findings"] == [] and told["quarantine"] == []
    assert (told["segments"], told["outputs"], told["failures"], told["waiting"]) == (4, 5, 1, 3)
    assert "sound" in fafo(folder, "store", "check").stdout
    assert fafo_json(folder, "store", "repair") == {"dry_run": False, "actions": [], "left": told}


def test_damage_is_said_repaired_and_said(folder: Path) -> None:
    run = folder / "runs" / "main"
    for name in ("no header", "a gap", "done already"):
        DAMAGES[name].do(run)
    before = tree(run)
    told = fafo_json(folder, "store", "check", check=6)
    assert not told["sound"]
    for finding in told["findings"]:
        assert {"do", "file", "why", "level", "found"} <= finding.keys()
    planned = fafo_json(folder, "store", "repair", "--dry-run")
    assert planned["dry_run"] and planned["actions"] == told["findings"]
    text = fafo(folder, "store", "repair", "--dry-run").stdout
    assert text.count("; would be ") == len(planned["actions"])
    cures = [line for line in fafo(folder, "store", "check", check=6).stdout.splitlines() if "cure: " in line]
    assert ["`fafo store repair`" in line for line in cures] == [True, False], cures
    assert "`fafo store compact --damaged`" in cures[1]
    assert tree(run) == before

    done = fafo(folder, "store", "repair")
    for action in planned["actions"]:
        assert done.stderr.count(f"{action['file']}: {action['found']}\n") == 1
    assert "damaged" in done.stdout and "2 in quarantine/" in done.stdout
    assert "`fafo store repair`" not in done.stdout, "it has nothing left to do"
    assert "cure: `fafo store compact --damaged`" in done.stdout
    again = fafo_json(folder, "store", "check", check=6)
    assert [of["why"] for of in again["findings"]] == ["gap"]
    assert [of["file"].split("-")[0] for of in again["quarantine"]] == ["queue", "results"]
    assert all(of["reason"] for of in again["quarantine"])


def test_a_store_that_isnt_there(folder: Path) -> None:
    for command in (["check"], ["repair"], ["repair", "--dry-run"], ["compact"], ["reindex"]):
        assert "no store is here" in fafo(folder, "store", *command, "--run", "other", check=1).stderr
    assert not (folder / "runs" / "other").exists()
