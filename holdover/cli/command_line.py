"""What all commands share: their common options, their errors, their output."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

EXIT_REFUSED = 1
EXIT_JOB_ENDED = 3
EXIT_UNREACHABLE = 4
EXIT_INTERRUPTED = 130

ResultT = TypeVar("ResultT")

Addresses = Annotated[
    list[str] | None,
    typer.Option(
        "--address",
        "-a",
        metavar="HOST:PORT",
        help="A JobManager; may be given several times. Default: the local cluster.",
    ),
]
Directory = Annotated[
    Path | None,
    typer.Option(
        help="Directory of the local cluster. Default: $HOLDOVER_HOME or ~/.holdover/local.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="Configuration file (YAML). Default: $HOLDOVER_CONFIG."),
]
Defines = Annotated[
    list[str] | None,
    typer.Option("-D", metavar="KEY=VALUE", help="Set an option; may be given several times."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON to standard output.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]


def local_directory(directory: Path | None) -> Path:
    """The local cluster's directory: as given, or from the environment, or the usual place."""
    import os

    home = os.environ.get("HOLDOVER_HOME")
    return directory or Path(home or "~/.holdover/local").expanduser()


def run(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a command's work; an error becomes one sentence and an exit code."""
    import asyncio

    with errors_told():
        return asyncio.run(work)


async def until_terminated(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Lets Ctrl-C and SIGTERM end the work in its own order, which stops what it has started."""
    import asyncio
    import signal

    task = asyncio.current_task()
    assert task is not None
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, task.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def new_directory(wanted: Path | None, option: str, prefix: str) -> Path:
    """An empty directory: the one that `option` wants, or else a temporary one.

    Raises OSError, DirectoryNotEmpty when it holds something.
    """
    import tempfile

    from holdover.cli.local_cluster import DirectoryNotEmpty

    if wanted is None:
        return Path(tempfile.mkdtemp(prefix=prefix))
    wanted.mkdir(parents=True, exist_ok=True)
    if any(wanted.iterdir()):
        raise DirectoryNotEmpty(f"{wanted} is not empty: choose a new {option} for the cluster")
    return wanted.absolute()


@contextmanager
def errors_told() -> Iterator[None]:
    """Turn errors that a user can act on into a sentence on standard error and an exit code."""
    from holdover.errors import ClusterError, HoldoverError, JobEnded, JobFailed

    try:
        yield
    except HoldoverError as error:
        tell(str(error))
        if isinstance(error, JobFailed) and error.traceback:
            typer.echo(error.traceback.rstrip(), err=True)
        code = EXIT_REFUSED
        if isinstance(error, JobEnded):
            code = EXIT_JOB_ENDED
        elif isinstance(error, ClusterError):
            code = EXIT_UNREACHABLE
        raise typer.Exit(code) from None
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        tell(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        raise typer.Exit(EXIT_REFUSED) from None
    except KeyboardInterrupt:
        tell("interrupted")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def tell(text: str) -> None:
    """Say something to the person, apart from the command's output."""
    typer.echo(f"holdover: {text}", err=True)


def write_json(value: object) -> None:
    """One JSON document, on one line."""
    typer.echo(json.dumps(value, ensure_ascii=False, default=str))


def write_table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """A table for people; `empty` is said instead when there are no rows."""
    if not rows:
        typer.echo(empty)
        return
    for line in table_lines(columns, rows):
        typer.echo(line)


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """The lines of a table; columns of numbers alone stand to the right."""
    texts = [[str(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(len(row[i]) for row in texts) for i in range(len(columns))]
    numeric = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
    for row in texts:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def human_bytes(count: int) -> str:
    """`3.4 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def human_time(wall_ms: int) -> str:
    """Local time of day with date; `-` for 0."""
    from datetime import datetime

    if not wall_ms:
        return "-"
    moment = datetime.fromtimestamp(wall_ms / 1000).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S")
