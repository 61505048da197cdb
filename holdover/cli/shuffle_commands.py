"""`holdover shuffle-service start|list|drain`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from holdover.cli.command_line import (
    Addresses,
    AsJson,
    ConfigFile,
    Defines,
    Directory,
    run,
    write_json,
)
from holdover.errors import HoldoverError

if TYPE_CHECKING:
    from holdover.cli.connection import Target
    from holdover.v1.shuffle_service_pb2 import DrainResponse

# `start` hands all its arguments on.
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(
    help="Processes that keep partitions for many TaskManagers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class UnknownShuffleService(HoldoverError):
    """No registered shuffle service has this name."""


@app.command("start", context_settings=_PASS_ON)
def start(context: typer.Context) -> None:
    """Run a shuffle service in the foreground: --config FILE, -D key=value."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "shuffle", *context.args])


@app.command("list")
def list_services(
    addresses: Addresses = None,
    directory: Directory = None,
    config: ConfigFile = None,
    defines: Defines = None,
    as_json: AsJson = False,
) -> None:
    """List the registered shuffle services, what they hold and what they still take."""
    from holdover.cli.answers import shuffle_services
    from holdover.cli.connection import Target

    run(shuffle_services(Target(addresses or (), directory, config, defines or ()), as_json))


@app.command("drain")
def drain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its resource id, as listed.")],
    addresses: Addresses = None,
    directory: Directory = None,
    config: ConfigFile = None,
    defines: Defines = None,
    as_json: AsJson = False,
) -> None:
    """Have a shuffle service take nothing new, and end once no live job needs what it holds."""
    from holdover.cli.connection import Target

    run(_drain(Target(addresses or (), directory, config, defines or ()), name, as_json))


async def _drain(target: Target, name: str, as_json: bool) -> None:
    from holdover.cli.command_line import human_bytes

    async with target.client() as client:
        services = {service.resource_id: service for service in await client.shuffle_services()}
    service = services.get(name)
    if service is None:
        known = ", ".join(services) if services else "none"
        raise UnknownShuffleService(f"no shuffle service {name!r} is registered; known: {known}")
    answer = await _ask(target, service.address)
    if as_json:
        held = {"executions": answer.executions, "partition_bytes": answer.partition_bytes}
        write_json({"resource_id": name, **held})
        return
    typer.echo(
        f"{name} takes nothing new, and ends once no live job needs what it holds:"
        f" {answer.executions} executions, {human_bytes(answer.partition_bytes)}"
    )


async def _ask(target: Target, address: str) -> DrainResponse:
    from holdover.cli.draining import ask_to_leave
    from holdover.coordination.rpc_call import CallFailed
    from holdover.errors import ClusterError
    from holdover.runtime.real import real_runtime
    from holdover.runtime.transport_security import credential_files

    runtime = real_runtime(credentials=credential_files(target.configuration()))
    try:
        return await ask_to_leave(runtime, address)
    except CallFailed as error:
        raise ClusterError(f"the shuffle service at {address} cannot be told: {error}") from error
