"""`holdover submit` and `holdover watch`."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import typer

from holdover.cli.command_line import write_json
from holdover.cli.connection import LeaderNotices, Target
from holdover.cli.plain import plain
from holdover.cli.progress import WatchDisplay, watch_display
from holdover.client import Client, raise_for_end


async def submit(
    target: Target,
    file: Path,
    arguments: list[str],
    job_id: str | None,
    *,
    watch: bool,
    as_json: bool,
) -> None:
    """Submit the file's job, and follow it if wished."""
    from holdover.cli.job_file import load_job

    job = load_job(file, arguments)
    if not watch:
        async with target.client() as client:
            submitted = await client.submit(job, job_id, target.job_options())
        if as_json:
            write_json({"job_id": submitted})
        else:
            typer.echo(submitted)
        return
    with watch_display(quiet=as_json) as display:
        async with target.client(LeaderNotices(display.say, patience_s=0)) as client:
            submitted = await client.submit(job, job_id, target.job_options())
            if not as_json:
                typer.echo(submitted)
            await _follow(client, submitted, display, as_json)


async def watch(target: Target, job_id: str, *, as_json: bool) -> None:
    """Follow a job until it has ended."""
    with watch_display(quiet=as_json) as display:
        async with target.client(LeaderNotices(display.say, patience_s=0)) as client:
            await _follow(client, job_id, display, as_json)


async def _follow(client: Client, job_id: str, display: WatchDisplay, as_json: bool) -> None:
    """Show every status. Raises JobFailed and JobCanceled, also for a parked job."""
    async with aclosing(client.watch(job_id)) as statuses:
        async for status in statuses:
            if as_json:
                write_json(plain(status))
            else:
                display.show(status)
            raise_for_end(status)
