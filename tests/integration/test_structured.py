"""Outputs with a form, through the front door: from the class file to the server, results and export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import CLASS, exported, fafo, fafo_json, identities, write_project
from tests.serving import serving, use

pytestmark = pytest.mark.slow

SCHEMA = (
    '{\n  "type": "object",\n  "properties": {"why": {"type": "string"}, "answer": {"enum": [1, 2]}}\n}\n'
)
COMPACT = '{"type":"object","properties":{"why":{"type":"string"},"answer":{"enum":[1,2]}}}'


def classes(sampling: str) -> dict[str, str]:
    return {"ask": CLASS + sampling}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    sampling = 'json_schema = "schemas/answer.json"\nstop = ["\\n\\n"]\nrepetition_penalty = 1.1\n'
    folder = write_project(tmp_path, 3, classes=classes(sampling))
    (folder / "schemas").mkdir()
    (folder / "schemas" / "answer.json").write_text(SCHEMA, "utf-8")
    return folder


def test_a_schema_goes_from_its_file_to_the_server_and_into_the_results(project: Path) -> None:
    with serving() as server:
        server.server_info["grammar_backend"] = "xgrammar"
        use(project, server)
        assert fafo_json(project, "run")["completed"] == 3
        items = [body for body in server.received if not body["rid"].startswith(("warm", "probe"))]
        assert len(items) == 3
        for body in items:
            params = body["sampling_params"]
            assert params["json_schema"] == COMPACT
            assert params["stop"] == ["\n\n"]
            assert params["repetition_penalty"] == 1.1
        assert [body["rid"][:5] for body in server.received].count("probe") == 1
        for row in exported(project):
            assert row["sampling"]["json_schema"] == COMPACT
            assert row["sampling"]["stop"] == ["\n\n"]
            assert row["sampling"]["repetition_penalty"] == 1.1
            assert "regex" not in row["sampling"]
        assert "json_schema={" in fafo(project, "show", identities(project)[0]).stdout


def test_a_changed_schema_is_new_work_and_a_moved_one_is_not(project: Path) -> None:
    with serving() as server:
        server.server_info["grammar_backend"] = "xgrammar"
        use(project, server)
        before = identities(project)
        file = project / "schemas" / "answer.json"
        file.write_text(SCHEMA.replace("\n", " "), "utf-8")
        assert "schemas/answer.json changed" in fafo(project, "run", check=1).stderr
        assert "schemas/answer.json changed" in fafo(project, "build", "--check", check=1).stderr
        fafo(project, "build", "--quiet")
        assert identities(project) == before
        file.write_text(SCHEMA.replace("2", "3"), "utf-8")
        fafo(project, "build", "--quiet")
        assert not set(identities(project)) & set(before)


def test_an_engine_that_cannot_is_refused_before_the_first_item(project: Path) -> None:
    fafo(project, "build", "--quiet")
    shown = fafo(project, "run", check=1).stderr
    assert "classes/ask.toml:18:15: class.ask.sampling.json_schema: the engine fake can't obey" in shown
    assert "class.ask.sampling.stop: the engine fake can't obey stop" in shown
    assert fafo_json(project, "status")["completed"] == 0


def test_a_server_that_cannot_read_it_is_refused_before_the_first_item(project: Path) -> None:
    with serving() as server:
        use(project, server)
        shown = fafo(project, "run", check=1).stderr
        assert "class.ask.sampling.json_schema: the engine sglang can't obey json_schema" in shown
        assert "cure: start the server with --grammar-backend xgrammar" in shown
        assert server.received == []


def test_mistakes_are_found_by_the_build(project: Path) -> None:
    (project / "schemas" / "answer.json").write_text(SCHEMA.replace('"string"', '"text"'), "utf-8")
    shown = fafo(project, "build", check=1).stderr
    assert "schemas/answer.json:3:34: class.ask.sampling.json_schema: no JSON Schema, at " in shown
    (project / "schemas" / "answer.json").unlink()
    shown = fafo(project, "build", check=1).stderr
    assert "classes/ask.toml:18:15: class.ask.sampling.json_schema: " in shown
    write_project(project, 3, classes=classes("stop_token_ids = [5, 49_152]\n"))
    shown = fafo(project, "build", check=1).stderr
    assert (
        "classes/ask.toml:18:22: class.ask.sampling.stop_token_ids[2]: the model's ids end at 49151" in shown
    )


def test_stop_strings_end_the_text_and_stay_in_the_ids(tmp_path: Path) -> None:
    """The stand-in writes ids as `17;`, so what it stops at is known; the text is the model's own."""
    folder = write_project(tmp_path, 3, classes=classes(""))
    with serving() as server:
        use(folder, server)
        fafo(folder, "run")
        free = exported(folder)
        stop = f"{free[0]['output_ids'][2]};"
        use(write_project(folder, 3, classes=classes(f"stop = {json.dumps(stop)}\n")), server)
        assert fafo_json(folder, "run")["completed"] == 3
        cut = exported(folder)
        assert cut[0]["output_ids"] == free[0]["output_ids"][:3]
        assert cut[0]["finish_reason"] == "stop"
        (shown,) = fafo_json(folder, "show", str(cut[0]["identity"]))
        assert shown["output"]["matched"] == stop
