"""A small world for tests of the network: two or more hosts and a service that answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio

from simulator.world.links import LinkSettings
from simulator.world.process import Process
from simulator.world.world import World

#: A network without chance: 1 ms from host to host, and messages cost their receiver nothing.
PLAIN = LinkSettings(latency_s=(0.001, 0.001), message_cost_s=0.0)
PORT = 6123


class Echo:
    """What the tests call. `events` is what its handlers saw, with the time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.events: list[tuple[str, float]] = []

    def note(self, what: str) -> None:
        self.events.append((what, round(self._world.now_s, 4)))

    async def echo(self, request: bytes, context: Any) -> bytes:
        self.note(request.decode())
        return request

    async def hang(self, request: bytes, context: Any) -> bytes:
        self.note("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.note("cancelled")
            raise
        finally:
            self.note("finally")
        return b""

    async def fail(self, request: bytes, context: Any) -> bytes:
        raise LookupError("no such row")

    async def count(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        for number in range(int(request)):
            self.note(str(number))
            yield bytes(1024)

    async def join(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return b",".join([request async for request in requests])

    async def reverse(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request[::-1]


def add_echo_to_server(servicer: Echo, server: Any) -> None:
    handlers: dict[str, Any] = {
        "echo": grpc.unary_unary_rpc_method_handler(servicer.echo),
        "hang": grpc.unary_unary_rpc_method_handler(servicer.hang),
        "fail": grpc.unary_unary_rpc_method_handler(servicer.fail),
        "count": grpc.unary_stream_rpc_method_handler(servicer.count),
        "join": grpc.stream_unary_rpc_method_handler(servicer.join),
        "reverse": grpc.stream_stream_rpc_method_handler(servicer.reverse),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", handlers),))
    server.add_registered_method_handlers("Echo", handlers)


class EchoWorld:
    """Host "server" with an `Echo` on `PORT`, and host "client" with a process to call from."""

    def __init__(self, settings: LinkSettings = PLAIN, seed: int = 1) -> None:
        self.world = World(seed, links=settings)
        self.network = self.world.network
        self.server_host = self.world.host("server")
        self.client_host = self.world.host("client")
        self.client = self.world.process(self.client_host, "client")
        self.server, self.echo = self.serve()

    def serve(self, host: str = "server") -> tuple[Process, Echo]:
        """A new life of the server; it listens when the world runs on."""
        process = self.world.process(self.world.host(host), host)
        echo = Echo(self.world)
        server = self.network.of(process).server(f"{host}:{PORT}")
        server.add(add_echo_to_server, echo)
        process.spawn(server.start())
        return process, echo

    def channel(self) -> grpc.aio.Channel:
        """From the client to the server; to be used by code of the client."""
        return self.network.of(self.client).channel(f"server:{PORT}")


async def call(channel: grpc.aio.Channel, method: str, request: bytes = b"", **options: Any) -> Any:
    """One unary call."""
    stub: Any = channel.unary_unary(f"/Echo/{method}")
    return await stub(request, **{"timeout": 600.0, **options})


async def outcome(channel: grpc.aio.Channel, method: str, **options: Any) -> str:
    """Name of the status of a unary call."""
    try:
        await call(channel, method, **options)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


@contextmanager
def echo_world(settings: LinkSettings = PLAIN, seed: int = 1) -> Iterator[EchoWorld]:
    """An `EchoWorld` that is closed in the end."""
    site = EchoWorld(settings, seed)
    try:
        yield site
    finally:
        site.world.close()
