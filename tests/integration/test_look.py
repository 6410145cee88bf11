"""Looking at a run: status, show, export, verify, and the log's own tools."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.helpers import CLASS, MAIN, build, exported, fafo, fafo_json, identities, write_project


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_project(tmp_path_factory.mktemp("look"))
    build(folder)
    fafo(folder, "run", "--quiet")
    return folder


@pytest.fixture
def done(original: Path, tmp_path: Path) -> Path:
    """A project whose items are all done, to do harm to."""
    return Path(shutil.copytree(original, tmp_path / "p"))


def segment(folder: Path) -> Path:
    (found,) = (folder / "runs" / "main" / "results").glob("*.seg")
    return found


# ---- status


def test_status_has_the_keys_of_its_contract(done: Path) -> None:
    told = fafo_json(done, "status")
    assert list(told) == [
        "run", "status", "service", "notice", "total", "queued", "in_flight",
        "completed", "failed", "superseded", "replaced",
        "by_class", "by_source", "finish_reasons", "empty", "servers", "away",
        "tokens", "rate", "eta", "store",
    ]  # fmt: skip
    assert told["status"] == "finished"
    assert (told["total"], told["completed"], told["queued"]) == (12, 12, 0)
    assert told["by_class"] == {"ask": {"completed": 12, "failed": 0}}
    assert told["by_source"] == {"facts": {"completed": 12, "failed": 0}}
    assert sum(told["finish_reasons"].values()) == 12
    assert told["tokens"]["prompt"] == sum(row["prompt_tokens"] for row in exported(done))
    assert "finished · 12 of 12 items" in fafo(done, "status").stdout


def test_status_before_the_first_run(tmp_path: Path) -> None:
    folder = write_project(tmp_path)
    build(folder)
    told = fafo_json(folder, "status")
    assert (told["status"], told["total"], told["completed"]) == ("new", None, 0)
    assert not (folder / "runs").exists()
    fafo(folder, "submit")
    said = fafo(folder, "status").stdout
    assert "run main: new · 0 items so far; a run counts them all" in said
    assert "queue: 12 waiting, for the next `fafo run`" in said and " · 1 segment · " in said


@pytest.mark.parametrize(
    "said", ['{"servers": 5}', '{"servers": null, "total": "many"}', "[]", "no JSON", ""]
)
def test_status_takes_progress_json_for_a_hint(done: Path, said: str) -> None:
    (done / "runs" / "main" / "progress.json").write_text(said, "utf-8")
    told = fafo_json(done, "status")
    assert (told["completed"], told["total"], told["servers"]) == (12, None, [])


# ---- show


def test_show_prints_one_item_whole(done: Path) -> None:
    (row,) = (row for row in exported(done) if row["key"] == "3")
    (told,) = fafo_json(done, "show", "3")
    assert told["identity"] == row["identity"]
    assert told["row"] == {"id": 3, "text": "number 3 is 9 squared"}
    assert told["prompt"]["prefix"].startswith("<|im_start|>system\nYou write questions in a plain tone.")
    assert "number 3 is 9 squared" in told["prompt"]["suffix"]
    assert told["prompt"]["suffix"].endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert (
        len(told["prompt"]["suffix_ids"]) + told["prompt"]["prefix_tokens"] == told["prompt"]["prompt_tokens"]
    )
    assert told["output"]["ids"] == row["output_ids"]
    assert told["current"] is True
    text = fafo(done, "show", row["identity"][:10]).stdout
    for expected in (
        row["identity"],
        "here the prefix ends",
        "number 3 is 9 squared",
        "finished by",
        told["artifact"],
    ):
        assert expected in text


def test_show_says_when_there_is_no_such_item(done: Path) -> None:
    said = fafo(done, "show", "nobody", check=1).stderr
    assert '"nobody"' in said
    assert "fafo items" in said


def test_show_marks_what_is_superseded(done: Path) -> None:
    (done / "classes" / "ask.toml").write_text(
        CLASS.replace("max_new_tokens = 8", "max_new_tokens = 9"), "utf-8"
    )
    build(done)
    (told,) = fafo_json(done, "show", "3")
    assert told["current"] is False
    assert told["row"] is not None
    fafo(done, "run", "--quiet")
    (told,) = fafo_json(done, "show", "3")
    assert told["current"] is True


# ---- export


def test_parquet_and_json_lines_hold_the_same(done: Path) -> None:
    fafo(done, "export", str(done / "out.parquet"))
    table = pq.read_table(done / "out.parquet").to_pylist()
    lines = exported(done)
    assert [row["identity"] for row in lines] == identities(done)
    for row in table:
        row |= {"row": json.loads(row["row"]), "sampling": json.loads(row["sampling"])}
    assert table == lines


def test_an_export_that_fails_leaves_the_older_file(done: Path) -> None:
    out = done / "out.jsonl"
    out.write_text("older\n", "utf-8")
    (done / "facts.jsonl").unlink()
    fafo(done, "export", str(out), check=1)
    assert out.read_text("utf-8") == "older\n"
    assert sorted(path.name for path in done.iterdir() if path.name.startswith(".out")) == []
    assert ".jsonl or .parquet" in fafo(done, "export", str(done / "out.csv"), check=1).stderr


# ---- verify


def causes(folder: Path, *arguments: str, code: int) -> list[str]:
    return [found["cause"] for found in fafo_json(folder, "verify", *arguments, check=code)["causes"]]


def test_verify_has_the_keys_of_its_contract_and_says_ok(done: Path) -> None:
    told = fafo_json(done, "verify")
    assert list(told) == [
        "verdict", "hit_rate", "ceiling", "ratio", "min_hit_rate", "cached_tokens", "ceiling_tokens",
        "prompt_tokens", "by_class", "by_server", "by_hour", "warm_ups", "sent", "counters", "causes",
        "notes", "completeness", "artifacts", "evidence",
    ]  # fmt: skip
    assert told["verdict"] == "ok"
    assert told["ratio"] == 1.0
    assert told["artifacts"] == {"current": True, "stale": []}
    assert fafo(done, "verify").stdout.startswith("  ok ")


def test_verify_cant_tell_without_results(tmp_path: Path) -> None:
    folder = write_project(tmp_path)
    build(folder)
    assert "no store is here" in fafo(folder, "verify", check=1).stderr
    (folder / "facts.jsonl").write_text('{"id": 1, "text": null}\n', "utf-8")
    fafo(folder, "run", check=3)
    assert causes(folder, code=5) == ["no_results"]


def test_verify_says_which_input_of_the_build_changed(done: Path) -> None:
    (done / "prompts" / "rules.md").write_text("Other rules.\n", "utf-8")
    assert causes(done, code=4) == ["stale_artifacts"]
    assert "prompts/rules.md changed" in fafo(done, "verify", check=4).stdout


def test_verify_finds_a_damaged_record(done: Path) -> None:
    file = segment(done)
    content = bytearray(file.read_bytes())
    content[4096 + (len(content) - 4096) // 2] ^= 1
    file.write_bytes(content)
    assert "undecodable" in causes(done, code=4)


def test_verify_finds_two_outputs_of_one_item(done: Path) -> None:
    """A copy of the segment under another number stands for a store that somebody merged by hand."""
    file = segment(done)
    shutil.copy(file, file.with_name("00000077.seg"))
    assert "doubled" in causes(done, code=4)


def test_verify_measures_against_the_ceiling(tmp_path: Path) -> None:
    """Classes of one run; the hit rate of each is held against what was asked for."""
    folder = write_project(tmp_path)
    build(folder)
    fafo(folder, "run", "--quiet")
    told = fafo_json(folder, "verify", "--min-hit-rate", "1")
    assert told["verdict"] == "ok"
    assert (
        told["by_class"]["ask"]["ceiling_tokens"]
        == 12 * fafo_json(folder, "build")["classes"]["ask"]["prefix_tokens"]
    )


# ---- the log's own tools


def test_a_deleted_index_is_built_again(done: Path) -> None:
    before = exported(done)
    shutil.rmtree(done / "runs" / "main" / "index")
    assert exported(done) == before
    assert "indexed 12 records" in fafo(done, "store", "reindex").stderr
    assert exported(done) == before


@pytest.mark.parametrize("size", [0, 8_192, 12_288, 40_000])
def test_a_shortened_index_kills_nobody_and_is_built_again(done: Path, size: int) -> None:
    """LMDB reads through a mapping: whoever reads a page beyond the end of the file dies."""
    before = exported(done)
    data = done / "runs" / "main" / "index" / "data.mdb"
    assert data.stat().st_size > size
    with data.open("r+b") as file:
        file.truncate(size)
    assert fafo_json(done, "status")["completed"] == 12
    assert fafo_json(done, "verify")["verdict"] == "ok"
    assert exported(done) == before
    assert "indexed 12 records" in fafo(done, "store", "reindex").stderr
    assert fafo_json(done, "run")["before"] == 12


def test_dump_shows_every_entry_of_a_segment(done: Path) -> None:
    lines = [json.loads(line) for line in fafo(done, "store", "dump", str(segment(done))).stdout.splitlines()]
    assert lines[0]["what"] == "header"
    assert lines[-1]["what"] == "seal"
    dumped = [line["identity"] for line in lines if line.get("kind") == "output"]
    assert sorted(dumped) == sorted(identities(done))
    assert "no such file" in fafo(done, "store", "dump", str(done / "nothing.seg"), check=1).stderr


def test_items_lists_the_view(done: Path) -> None:
    lines = [json.loads(line) for line in fafo(done, "items", "--limit", "2").stdout.splitlines()]
    assert [(line["key"], line["where"]) for line in lines] == [
        ("0", "facts.jsonl:1"),
        ("1", "facts.jsonl:2"),
    ]
    assert fafo(done, "items", "--count").stdout.strip() == "12"


def test_a_run_has_a_name_that_is_a_folder(done: Path) -> None:
    assert fafo_json(done, "run", "--run", "other")["completed"] == 12
    assert (done / "runs" / "other" / "FORMAT").exists()
    fafo(done, "run", "--run", "../up", check=2)


def test_models_folder_is_asked_for_by_name(done: Path) -> None:
    (done / "fafo.toml").write_text(MAIN.replace("[model]", "[models.small]"), "utf-8")
    said = fafo(done, "model", "smal", check=1).stderr
    assert "did you mean small?" in said
