"""Every command and every option is documented, and nothing is that doesn't exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fafo_run.cli import cli

DOC = (Path(__file__).parents[2] / "docs" / "commands.md").read_text("utf-8")


def commands(group: click.Group = cli, path: str = "fafo") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


@pytest.mark.parametrize(("path", "command"), list(commands()))
def test_every_command_has_a_heading_and_help(path: str, command: click.Command) -> None:
    words = path.removeprefix("fafo ").split()
    heading = next((line for line in DOC.splitlines() if line.startswith(f"## fafo {words[0]}")), "")
    assert all(word in heading for word in words), f"docs/commands.md has no heading for `{path}`"
    assert command.help


@pytest.mark.parametrize(("path", "command"), list(commands()))
def test_the_list_of_commands_says_what_each_does_in_one_line(path: str, command: click.Command) -> None:
    # What is too long for a terminal of 80 columns would be cut.
    assert not command.get_short_help_str(80 - len("  failures  ") - 2).endswith("..."), path


@pytest.mark.parametrize(("path", "command"), list(commands()))
def test_every_option_is_documented(path: str, command: click.Command) -> None:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.name} has no help"
            assert any(f"`{name}" in DOC or f"[{name}" in DOC for name in parameter.opts), (
                f"{path} {parameter.opts}"
            )


def test_no_command_is_documented_that_doesnt_exist() -> None:
    known = {path.split()[1] for path, _ in commands()}
    assert set(re.findall(r"^## fafo (\w+)", DOC, re.MULTILINE)) == known
