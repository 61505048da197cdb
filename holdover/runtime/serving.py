"""What the processes of all workers have in common: how they serve, and how they close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from holdover.runtime.log import Log
from holdover.runtime.network import Network, Server

_log = Log(__name__)


async def server_with_health(
    network: Network,
    bind_address: str,
    service_name: str,
    add_to_server: Callable[[Any, Any], None],
    servicer: object,
) -> Server:
    """A server of one gRPC service, not started yet, with its health, which is SERVING, and with
    reflection."""
    server = network.server(bind_address)
    server.add(add_to_server, servicer)
    status = health.aio.HealthServicer()
    for name in ("", service_name):
        await status.set(name, health_pb2.HealthCheckResponse.SERVING)
    server.add(health_pb2_grpc.add_HealthServicer_to_server, status)
    names = (service_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
    server.add(
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server,
        reflection.aio.ReflectionServicer(names),
    )
    return server


async def close_together(closings: list[Coroutine[Any, Any, None]], timeout_s: float) -> None:
    """Close side by side what an ending process has open, and go without what takes longer."""
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*closings)
    except TimeoutError:
        _log.warning("something does not close; ending without it")


class BackgroundFailure:
    """A future that gets an exception when a background loop ended that must not.

    Its `loop_ended` is what a `Supervisor` calls.
    """

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def loop_ended(self, name: str, exception: BaseException) -> None:
        """The first end counts."""
        if not self.future.done():
            self.future.set_exception(RuntimeError(f"background loop {name!r} ended: {exception}"))
