"""The reader in examples/, written from docs/format.md alone, reads what fafo's own reader reads."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fafo_run.item import Output, Record
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import Kind
from fafo_run.results.reader import open_reader
from fafo_run.results.results import Results
from tests.damaged_stores import (
    DAMAGES,
    FastDisk,
    append_raw,
    entry_of,
    make,
    raw_draft,
    results_segment,
    spoil,
)
from tests.helpers import REPO
from tests.log_nouns import failure, output, record

READER = REPO / "examples" / "read_results.py"


def read(path: Path) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-I", str(READER), str(path)], capture_output=True, text=True, check=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line]
    found = {line["identity"]: line for line in lines}
    assert len(found) == len(lines)
    return found


def expected(path: Path) -> dict[str, dict[str, Any]]:
    reader = open_reader(path)
    try:
        return {of.identity.hex(): shown(of) for of in reader.effective()}
    finally:
        reader.close()


def shown(of: Record) -> dict[str, Any]:
    line: dict[str, Any] = {
        "identity": of.identity.hex(),
        "class": of.provenance.class_name,
        "source": of.provenance.source,
        "key": of.key,
    }
    if isinstance(of.outcome, Output):
        return line | {"output_ids": list(of.outcome.ids)}
    return line | {"failure": [of.outcome.code.value, of.outcome.stage.value, of.outcome.message]}


def again(number: int, retry: int, message: str) -> Record:
    from attrs import evolve

    return evolve(record(number, failure(message=message)), retry=retry)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Several segments with failures that were superseded by outputs and by later retries, and wide ids."""
    with RunDirectory.own(tmp_path / "run", FastDisk()) as directory:
        directory.mark_running()
        results = Results(directory)
        results.append([record(0), again(1, 0, "first"), again(2, 0, "first"), again(3, 0, "only")])
        results.append([record(5, output((70_000, 1))), record(6, output(())), record(7)])
        results.seal()
        results.append([again(1, 2, "retried"), record(2), record(8)])
        results.append([record(number, lane=9) for number in range(9, 12)])
        results.close(clean=True)
        directory.mark_stopped()
    return tmp_path / "run"


def test_it_knows_nothing_of_fafo_and_is_short() -> None:
    text = READER.read_text("utf-8")
    assert len(text.splitlines()) <= 60
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        name for node in nodes for name in ([node.module] if isinstance(node, ast.ImportFrom) else
                                            [alias.name for alias in node.names])
    }  # fmt: skip
    assert names - {"msgspec", "xxhash"} <= set(sys.stdlib_module_names)


def test_superseded_retried_and_wide_records(path: Path) -> None:
    found = read(path)
    assert found == expected(path) and len(found) == 11
    assert [70_000, 1] in [line.get("output_ids") for line in found.values()]
    assert sorted(line["failure"][2] for line in found.values() if "failure" in line) == ["only", "retried"]


def test_an_unsealed_tail_with_half_an_entry(path: Path) -> None:
    file = append_raw(path, [raw_draft(20), raw_draft(21)], seal=False)
    spoil(file, file.stat().st_size, b"\xfa\xf0ENEVIL\x10\x00\x00\x00")
    found = read(path)
    assert found == expected(path) and len(found) == 13


def test_every_kind_of_damage_to_an_entry(path: Path) -> None:
    file = results_segment(path)
    hit = [entry_of(file, Kind.OUTPUT, 1), entry_of(file, Kind.FAILURE, 1), entry_of(file, Kind.PROVENANCE)]
    for entry in hit:
        data = file.read_bytes()
        for at in (0, 4, 8, 10, 12, 16, 32, 40, entry.end - entry.offset - 9):
            spoil(file, entry.offset + at, bytes([data[entry.offset + at] ^ 0xFF]))
            found = read(path)
            assert found == expected(path), (entry.offset, at)
            assert len(found) == 11 - (at != 4 and entry is hit[0]), (entry.offset, at)
            spoil(file, entry.offset + at, data[entry.offset + at : entry.offset + at + 1])


@pytest.mark.parametrize(
    "name",
    [
        "half a header", "the other half", "a gap", "junk behind a seal", "odd padding", "a killed run",
        "a lost end", "a copy", "stray", "header without a name", "two outputs", "no index",
    ],
)  # fmt: skip
def test_damaged_stores(tmp_path: Path, name: str) -> None:
    path = make(tmp_path / "damaged")
    DAMAGES[name].do(path)
    found = read(path)
    assert found == expected(path) and len(found) >= 5
