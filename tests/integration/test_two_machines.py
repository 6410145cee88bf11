"""Two machines' worth of difference gives the same bytes; a prefix that changes at midnight is refused."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.helpers import CLASS, FAFO, MAIN, REPO, RULES

DATED = """{{ '<|im_start|>' }}context
Today is {{ strftime_now('%d %B %Y') }}.<|im_end|>
{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
EXAMPLES = '[examples]\npath = "prompts/examples.jsonl"\n'
FILES = {
    "fafo.toml": MAIN.replace(
        "[engine]", 'chat_template = "prompts/chat.jinja"\ndate = 2026-01-31\n\n[engine]'
    ),
    "prompts/chat.jinja": DATED,
    "prompts/rules.md": "{% include 'parts/ä.md' %}" + RULES,
    "prompts/parts/ä.md": "Sei kurz. 簡潔に。\r\n",
    "prompts/examples.jsonl": '{"q": "Wie groß?"}\n{"q": "なぜ?"}\n',
    "classes/zebra.toml": CLASS.replace("[vars]", '[vars]\nlist = ["b", "a"]'),
    "classes/ask.toml": CLASS,
    "classes/few.toml": CLASS.replace("Fact", "{% for e in examples %}{{ e.q }} {% endfor %}Fact") + EXAMPLES,
    "facts.jsonl": '{"id": 1, "text": "x"}\n',
}
# The two time zones never have the same date.
ONE = {"TZ": "AAA+12", "PYTHONHASHSEED": "1", "LC_ALL": "C"}
OTHER = {"TZ": "BBB-14", "PYTHONHASHSEED": "77", "LC_ALL": "C.UTF-8", "LANG": "de_DE.UTF-8", "USER": "else"}


def made(root: Path, names: list[str], mode: int) -> Path:
    """Write the project's files in the order of `names`: a folder may list them so."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(FILES[name].encode())
        path.chmod(mode)
    return root


def built(
    folder: str, cwd: Path, environment: Mapping[str, str], umask: int
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(FAFO), "-C", folder, "build"],
        env={**os.environ, "PYTHONPATH": str(REPO), **environment},
        umask=umask,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def content(build: Path) -> dict[str, bytes]:
    files = (path for path in build.rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(build).as_posix(): path.read_bytes() for path in files}


def test_two_machines_give_the_same_bytes(tmp_path: Path) -> None:
    one = made(tmp_path / "one", list(FILES), 0o644)
    other = made(tmp_path / "deep/two words/ünï", list(reversed(FILES)), 0o600)
    for name in FILES:
        os.utime(other / name, (1, 1))
    home = tmp_path / "home"
    home.mkdir()
    done = [
        built(".", one, ONE, 0o022),
        built(str(other.relative_to(tmp_path)), tmp_path, {**OTHER, "HOME": str(home)}, 0o077),
    ]
    assert [found.returncode for found in done] == [0, 0], done
    found = content(one / "build")
    assert found == content(other / "build")
    assert len([name for name in found if name.startswith("artifacts/")]) == 2, "two classes are one work"
    assert not [name for name, data in found.items() if str(tmp_path).encode() in data]
    assert any(b"Today is 31 January 2026." in data for data in found.values())
    modes = {path.stat().st_mode & 0o777 for path in (other / "build").rglob("*.*") if path.is_file()}
    assert modes - {(other / "build/.lock").stat().st_mode & 0o777} == {0o644}


@pytest.mark.parametrize("environment", [ONE, OTHER])
def test_todays_date_is_refused_until_it_is_declared(tmp_path: Path, environment: dict[str, str]) -> None:
    root = made(tmp_path, list(FILES), 0o644)
    (root / "fafo.toml").write_text(FILES["fafo.toml"].replace("date = 2026-01-31", ""), "utf-8")
    done = built(".", root, environment, 0o022)
    assert done.returncode == 1
    assert "the chat template asks for today's date" in done.stderr
    assert "date" in done.stderr[done.stderr.index("cure:") :]
    assert content(root / "build") == {}
