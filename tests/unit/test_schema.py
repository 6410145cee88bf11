"""`fafo schema`: every key of every noun, described, with what the reader's own checks note of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner
from project_files import write

from fafo_build.errors import DeclarationError
from fafo_build.project import checks, declaration, rules
from fafo_build.project.declaration import Project, Run, Sampling
from fafo_build.project.main_file import TABLES
from fafo_build.project.schema import FILES, schema_text, write_schemas
from fafo_build.project.structure import keys_of
from fafo_run.cli import cli

NOUNS = {value for value in vars(declaration).values() if isinstance(value, type) and attrs.has(value)} - {
    Project
}


def _tables_of(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("additionalProperties") is False and "properties" in schema:
            yield schema
        for inner in schema.values():
            yield from _tables_of(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _tables_of(inner)


def test_every_key_of_every_noun_is_there_and_described() -> None:
    tables = [table for which in FILES for table in _tables_of(json.loads(schema_text(which)))]
    assert {tuple(table["properties"]) for table in tables} == {tuple(TABLES), *map(keys_of, NOUNS)}
    for table in tables:
        for key, value in table["properties"].items():
            said = value.get("description") or value["items"]["description"]
            assert said, f"{key} has no text below its field in declaration.py"


def test_every_check_parser_and_rule_says_what_it_means_in_json_schema() -> None:
    functions = {*rules.RULES.values()}
    for by_name in (*checks.CHECKS.values(), *checks.PARSERS.values()):
        functions |= {*by_name.values()}
    silent = [function.__qualname__ for function in functions if "schema" not in vars(function)]
    assert not silent, f"note with values.in_schema() what JSON Schema can say of {silent}, or that it can't"


def test_defaults_and_choices_are_the_nouns_own() -> None:
    sampling = json.loads(schema_text("class"))["properties"]["sampling"]["properties"]
    assert sampling["max_new_tokens"]["default"] == Sampling().max_new_tokens
    assert "default" not in sampling["top_k"]
    run = json.loads(schema_text("fafo"))["properties"]["run"]["properties"]
    assert run["lanes"]["default"] == list(Run().lanes)
    message = json.loads(schema_text("class"))["properties"]["message"]["items"]["properties"]
    assert message["role"]["enum"] == ["system", "user", "assistant", "tool"]


@pytest.mark.parametrize("which", FILES)
def test_the_command_prints(which: str) -> None:
    shown = CliRunner().invoke(cli, ["schema", which])
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout == schema_text(which)


def test_the_command_writes_beside_the_main_file_over_older_ones(tmp_path: Path) -> None:
    write(tmp_path, "torn")
    (tmp_path / "class.schema.json").write_text("old")
    shown = CliRunner().invoke(cli, ["-C", str(tmp_path / "classes"), "schema", "--write"])
    assert (shown.exit_code, shown.stdout) == (0, "")
    for which, name in FILES.items():
        assert (tmp_path / name).read_text("utf-8") == schema_text(which)
        assert f"wrote {tmp_path.resolve() / name}" in shown.stderr
    assert "#:schema ./fafo.schema.json" in shown.stderr
    assert "#:schema ../class.schema.json" in shown.stderr


@pytest.mark.parametrize("arguments", [[], ["fafo", "--write"], ["lock"]])
def test_the_command_says_what_it_needs(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli, ["schema", *arguments]).exit_code == 2


def test_outside_a_project_nothing_is_written(tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli, ["-C", str(tmp_path), "schema", "--write"])
    assert isinstance(shown.exception, DeclarationError)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    (tmp_path / FILES["fafo"]).mkdir()
    with pytest.raises(DeclarationError, match="can't be written: Is a directory"):
        write_schemas(tmp_path)
