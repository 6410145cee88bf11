"""`fafo model`: where the model's files are, in the form that servers load."""

from __future__ import annotations

import click

from fafo_build.cli.options import print_data, project_of


@click.command(short_help="Print the folder of a model, for servers.")
@click.argument("name", required=False)
@click.pass_context
def model(context: click.Context, name: str | None) -> None:
    """Print the folder of the model NAME (default: the only one), converting a GGUF once.

    For servers: python -m sglang.launch_server --model-path "$(fafo model)"
    """
    from fafo_build.errors import DeclarationError
    from fafo_build.project.values import did_you_mean
    from fafo_run.engines.weights import model_folder

    project = project_of(context)
    if name is None and len(project.models) > 1:
        raise DeclarationError.of(
            "the project has several models", cure=f"name one of {', '.join(project.models)}"
        )
    chosen = name or next(iter(project.models))
    if chosen not in project.models:
        raise DeclarationError.of(
            f'no model named "{chosen}" is declared', cure=did_you_mean(chosen, project.models, what="models")
        )
    print_data(model_folder(project.models[chosen], project.root))
