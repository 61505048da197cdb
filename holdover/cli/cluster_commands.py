"""`holdover cluster start|stop|status`: a cluster of processes on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdover.cli.command_line import (
    EXIT_UNREACHABLE,
    Addresses,
    AsJson,
    ConfigFile,
    Defines,
    Directory,
    local_directory,
    run,
    tell,
    write_json,
)

if TYPE_CHECKING:
    from holdover.cli.connection import Target
    from holdover.cli.local_cluster import LocalCluster
    from holdover.v1.jobmanager_pb2 import GetClusterResponse

_SLOTS = 2

app = typer.Typer(
    help="A cluster of processes on this machine.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("start")
def start(
    taskmanagers: Annotated[int, typer.Option(min=0, help="Number of TaskManagers.")] = 3,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Slots of each TaskManager; 2 unless configured.")
    ] = None,
    shuffle_services: Annotated[
        int,
        typer.Option(
            min=0, help="Number of shuffle services; `shuffle.mode` is external then by default."
        ),
    ] = 0,
    directory: Directory = None,
    config: ConfigFile = None,
    defines: Defines = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to become ready.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Start a JobManager and its workers in the background, and wait until they are ready."""
    size = _Size(taskmanagers, slots, shuffle_services)
    run(_start(size, local_directory(directory), config, defines, timeout, as_json))


@app.command("stop")
def stop(directory: Directory = None, as_json: AsJson = False) -> None:
    """Stop the local cluster; its jobs and partitions are kept for the next start."""
    run(_stop(local_directory(directory), as_json))


@app.command("restart-jobmanager")
def restart_jobmanager(
    directory: Directory = None,
    defines: Defines = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to become ready.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Start a local cluster's JobManager again after its death, at the address it had.

    It gets the options that the cluster was started with, and those given here.
    """
    run(_restart_jobmanager(local_directory(directory), defines, timeout, as_json))


@app.command("status")
def status(
    addresses: Addresses = None,
    directory: Directory = None,
    config: ConfigFile = None,
    defines: Defines = None,
    as_json: AsJson = False,
) -> None:
    """Show who leads and how large the cluster is, and the processes of a local one."""
    from holdover.cli.connection import Target

    run(_status(Target(addresses or (), directory, config, defines or ()), as_json))


@dataclass(frozen=True, slots=True)
class _Size:
    """How many processes a cluster has; slots are of each TaskManager, None for as configured."""

    taskmanagers: int
    slots: int | None
    shuffle_services: int


async def _start(
    size: _Size,
    directory: Path,
    config_file: Path | None,
    defines: list[str] | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    import os

    from holdover.cli.local_cluster import LocalCluster
    from holdover.config import TASKMANAGER_NUMBER_OF_TASK_SLOTS, Configuration

    # The environment reaches the processes by itself, and a mistake in it is told here already.
    file = str(config_file) if config_file is not None else os.environ.get("HOLDOVER_CONFIG")
    settings = Configuration.load(file, os.environ, defines or ())
    options = {entry.key: entry.value for entry in settings.to_entries()}
    slots = size.slots or int(options.get(TASKMANAGER_NUMBER_OF_TASK_SLOTS.key, _SLOTS))
    cluster = LocalCluster(
        directory,
        taskmanagers=size.taskmanagers,
        slots=slots,
        shuffle_services=size.shuffle_services,
        options=options,
    )
    await cluster.start(timeout_s)
    if as_json:
        write_json(_local(cluster))
        return
    services = f", {size.shuffle_services} shuffle services" if size.shuffle_services else ""
    typer.echo(
        f"JobManager {cluster.address}, {size.taskmanagers} TaskManagers with {slots} slots each"
        f"{services}"
    )
    typer.echo(f"logs: {cluster.log_path().parent}")


async def _restart_jobmanager(
    directory: Path, defines: list[str] | None, timeout_s: float, as_json: bool
) -> None:
    from holdover.cli.local_cluster import LocalCluster, LocalClusterError
    from holdover.config import Configuration

    given = Configuration.load(overrides=defines or ())
    options = {entry.key: entry.value for entry in given.to_entries()}
    cluster = LocalCluster(directory)
    if not cluster.recorded():
        raise LocalClusterError(
            f"the local cluster in {directory} does not run: start it with `holdover cluster start`"
        )
    cluster.options |= options
    cluster.start_jobmanager()
    await cluster.wait_until_ready(0, timeout_s)
    if as_json:
        write_json(_local(cluster))
    else:
        typer.echo(f"JobManager {cluster.address}")


async def _stop(directory: Path, as_json: bool) -> None:
    from holdover.cli.local_cluster import LocalCluster

    cluster = LocalCluster(directory)
    stopped = sorted(cluster.processes())
    await cluster.stop()
    if as_json:
        write_json({"directory": str(directory), "stopped": stopped})
    elif stopped:
        typer.echo(f"stopped {', '.join(stopped)}")
    else:
        typer.echo(f"nothing runs in {directory}")


async def _status(target: Target, as_json: bool) -> None:
    from holdover.cli.local_cluster import LocalCluster
    from holdover.cli.plain import plain
    from holdover.errors import ClusterError

    local: dict[str, Any] = {}
    if target.is_local():
        local = _local(LocalCluster(local_directory(target.directory)))
    try:
        async with target.client() as client:
            cluster = await client.cluster()
    except ClusterError as error:
        if not local:
            raise
        if as_json:
            write_json({**local, "cluster": None, "problem": str(error)})
        else:
            _write_processes(local)
            tell(str(error))
        raise typer.Exit(EXIT_UNREACHABLE) from None
    if as_json:
        write_json({**local, "cluster": plain(cluster)})
        return
    _write_cluster(cluster)
    _write_processes(local)


def _local(cluster: LocalCluster) -> dict[str, Any]:
    living = cluster.processes()
    return {
        "directory": str(cluster.directory),
        "address": cluster.address,
        "processes": [
            {"name": name, "pid": living.get(name), "log": str(cluster.log_path(name))}
            for name in cluster.recorded()
        ],
    }


def _write_cluster(cluster: GetClusterResponse) -> None:
    readiness = "ready" if cluster.ready else "loading its jobs"
    typer.echo(f"JobManager {cluster.leader_address}, epoch {cluster.leader_epoch}, {readiness}")
    typer.echo(
        f"{cluster.taskmanagers} TaskManagers, {cluster.slots_free} of {cluster.slots} slots free"
    )
    if cluster.shuffle_services:
        typer.echo(f"{cluster.shuffle_services} shuffle services")
    if cluster.reconciling_job_ids:
        typer.echo(f"being recovered: {', '.join(cluster.reconciling_job_ids)}")


def _write_processes(local: dict[str, Any]) -> None:
    for process in local.get("processes", ()):
        state = f"pid {process['pid']}" if process["pid"] is not None else "not running"
        typer.echo(f"{process['name']}: {state}, log {process['log']}")
