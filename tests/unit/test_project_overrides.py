"""Environment variables stand in for URLs; a wrong one is named, and its value is not shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from project_files import MAIN, change, problems, write

from fafo_build.project.load import active_overrides, load_project

SERVER = '[engine]\nkind = "sglang"'


def test_urls_from_the_environment(tmp_path: Path) -> None:
    main = change(
        change(MAIN, '[engine]\nkind = "transformers"', SERVER), 'url = "sqlite:///data/world.db"\n', ""
    )
    env = {
        "FAFO_ENGINE_URLS": " http://a:1 ,",
        "FAFO_SOURCE_COUNTRIES_URL": "sqlite:///b.db",
        "FAFO_OTHER": "x",
    }
    project = load_project(write(tmp_path, main), env)
    assert project.engines["default"].urls == ("http://a:1",)
    assert project.sources["countries"].url == "sqlite:///b.db"
    assert active_overrides(env) == ("FAFO_ENGINE_URLS", "FAFO_SOURCE_COUNTRIES_URL")


def test_of_several_engines_the_only_server_takes_the_urls(tmp_path: Path) -> None:
    main = change(
        MAIN, "[engine]", '[engines.server]\nkind = "sglang"\nurls = "http://a:1"\n[engines.default]'
    )
    project = load_project(write(tmp_path, main), {"FAFO_ENGINE_URLS": "http://b:1"})
    assert project.engines["server"].urls == ("http://b:1",)


def test_of_several_servers_the_default_takes_the_urls(tmp_path: Path) -> None:
    main = change(
        MAIN,
        '[engine]\nkind = "transformers"',
        '[engines.other]\nkind = "sglang"\nurls = "http://a:1"\n[engines.default]\nkind = "sglang"',
    )
    project = load_project(write(tmp_path, main), {"FAFO_ENGINE_URLS": "http://b:1"})
    assert project.engines["other"].urls == ("http://a:1",)
    assert project.engines["default"].urls == ("http://b:1",)


def test_a_wrong_value_from_the_environment_names_the_variable_and_hides_the_value(tmp_path: Path) -> None:
    shown = problems(write(tmp_path), {"FAFO_SOURCE_COUNTRIES_URL": "postgresql://me:secret@db"})
    assert shown.startswith("FAFO_SOURCE_COUNTRIES_URL: expected the URL of a SQLite file")
    assert "secret" not in shown


@pytest.mark.parametrize("name", ["FAFO_ENGINE_URLS", "FAFO_SOURCE_CONTRIES_URL"])
def test_a_variable_that_fits_nothing_is_no_silence(name: str, tmp_path: Path) -> None:
    shown = problems(write(tmp_path), {name: "http://a:1"})
    assert shown.startswith(f"{name}: the environment variable is set, and the project doesn't have ")


def test_a_variable_that_fits_two_sources(tmp_path: Path) -> None:
    other = 'name = "COUNTRIES"\ntype = "sql"\nurl = "sqlite:///c.db"\nquery = "q"\nkey = "k"'
    again = f"[[source]]\n{other}\n[run]"
    shown = problems(
        write(tmp_path, change(MAIN, "[run]", again)), {"FAFO_SOURCE_COUNTRIES_URL": "sqlite:///d.db"}
    )
    assert shown.startswith("FAFO_SOURCE_COUNTRIES_URL: several fit this environment variable: ")


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    env = {"FAFO_ENGINE_URLS": "", "FAFO_SOURCE_COUNTRIES_URL": " "}
    assert active_overrides(env) == ()
    assert load_project(write(tmp_path), env).sources["countries"].url == "sqlite:///data/world.db"


def test_a_url_for_a_source_of_another_type(tmp_path: Path) -> None:
    shown = problems(write(tmp_path), {"FAFO_SOURCE_ELEMENTS_URL": "sqlite:///b.db"})
    assert shown.startswith('FAFO_SOURCE_ELEMENTS_URL: a source of type "files" has no url')
