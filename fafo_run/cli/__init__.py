"""The command `fafo`: parse, call, print. Every error that a person sees is printed here, in one place."""

from __future__ import annotations

import errno
import io
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fafo_build.cli.build import build
from fafo_build.cli.diff import diff
from fafo_build.cli.init import init
from fafo_build.cli.options import FIT, USED_ARTIFACTS, say
from fafo_build.cli.schema import schema
from fafo_build.errors import DeclarationError, ExitCode, FafoError, SourceError
from fafo_run.cli.engine import engine
from fafo_run.cli.export import export
from fafo_run.cli.failures import failures
from fafo_run.cli.items import items
from fafo_run.cli.model import model
from fafo_run.cli.plan import plan
from fafo_run.cli.replay import replay
from fafo_run.cli.retry import retry
from fafo_run.cli.run import run
from fafo_run.cli.show import show
from fafo_run.cli.status import status
from fafo_run.cli.store import store
from fafo_run.cli.submit import submit
from fafo_run.cli.verify import verify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fafo_build.bake.artifact import Artifact
    from fafo_build.project.declaration import Project, Source


_OURS = ("", "fafo_build", "fafo_run")


class _Located(click.Group):
    """Adds to every error where in the project's files its field stands."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            if not Path(ctx.params["folder"]).is_dir():
                raise DeclarationError.of(
                    f"no folder {ctx.params['folder']}", cure="name a project's folder with -C"
                )
            return super().invoke(ctx)
        except FafoError as error:
            from fafo_build.project.locate import located

            raise located(error, Path(ctx.params["folder"])) from error


@click.group(cls=_Located, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-C", "folder", metavar="DIR", default=".", help="The project's folder, or one inside it.")
@click.version_option(package_name="fafo")
@click.pass_context
def cli(context: click.Context, folder: str) -> None:
    """Make for model-generated datasets: bake prompts, run them over sources, prove the cache.

    Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 your input, 2 usage,
    3 finished but some items failed, 4 verify: below, 5 verify: can't tell, 6 store check: damaged,
    70 a bug in fafo, 130 interrupted (state safe).
    """
    context.obj = folder
    context.meta[USED_ARTIFACTS] = _used_artifacts
    context.meta[FIT] = _fit


def _used_artifacts(project: Project) -> frozenset[str]:
    from fafo_run.run.artifacts import used_artifacts

    return used_artifacts(project)


def _fit(project: Project, artifacts: Mapping[str, Artifact]) -> list[str]:
    from fafo_run.run.fit import check_fit

    unread: list[str] = []

    def note(source: Source, error: SourceError) -> None:
        why = error.problems[0].message
        unread.append(f"  source {source.name} can't be read here, so only a run tests its rows: {why}")

    declared = ((project.classes[name], artifact) for name, artifact in artifacts.items())
    asked = [(of, artifact, [project.sources[name] for name in of.sources]) for of, artifact in declared]
    check_fit(project, asked, unread=note)
    return unread


for _command in (
    *(init, build, diff, items, plan, run, submit, status, verify, show, replay),
    *(failures, retry, export, store, engine, model, schema),
):
    cli.add_command(_command)


def main() -> None:
    """Run the command line and end the process with the exit code of docs/errors.md."""
    try:
        code = _run()
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    # The end is decided; another Ctrl-C while Python shuts down would only change the exit code.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _run() -> int:
    _print_utf8()
    try:
        code = cli.main(standalone_mode=False)
    except FafoError as error:
        say(error.render())
        return error.exit_code
    except click.exceptions.Abort:
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - printed whole, with its own exit code; a panic is no Exception
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            say("no space left where the output goes\n  cure: make room, or print elsewhere")
            return ExitCode.USER_ERROR
        if isinstance(error, ModuleNotFoundError) and _package(error) not in _OURS:
            cure = "install fafo anew, with what it needs: pip install fafo, or in a clone pip install -e ."
            say(f"the package {_package(error)} isn't installed\n  cure: {cure}")
            return ExitCode.USER_ERROR
        say(traceback.format_exc() + _bug_report())
        return ExitCode.BUG
    return code if isinstance(code, int) else ExitCode.DONE


def _package(error: ModuleNotFoundError) -> str:
    return (error.name or "").partition(".")[0]


def _print_utf8() -> None:
    """Print data as UTF-8 whatever the locale says: it is read by programs, and rows hold any character."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _bug_report() -> str:
    import platform

    from fafo_run.version import VERSION

    return (
        "\nThis is a bug in fafo. What was recorded is safe.\n"
        "Please report the lines above, the command, and:\n"
        f"  fafo {VERSION}, Python {platform.python_version()}, {platform.platform()}"
    )
