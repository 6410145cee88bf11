"""docs/declaration.md has every key of every noun, with its default, and no other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest
from project_files import problems, write

from fafo_build.project import declaration
from fafo_build.project.declaration import (
    Engine,
    Examples,
    Launch,
    Message,
    Model,
    Project,
    ProjectTable,
    PromptClass,
    QueueDepth,
    Run,
    Sampling,
    SegmentPolicy,
    Source,
    StopWhen,
    Verify,
)
from fafo_build.project.overrides import ENGINE_URLS, source_variable
from fafo_build.project.rules import HINTS
from fafo_build.project.structure import fields_by_key, keys_of

DOCS = (Path(__file__).parents[2] / "docs" / "declaration.md").read_text()

SECTIONS: dict[str, type] = {
    "[project]": ProjectTable,
    "[model]": Model,
    "[engine]": Engine,
    "engine.launch": Launch,
    "[[source]]": Source,
    "[run]": Run,
    "run.queue": QueueDepth,
    "run.segment": SegmentPolicy,
    "run.stop_when": StopWhen,
    "[verify]": Verify,
    "class": PromptClass,
    "[[message]]": Message,
    "[examples]": Examples,
    "[sampling]": Sampling,
}


def rows(section: str) -> dict[str, str]:
    """Return the default that the page gives for each key of a section."""
    text = DOCS.split(f"\n### {section}\n")[1].split("\n##")[0]
    found = re.findall(r"^\| `(\w+)` \|([^|]*)\|([^|]*)\|([^|]*)\|$", text, flags=re.M)
    assert len(found) == len([line for line in text.split("\n") if line.startswith("| `")])
    assert all(kind.strip() and meaning.strip() for _, kind, _, meaning in found)
    return {key: default.strip() for key, _, default, _ in found}


def test_every_noun_has_a_section() -> None:
    nouns = {value for value in vars(declaration).values() if isinstance(value, type) and attrs.has(value)}
    assert nouns - {Project} == set(SECTIONS.values())


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_documented_and_no_other(section: str) -> None:
    assert set(rows(section)) == set(keys_of(SECTIONS[section]))


def _default(noun: type, key: str) -> Any:
    return fields_by_key(noun)[key].default


@pytest.mark.parametrize("section", SECTIONS)
def test_every_default_is_the_real_one(section: str) -> None:
    noun = SECTIONS[section]
    for key, shown in rows(section).items():
        default = _default(noun, key)
        if default is attrs.NOTHING:
            assert shown == "required", key
        elif default is None or default == ():
            assert shown == "none", key
        elif isinstance(default, attrs.Factory):  # type: ignore[arg-type]
            assert shown in ("see below", "`{}`"), key
        else:
            value = tomllib.loads(f"value = {shown.strip('`')}")["value"]
            assert (tuple(value) if isinstance(value, list) else value) == default, key


def test_the_example_is_right(tmp_path: Path) -> None:
    example = DOCS.split("```toml\n")[1].split("```")[0]
    exam = 'sources = "elements"\n[[message]]\nrole = "user"\ncontent = "x"\n'
    assert problems(write(tmp_path, example, exam=exam)) == ""


def test_keys_of_later_versions_are_named() -> None:
    later = DOCS.split("Not in this version")[1].split("\n\n")[0]
    for _, key in (place for place, hint in HINTS.items() if "not in this version" in hint):
        assert f"`{key}`" in later


def test_the_environment_is_documented() -> None:
    assert f"| `{ENGINE_URLS}` |" in DOCS
    assert f"| `{source_variable('name')}` |" in DOCS
