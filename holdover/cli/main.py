"""The `holdover` command.

Each command imports what it needs when it runs, so that the command as a whole starts quickly.

Exit codes: 0 success; 1 the command cannot do what it was asked for (bad configuration, invalid
job, unknown job, ...), or something did not hold in the run of a scenario; 2 wrong usage of the
command line; 3 the job failed, was cancelled or is parked; 4 the cluster cannot be reached; 130
interrupted.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from holdover.cli import cluster_commands, event_commands, job_commands, shuffle_commands
from holdover.cli.certs_command import certs
from holdover.cli.chaos import chaos
from holdover.cli.health_command import health
from holdover.cli.run_scenario import run_scenario
from holdover.cli.simulate_commands import simulate

app = typer.Typer(
    name="holdover",
    help=(
        "A batch cluster whose finished work outlives its JobManager.\n\n"
        "Exit codes: 0 success, 1 refused, 2 wrong usage, 3 job failed or cancelled,"
        " 4 cluster unreachable."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(cluster_commands.app, name="cluster")
job_commands.register(app)
app.add_typer(event_commands.app, name="events")
app.add_typer(shuffle_commands.app, name="shuffle-service")
app.command("simulate")(simulate)
app.command("run")(run_scenario)
app.command("certs")(certs)
app.command("chaos")(chaos)
app.command("health")(health)

# Commands that hand all their arguments on.
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(version("holdover"))
        except PackageNotFoundError:
            typer.echo("unknown: run from its source tree, not installed")
        raise typer.Exit


@app.callback()
def _holdover(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options of the command itself."""


@app.command("jobmanager", context_settings=_PASS_ON)
def jobmanager(context: typer.Context) -> None:
    """Run a JobManager in the foreground: --config FILE, -D key=value."""
    _become("jobmanager", context.args)


@app.command("taskmanager", context_settings=_PASS_ON)
def taskmanager(context: typer.Context) -> None:
    """Run a TaskManager in the foreground: --config FILE, -D key=value."""
    _become("taskmanager", context.args)


if find_spec("holdover.cli.demo") is not None:

    @app.command("demo", context_settings=_PASS_ON)
    def demo(context: typer.Context) -> None:
        """Show a cluster that loses its JobManager in the middle of a job, and continues."""
        from importlib import import_module

        import_module("holdover.cli.demo").app(args=context.args, prog_name="holdover demo")


def main() -> None:
    """Entry point of the `holdover` command."""
    app()


def _become(module: str, arguments: list[str]) -> None:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


if __name__ == "__main__":
    main()
