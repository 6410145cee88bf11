"""What `show` and `failures` say of rows as people meet them: hostile, broken, mended, very long."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.helpers import build, fafo, fafo_json, write_project

HOSTILE = "\x1b[2Jcleared\x07 \u202edrowkcab\u202c \x9b31m"
SHOWN = r"\x1b[2Jcleared\x07 \u202edrowkcab\u202c \x9b31m"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_project(tmp_path_factory.mktemp("shown"), 2)
    with (folder / "facts.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"id": f"k{HOSTILE}", "text": HOSTILE}) + "\n")
        file.write('{"id": 7, "text": null}\n')
        file.write('{"text": "no key"}\n')
    build(folder)
    fafo(folder, "run", "--quiet", check=3)
    return folder


@pytest.fixture
def done(original: Path, tmp_path: Path) -> Path:
    """A project of two good rows, a hostile one and two that failed, to change."""
    return Path(shutil.copytree(original, tmp_path / "p"))


def test_a_row_cant_command_the_terminal(original: Path) -> None:
    text = fafo(original, "show", f"k{HOSTILE}").stdout
    assert f"  text: {SHOWN}\n" in text
    assert f" · k{SHOWN} · " in text
    assert f": {SHOWN}\n" in text.partition("here the prefix ends")[2], "the prompt"
    (told,) = fafo_json(original, "show", f"k{HOSTILE}")
    assert told["row"]["text"] == HOSTILE
