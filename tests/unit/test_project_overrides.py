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


def test_the_urls_stand_in_for_launch(tmp_path: Path) -> None:
    main = change(MAIN, '[engine]\nkind = "transformers"', SERVER + "\nlaunch = { replicas = 2 }")
    engine = load_project(write(tmp_path, main), {"FAFO_ENGINE_URLS": "http://b:1"}).engines["default"]
    assert (engine.urls, engine.launch) == (("http://b:1",), None)


def test_a_wrong_value_from_the_environment_names_the_variable_and_hides_the_value(tmp_path: Path) -> None:
    shown = problems(write(tmp_path), {"FAFO_SOURCE_COUNTRIES_URL": "postgresql://me:secret@db"})
    assert shown.startswith("FAFO_SOURCE_COUNTRIES_URL: expected the URL of a SQLite file")
    assert "secret" not in shown


@pytest.mark.parametrize("name", ["FAFO_ENGINE_URLS", "FAFO_SOURCE_CONTRIES_URL"])
def test_a_variable_that_fits_nothing_is_no_silence(name: str, tmp_path: Path) -> None:
    shown = problems(write(tmp_path), {name: "http://a:1"})
    assert shown.startswith(f"{name}: the environment variable is set, and the project doesn't have ")


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("FAFO_ENGINE_URL", "did you mean FAFO_ENGINE_URLS? if not, unset it: `unset FAFO_ENGINE_URL`"),
        ("FAFO_SOURCES_COUNTRIES_URL", "did you mean FAFO_SOURCE_COUNTRIES_URL? if not, unset it"),
        ("FAFO_SOURCE_CONTRIES_URL", "did you mean FAFO_SOURCE_COUNTRIES_URL? if not, unset it"),
        ("FAFO_SOURCE_COUNTRIES", "did you mean FAFO_SOURCE_COUNTRIES_URL? if not, unset it"),
        (
            "FAFO_ENGINE_TOKEN_OF_MY_SERVER",
            "unset it (`unset FAFO_ENGINE_TOKEN_OF_MY_SERVER`): what this project takes is "
            "FAFO_ENGINE_URLS and FAFO_SOURCE_COUNTRIES_URL",
        ),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_one_that_is_meant(
    name: str, cure: str, tmp_path: Path
) -> None:
    main = change(MAIN, '[engine]\nkind = "transformers"', SERVER + '\nurls = "http://a:1"')
    shown = problems(write(tmp_path, main), {name: "http://a:1"})
    assert shown.startswith(f"{name}: ")
    assert f"  cure: {cure}" in shown
    assert shown.count("cure: ") == 1
    assert problems(tmp_path, {name: ""}) == ""


def test_without_a_server_and_a_database_no_variable_is_offered(tmp_path: Path) -> None:
    shown = problems(write(tmp_path), {"FAFO_ENGINE_TOKEN": "secret"})
    assert "there is no such environment variable" in shown
    assert "FAFO_ENGINE_URLS" not in shown
    assert "secret" not in shown


def test_other_variables_that_begin_with_fafo_are_left_alone(tmp_path: Path) -> None:
    assert (
        problems(write(tmp_path), {"FAFO_CACHE": "x", "FAFO_SGLANG_VENV": "x", "FAFO_ENGIN_URLS": "x"}) == ""
    )


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
