"""`holdover events JOB`, and `holdover events verify|dump DIR` without a cluster.

The first argument decides: `verify` and `dump` are the commands on directories, everything else is
a job. A job that is called like them is shown by `holdover events -- verify`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdover.cli.command_line import (
    EXIT_REFUSED,
    Addresses,
    AsJson,
    ConfigFile,
    Defines,
    Directory,
    JobId,
    run,
)
from holdover.cli.job_commands import target

_OF_A_JOB = "JOB"
_ON_DIRECTORIES = ("verify", "dump")

LogDirectory = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="An events directory, that of a job, or a whole storage directory.",
    ),
]


class _EventsGroup(TyperGroup):
    """Takes what is no command of it for a job."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click's `Command.parse_args`; whose `Context` it is depends on typer's version."""
        if args and args[0] not in (*_ON_DIRECTORIES, "--help"):
            args = [_OF_A_JOB, *args]
        rest: list[str] = super().parse_args(ctx, args)
        return rest


app = typer.Typer(
    cls=_EventsGroup,
    help="A job's event log: of a running cluster by the job's id, or in a directory, offline.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(_OF_A_JOB)
def show(
    job: JobId,
    from_sequence: Annotated[int, typer.Option("--from", min=1, help="First number.")] = 1,
    addresses: Addresses = None,
    directory: Directory = None,
    config: ConfigFile = None,
    defines: Defines = None,
    as_json: AsJson = False,
) -> None:
    """Show a job's event log, decoded. With --json every event is one line."""
    from holdover.cli import answers

    run(answers.events(target(addresses, directory, config, defines), job, from_sequence, as_json))


@app.command("verify")
def verify(directory: LogDirectory, as_json: AsJson = False) -> None:
    """Check every byte of event logs on this machine, and whether they can be replayed.

    Each finding names file and offset. Exit code 1 when a log cannot be replayed. Traces of a
    crash, which cost nothing that was durable, are told and are no failure.
    """
    from holdover.cli import event_logs

    if not run(event_logs.verify(str(directory.absolute()), as_json)):
        raise typer.Exit(EXIT_REFUSED)


@app.command("dump")
def dump(directory: LogDirectory, as_json: AsJson = False) -> None:
    """Show all records of event logs on this machine, with file and offset, also behind damage.

    Exit code 1 when something is damaged. With --json every item is one line.
    """
    from holdover.cli import event_logs

    if not run(event_logs.dump(str(directory.absolute()), as_json)):
        raise typer.Exit(EXIT_REFUSED)
