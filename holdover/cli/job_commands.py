"""The commands about jobs and TaskManagers: what can be asked, and how it is answered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdover.cli.command_line import (
    Addresses,
    AsJson,
    ConfigFile,
    Defines,
    Directory,
    JobId,
    run,
)

if TYPE_CHECKING:
    from holdover.cli.connection import Target


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("list")(list_jobs)
    for command in (submit, show, watch, cancel, retry, result, taskmanagers, recovery):
        app.command(command.__name__)(command)


def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="Defines the job.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="For the file's build(args).")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch/--detach", help="Stay until the job has ended, or return.")
    ] = True,
    job_id: Annotated[
        str | None, typer.Option(help="The job's id; the same id is the same submission.")
    ] = None,
    addresses: Addresses = None,
    directory: Directory = None,
    config: ConfigFile = None,
    defines: Defines = None,
    as_json: AsJson = False,
) -> None:
    """Submit the job that a Python file defines.

    The file defines `build(args)`, which takes the list of ARGS and returns a holdover.Job, or a
    job named `job`. ARGS that begin with a dash stand after `--`. With -D, options of the job can
    be set as well.
    """
    from holdover.cli import submitting

    asked = target(addresses, directory, config, defines)
    run(submitting.submit(asked, file, arguments or [], job_id, watch=watch, as_json=as_json))


def list_jobs(
    addresses: Addresses = None,
    directory: Directory = None,
    config: ConfigFile = None,
    defines: Defines = None,
    as_json: AsJson = False,
) -> None:
    """List all jobs, newest first."""
    from holdover.cli import answers

    run(answers.list_jobs(target(addresses, directory, config, defines), as_json))


def show(
    job: JobId,
    subtasks: Annotated[bool, typer.Option("--subtasks", help="Show every subtask.")] = False,
    addresses: Addresses = None,
    directory: Directory = None,
    config: ConfigFile = None,
    defines: Defines = None,
    as_json: AsJson = False,
) -> None:
    """Show a job with its vertices."""
    from holdover.cli import answers

    run(answers.show(target(addresses, directory, config, defines), job, subtasks, as_json))


def watch(
    job: JobId,
    addresses: Addresses = None,
    directory: Directory = None,
    config: ConfigFile = None,
    defines: Defines = None,
    as_json: AsJson = False,
) -> None:
    """Follow a job until it has ended, also over the loss of its JobManager.

    With --json every status is one line.
    """
    from holdover.cli import submitting

    run(submitting.watch(target(addresses, directory, config, defines), job, as_json=as_json))


def cancel(
    job: JobId,
    addresses: Addresses = None,
    directory: Directory = None,
    config: ConfigFile = None,
    defines: Defines = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a job."""
    from holdover.cli import answers

    run(answers.cancel(target(addresses, directory, config, defines), job, as_json))


def retry(
    job: JobId,
    addresses: Addresses = None,
    directory: Directory = None,
    config: ConfigFile = None,
    defines: Defines = None,
    as_json: AsJson = False,
) -> None:
    """Take up a parked job again."""
    from holdover.cli import answers

    run(answers.retry(target(addresses, directory, config, defines), job, as_json))


def result(
    job: JobId,
    limit: Annotated[int, typer.Option(min=0, help="Rows at most; 0 for all.")] = 20,
    files: Annotated[bool, typer.Option("--files", help="List the files instead.")] = False,
    addresses: Addresses = None,
    directory: Directory = None,
    config: ConfigFile = None,
    defines: Defines = None,
    as_json: AsJson = False,
) -> None:
    """Show the output of a finished job, or where it is."""
    from holdover.cli import answers

    asked = target(addresses, directory, config, defines)
    if files:
        run(answers.result_files(asked, job, as_json))
    else:
        run(answers.result_rows(asked, job, limit or None, as_json))


def taskmanagers(
    addresses: Addresses = None,
    directory: Directory = None,
    config: ConfigFile = None,
    defines: Defines = None,
    as_json: AsJson = False,
) -> None:
    """List the TaskManagers and what they hold."""
    from holdover.cli import answers

    run(answers.taskmanagers(target(addresses, directory, config, defines), as_json))


def recovery(
    job: JobId,
    addresses: Addresses = None,
    directory: Directory = None,
    config: ConfigFile = None,
    defines: Defines = None,
    as_json: AsJson = False,
) -> None:
    """Show what each failover cost a job: what was kept, what ran again, and why."""
    from holdover.cli import answers

    run(answers.recovery(target(addresses, directory, config, defines), job, as_json))


def target(
    addresses: list[str] | None,
    directory: Path | None,
    config_file: Path | None,
    defines: list[str] | None,
) -> Target:
    """Where a command's options say that the cluster is."""
    from holdover.cli.connection import Target

    return Target(addresses or (), directory, config_file, defines or ())
