"""Servers: a port, the servicers behind it, and the calls that run.

MODEL. A server is found while it listens. When it stops, its port is free at once, its connections
take no new calls (a call that is under way meanwhile is refused), and running calls have the grace
before they are ended with UNAVAILABLE. More calls at a time than the limit are refused, as the real
server does.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import grpc
import grpc.aio

from holdover.runtime.network import ServicerT
from simulator.world.calls import ClientCall, RawMetadata
from simulator.world.connection import Connection, Node
from simulator.world.servicer import ServedCall

if TYPE_CHECKING:
    from simulator.world.network import SimulatedNetwork

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class _CallDetails(NamedTuple):
    """What a generic handler and an interceptor are told of a call."""

    method: str
    invocation_metadata: RawMetadata


class SimulatedServer:
    """See `Server`."""

    def __init__(
        self,
        network: SimulatedNetwork,
        node: Node,
        bind_address: str,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
    ) -> None:
        self.network = network
        self.node = node
        self.connections: dict[Connection, None] = {}
        self._bind_address = bind_address
        self._interceptors = list(interceptors)
        self._generic_handlers: list[grpc.GenericRpcHandler] = []
        self._handlers: dict[str, Handler] = {}
        self._port: int | None = None
        self._stopping = False
        self._running = 0
        self._idle: asyncio.Future[None] | None = None

    def add(
        self, add_servicer_to_server: Callable[[ServicerT, Any], None], servicer: ServicerT
    ) -> None:
        """See `Server.add`."""
        add_servicer_to_server(servicer, self)

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler]
    ) -> None:
        """See `Server.add_generic_rpc_handlers`."""
        self._generic_handlers += generic_rpc_handlers

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, Handler]
    ) -> None:
        """See `Server.add_registered_method_handlers`."""
        for name, handler in method_handlers.items():
            self._handlers[f"/{service_name}/{name}"] = handler

    @property
    def accepts(self) -> bool:
        """Whether it takes new connections."""
        return not self._stopping

    async def start(self) -> int:
        """See `Server.start`."""
        self._port = self.network.bind(self.node, self._bind_address, self, gate=self)
        return self._port

    async def stop(self, grace_s: float) -> None:
        """See `Server.stop`."""
        if self._port is None or self._stopping:
            return
        self._stopping = True
        self.network.unbind(self.node, self._port, self)
        for connection in self.connections:
            connection.down.post(0, self._drain, (connection,))
        if self._running and grace_s > 0:
            self._idle = self.network.loop.create_future()
            try:
                async with asyncio.timeout(grace_s):
                    await self._idle
            except TimeoutError:
                pass
        for connection in list(self.connections):
            for call in list(connection.served_calls):
                call.stop()
            connection.close_server()
        # The handlers that were cancelled come first.
        await asyncio.sleep(0)

    @staticmethod
    def _drain(connection: Connection) -> None:
        connection.draining = True

    def call_ended(self) -> None:
        """A call that was begun does not run any more."""
        self._running -= 1
        if self._idle is not None and not self._running and not self._idle.done():
            self._idle.set_result(None)

    # ------------------------------------------------------------------ calls

    def begin(
        self,
        connection: Connection,
        call: ClientCall,
        request: bytes | None,
        timeout_s: float | None,
    ) -> None:
        """A call has arrived; called as the server's process."""
        if not connection.server_open:
            return
        limit = self.network.links.settings.concurrent_calls_max
        if self._stopping:
            self._refuse(connection, call, grpc.StatusCode.UNAVAILABLE, "Server shutdown")
        elif self._running >= limit:
            self._refuse(
                connection,
                call,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "Concurrent RPC limit exceeded!",
            )
        elif self._interceptors:
            self.network.loop.create_task(
                self._begin_intercepted(connection, call, request, timeout_s)
            )
        else:
            handler = self._handlers.get(call.method.name) or self._found_handler(call)
            self._run(connection, call, handler, request, timeout_s)

    async def _begin_intercepted(
        self,
        connection: Connection,
        call: ClientCall,
        request: bytes | None,
        timeout_s: float | None,
    ) -> None:
        async def find(details: grpc.HandlerCallDetails) -> Handler | None:
            return self._found_handler(call)

        continuation: Callable[[Any], Awaitable[Any]] = find
        for interceptor in reversed(self._interceptors):
            continuation = functools.partial(interceptor.intercept_service, continuation)
        handler = await continuation(_CallDetails(call.method.name, call.metadata))
        self._run(connection, call, handler, request, timeout_s)

    def _run(
        self,
        connection: Connection,
        call: ClientCall,
        handler: Handler | None,
        request: bytes | None,
        timeout_s: float | None,
    ) -> None:
        if handler is None:
            self._refuse(connection, call, grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            return
        self._running += 1
        served = ServedCall(connection, call, handler, timeout_s)
        call.served = served
        served.start(request)

    def _refuse(
        self, connection: Connection, call: ClientCall, code: grpc.StatusCode, details: str
    ) -> None:
        self.network.note(self.node.process.name, call.method.name, f"status {code.name}")
        connection.down.post(0, call.received_status, (code, details, ()))

    def _found_handler(self, call: ClientCall) -> Handler | None:
        method = call.method.name
        handler = self._handlers.get(method)
        if handler is None:
            details: Any = _CallDetails(method, call.metadata)
            for generic in self._generic_handlers:
                handler = generic.service(details)
                if handler is not None:
                    self._handlers[method] = handler
                    break
        return handler
