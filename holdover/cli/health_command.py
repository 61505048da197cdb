"""`holdover health ADDRESS`: whether one process answers, as container engines ask it."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from holdover.cli.command_line import (
    EXIT_UNREACHABLE,
    AsJson,
    ConfigFile,
    Defines,
    run,
    tell,
    write_json,
)


def health(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="A process of a cluster.")],
    serving: Annotated[
        bool, typer.Option("--serving", help="A JobManager must lead: a standby is not enough.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds to answer.")] = 5.0,
    config: ConfigFile = None,
    defines: Defines = None,
    as_json: AsJson = False,
) -> None:
    """Ask one JobManager or TaskManager whether it is well: `serving`, or `standby`.

    Exit code 4 when it does not answer in time; with --serving also for a standby.
    """
    state = run(_state(address, timeout, config, defines))
    if as_json:
        write_json({"address": address, "state": state})
    else:
        typer.echo(state)
    if serving and state != "serving":
        tell(f"{address} answers, and does not lead")
        raise typer.Exit(EXIT_UNREACHABLE)


async def _state(address: str, timeout_s: float, config: ConfigFile, defines: Defines) -> str:
    """`serving`, or `standby` for a JobManager that does not lead. Raises ClusterError when nothing
    answers."""
    import grpc
    import grpc.aio
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from holdover.config import Configuration
    from holdover.errors import ClusterError, ConfigurationError
    from holdover.runtime import may_be_insecure
    from holdover.runtime.real_network import TcpNetwork
    from holdover.runtime.transport_security import credential_files

    file = str(config) if config is not None else os.environ.get("HOLDOVER_CONFIG")
    configuration = Configuration.load(file or None, os.environ, defines or ())
    network = TcpNetwork(credential_files(configuration))
    try:
        channel = network.channel(address)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    async with channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name} {error.details() or ''}".rstrip()
            if may_be_insecure(error.details() or ""):
                reason = await network.obstacle(address) or reason
            raise ClusterError(f"nothing answers at {address}: {reason}") from error
    return "serving" if answer.status == health_pb2.HealthCheckResponse.SERVING else "standby"
