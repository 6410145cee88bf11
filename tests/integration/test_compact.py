"""`fafo store compact`: what it says, what goes, and that the rest stays sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from fafo_run.log.format import Kind
from tests.helpers import CLASS, build, exported, fafo, fafo_json, write_project
from tests.log_nouns import look


def test_old_work_and_failures_go_where_asked(tmp_path: Path) -> None:
    folder = write_project(tmp_path)
    with (folder / "facts.jsonl").open("a", encoding="utf-8") as file:
        file.write("this is no row\n")
    build(folder)
    fafo(folder, "run", "--quiet", check=3)
    (folder / "classes" / "ask.toml").write_text(CLASS.replace("tokens = 8", "tokens = 5"), "utf-8")
    build(folder)
    fafo(folder, "run", "--quiet", check=3)
    assert fafo_json(folder, "status")["superseded"] == 13
    rows = exported(folder)

    nothing = fafo_json(folder, "store", "compact")
    assert (nothing["rewritten"], nothing["removed"], nothing["bytes_before"]) == (
        0,
        0,
        nothing["bytes_after"],
    )
    planned = fafo_json(folder, "store", "compact", "--superseded", "--dry-run")
    assert (planned["obsolete"], planned["failed"], planned["superseded"]) == (13, 0, 0)
    assert fafo_json(folder, "status")["superseded"] == 13, "a dry run does nothing"
    assert "13 obsolete went" in fafo(folder, "store", "compact", "--superseded").stderr
    told = fafo_json(folder, "status")
    assert (told["superseded"], told["completed"], told["failed"]) == (0, 12, 1)
    assert exported(folder) == rows

    done = fafo_json(folder, "store", "compact", "--failed")
    assert (done["failed"], done["obsolete"]) == (1, 0) and done["bytes_after"] < done["bytes_before"]
    assert fafo_json(folder, "status")["failed"] == 0
    checked = fafo_json(folder, "verify")
    assert checked["verdict"] == "ok" and checked["completeness"]["waiting"] == 1
    fafo(folder, "run", "--quiet", check=3)
    assert exported(folder) == rows and fafo_json(folder, "status")["failed"] == 1


@pytest.mark.parametrize("how", ["a flipped byte", "bytes behind the seal", "padding"])
def test_damage_ends_when_it_was_kept_and_its_items_are_done_again(tmp_path: Path, how: str) -> None:
    folder = write_project(tmp_path)
    build(folder)
    fafo(folder, "run", "--quiet")
    rows = exported(folder)
    (segment,) = (folder / "runs" / "main" / "results").glob("*.seg")
    data = bytearray(segment.read_bytes())
    outputs = [entry for entry in look(segment)[2] if entry.kind == Kind.OUTPUT]
    if how == "a flipped byte":
        data[outputs[3].offset + 50] ^= 1
    elif how == "padding":
        padded = next(entry for entry in outputs if len(entry.payload) % 8)
        data[padded.end - 1] ^= 1
    else:
        data += b"junk" * 4
    segment.write_bytes(data)

    assert "cure: `fafo store compact --damaged`" in fafo(folder, "store", "check", check=6).stdout
    if how == "a flipped byte":
        told = fafo(folder, "export", str(tmp_path / "out.jsonl")).stderr
        assert "11 rows · 1 item has no result yet\n" in told and "`fafo store check` says what helps" in told
    planned = fafo_json(folder, "store", "compact", "--damaged", "--dry-run")
    assert (planned["mended"], planned["rewritten"], planned["damaged"]) == (1, 1, [])
    fafo(folder, "store", "check", check=6)
    assert "the damage of 1 segment went" in fafo(folder, "store", "compact", "--damaged").stderr
    checked = fafo_json(folder, "store", "check")
    assert checked["findings"] == []
    assert len(checked["quarantine"]) == (how != "padding")
    left = len(outputs) - (how == "a flipped byte")
    assert fafo_json(folder, "status")["completed"] == left
    fafo(folder, "run", "--quiet")
    assert fafo_json(folder, "verify")["verdict"] == "ok"
    assert sorted(exported(folder), key=str) == sorted(rows, key=str)
    assert "damaged" not in fafo(folder, "export", str(tmp_path / "out.jsonl")).stderr
    assert fafo_json(folder, "store", "compact", "--damaged")["mended"] == 0
