"""`fafo schema`: JSON Schema of a project's files, for editors."""

from __future__ import annotations

from pathlib import Path

import click

from fafo_build.cli.options import print_data, say


@click.command(short_help="Print the JSON Schema of the files, for editors.")
@click.argument("which", metavar="[fafo|class]", type=click.Choice(["fafo", "class"]), required=False)
@click.option("--write", is_flag=True, help="Write both schemas beside fafo.toml.")
@click.pass_context
def schema(context: click.Context, which: str | None, write: bool) -> None:
    """Print the JSON Schema of fafo.toml or of a class file, so that editors complete and check them."""
    if (which is None) != write:
        raise click.UsageError("say which schema to print, fafo or class; or --write, for both")
    from fafo_build.project.schema import schema_text, write_schemas

    if which is not None:
        print_data(schema_text(which).removesuffix("\n"))
        return
    from fafo_build.project.load import find_root

    main, of_class = write_schemas(find_root(Path(context.obj or ".")))
    say(f"  wrote {main}")
    say(f"  wrote {of_class}")
    say(f"first line of fafo.toml, for editors: #:schema ./{main.name}")
    say(f"first line of classes/NAME.toml:      #:schema ../{of_class.name}")
