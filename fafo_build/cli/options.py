"""Options and small helpers that every command shares. Imports nothing heavy: `fafo --help` must be quick."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fafo_build.visible import visible

if TYPE_CHECKING:
    from fafo_build.project.declaration import Project

_Command = TypeVar("_Command", bound=Callable[..., Any])


USED_ARTIFACTS = "fafo.used_artifacts"
"""Where `meta` of click's context holds the function that says which artifacts a project's results and queues
refer to. The commands of a build know nothing of runs, so whoever puts them together gives it to them.
"""

FIT = "fafo.fit"
"""Where it holds, for the same reason, the function that holds artifacts against the sources of a project. It
returns what it could not look at, in lines for people, and raises where a prompt can't fit.
"""


def json_option(command: _Command) -> _Command:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys to stdout.")(
        command
    )


def quiet_option(command: _Command) -> _Command:
    """Add `--quiet`."""
    return click.option("--quiet", "-q", is_flag=True, help="Say nothing but errors.")(command)


def project_of(context: click.Context) -> Project:
    """Return the project that `-C` names, or the one that holds the present folder.

    Raises `DeclarationError`.
    """
    from fafo_build.project.load import find_root, load_project

    return load_project(find_root(Path(context.obj or ".")))


def say(text: str = "", *, quiet: bool = False) -> None:
    """Print a line for people, to stderr: stdout is for data."""
    if not quiet:
        click.echo(visible(text), err=True)


def tell(text: str, **style: Any) -> None:
    """Print what a person has asked for to stdout; `style` is `click.style`'s, for terminals only."""
    click.echo(click.style(visible(text), reset=bool(style), **style))


def print_json(value: object) -> None:
    """Print data to stdout."""
    print_data(json.dumps(value, indent=2, ensure_ascii=False))


def print_data(line: object) -> None:
    """Print a line that programs read to stdout, as it is."""
    click.echo(line)
