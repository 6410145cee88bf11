"""The command line itself: quick to answer, one place for errors, an exit code for each kind of end."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

import fafo_run.cli
from fafo_build.errors import DeclarationError, ExitCode
from fafo_run.cli import _run

HEAVY = {
    "aiohttp", "asyncio", "cattrs", "gguf", "jinja2", "lmdb", "numpy", "pyarrow", "rich", "tokenizers",
    "torch", "transformers", "tree_sitter",
}  # fmt: skip


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, fafo_run.cli; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


class Panic(BaseException):
    """As that of a library in Rust, which is no `Exception`."""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            DeclarationError.of("no such thing", cure="make one"),
            ExitCode.USER_ERROR,
            "no such thing\n  cure: make one",
        ),
        (click.UsageError("wrong word"), ExitCode.USAGE, "wrong word"),
        (click.exceptions.Abort(), ExitCode.INTERRUPTED, ""),
        (RuntimeError("surprise"), ExitCode.BUG, "This is a bug in fafo"),
        (Panic("a library gave up"), ExitCode.BUG, "This is a bug in fafo"),
        (
            ModuleNotFoundError("No module named 'httptools.parser'", name="httptools.parser"),
            ExitCode.USER_ERROR,
            "the package httptools isn't installed\n  cure: install fafo anew",
        ),
        (ModuleNotFoundError("No module named 'fafo_run.x'", name="fafo_run.x"), ExitCode.BUG, "is a bug"),
    ],
)
def test_every_end_has_its_exit_code_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    said: str,
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(fafo_run.cli.cli, "main", fail)
    assert _run() == code
    assert said in capsys.readouterr().err


def test_a_usage_error_is_clicks_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["fafo", "run", "--limit", "many"])
    assert _run() == ExitCode.USAGE
    assert "--limit" in capsys.readouterr().err
