"""Channels: lazily connected, reconnecting, made for generated stubs.

MODEL. A channel connects at the first call, resolving the name; calls made meanwhile wait. When
the attempt fails, all that waited are UNAVAILABLE (unless they wait for ready), and so is what is
called during the back-off. A connection that breaks is replaced at the next call, with a new
look-up of the name. An attempt is one message there (to the host) and one back (from the process,
which must be running). The real channel goes on connecting without a call; this one does not.
"""

from __future__ import annotations

import functools
import random
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc
import grpc.aio

from holdover.runtime.network import GRPC_MESSAGE_BYTES_MAX
from simulator.world.calls import ClientCall, Deserialize, Method, Serialize, too_large
from simulator.world.connection import Connection, Node
from simulator.world.handle import ReadyHandle
from simulator.world.promise import wake_all
from simulator.world.streams import (
    RequestStream,
    StreamStreamCall,
    StreamUnaryCall,
    UnaryStreamCall,
    UnaryUnaryCall,
)

if TYPE_CHECKING:
    from simulator.world.network import SimulatedNetwork

CallT = TypeVar("CallT", bound=ClientCall)
StreamT = TypeVar("StreamT", bound=RequestStream)

#: Methods that are remembered: more than all services have.
_METHODS_KEPT_MAX = 256
_BACKOFF_GROWTH = 1.6
_BACKOFF_JITTER = 0.2

#: Every channel has a stub, and most methods of most stubs are never called.
_method = functools.lru_cache(_METHODS_KEPT_MAX)(Method)


class SimulatedChannel(grpc.aio.Channel):
    """See `Network.channel`."""

    def __init__(
        self,
        network: SimulatedNetwork,
        node: Node,
        host: str,
        port: int,
        source: Callable[[], random.Random],
    ) -> None:
        self.network = network
        self.node = node
        self.loop = network.loop
        #: All calls that have not ended, and those of them that wait for a connection.
        self.calls: dict[ClientCall, None] = {}
        self.waiting: dict[ClientCall, None] = {}
        self._address = (host, port)
        self._peer = f"{host}:{port}"
        self._chance = source
        self._connection: Connection | None = None
        self._connecting = False
        self._timeout: ReadyHandle | None = None
        self._attempt = 0
        self._backoff_s = network.links.settings.reconnect_backoff_min_s
        self._retry_at_s = 0.0
        self._last_error = ""
        self._closed = False

    def note(self, what: str, detail: str) -> None:
        """Add to the trace that the client sends something."""
        self.network.note(self.node.process.name, what, f"{detail} to {self._peer}")

    # ------------------------------------------------------------------ calls

    def start(self, call: ClientCall) -> None:
        """Send a call, when there is a connection."""
        connection = self._connection
        if connection is None or not connection.client_open or connection.draining:
            self._wait(call)
            return
        request = call.request
        call.request = None
        call.connection = connection
        connection.client_calls[call] = None
        n_bytes = 0 if request is None else len(request)
        self.note(call.method.name, f"request {n_bytes}")
        timeout_s = None if call.deadline_s is None else call.deadline_s - self.loop.now_s
        begin = connection, call, request, timeout_s
        connection.up.post(n_bytes, connection.gate.begin, begin)
        call.was_sent()

    def _wait(self, call: ClientCall) -> None:
        """Send it when there is a connection again, if it may wait for that."""
        self.waiting[call] = None
        if self._connecting:
            return
        wait_s = self._retry_at_s - self.loop.now_s
        if wait_s <= 0:
            self._connect()
        elif call.wait_for_ready:
            self.node.at(self._retry_at_s, self._retry)
        else:
            call.refused(grpc.StatusCode.UNAVAILABLE, self._last_error)

    # ------------------------------------------------------------------ connecting

    def _connect(self) -> None:
        self._connecting = True
        self._attempt += 1
        attempt = self._attempt
        host, port = self._address
        self.network.connect(self, attempt, host, port)
        timeout_s = self.network.links.settings.connect_timeout_s
        self._timeout = self.node.at(
            self.loop.now_s + timeout_s, self.failed, attempt, "connection timed out"
        )

    def _stop_connecting(self) -> None:
        self._connecting = False
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _retry(self) -> None:
        if self.waiting and not self._connecting and not self._closed:
            self._connect()

    def connected(self, attempt: int, connection: Connection) -> None:
        """Called as this channel's process when the server has answered."""
        if self._closed or attempt != self._attempt or not self._connecting:
            connection.close_client()
            return
        self._stop_connecting()
        self._connection = connection
        self._backoff_s = self.network.links.settings.reconnect_backoff_min_s
        self._retry_at_s = 0.0
        waiting = list(self.waiting)
        self.waiting.clear()
        for call in waiting:
            self.start(call)

    def failed(self, attempt: int, reason: str) -> None:
        """Called as this channel's process when the attempt has failed."""
        if self._closed or attempt != self._attempt or not self._connecting:
            return
        self._stop_connecting()
        self._last_error = f"failed to connect to all addresses; last error: {self._peer}: {reason}"
        self.network.note(self.node.process.name, "connect", f"{self._peer} failed: {reason}")
        jitter = 1.0 + _BACKOFF_JITTER * (2.0 * self._chance().random() - 1.0)
        self._retry_at_s = self.loop.now_s + self._backoff_s * jitter
        self._backoff_s = min(
            _BACKOFF_GROWTH * self._backoff_s, self.network.links.settings.reconnect_backoff_max_s
        )
        told = [call for call in self.waiting if not call.wait_for_ready]
        woken = [promise for call in told for promise in call.not_connected(self._last_error)]
        if self.waiting:
            self.node.at(self._retry_at_s, self._retry)
        wake_all(woken)

    # ------------------------------------------------------------------ grpc.aio.Channel

    async def close(self, grace: float | None = None) -> None:
        """See `grpc.aio.Channel`. Calls that run are cancelled at once, whatever the grace."""
        if self._closed:
            return
        self._closed = True
        self._stop_connecting()
        for call in list(self.calls):
            call.cancel()
        if self._connection is not None:
            self._connection.close_client()
            self._connection = None

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """See `grpc.aio.Channel`."""
        if self._closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        if self._connection is not None and self._connection.client_open:
            return grpc.ChannelConnectivity.READY
        if self._connecting:
            return grpc.ChannelConnectivity.CONNECTING
        return grpc.ChannelConnectivity.IDLE

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Not simulated: services make calls and see what becomes of them."""
        raise NotImplementedError("channel states cannot be watched on a simulated network")

    async def channel_ready(self) -> None:
        """Not simulated: services make calls and see what becomes of them."""
        raise NotImplementedError("channel states cannot be watched on a simulated network")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.close()

    def unary_unary(  # type: ignore[override]
        self,
        method: str,
        request_serializer: Serialize | None = None,
        response_deserializer: Deserialize | None = None,
        _registered_method: bool = False,
    ) -> Callable[..., UnaryUnaryCall]:
        """See `grpc.aio.Channel`."""
        stub = _method(method, request_serializer, response_deserializer)
        return functools.partial(self._call_unary, UnaryUnaryCall, stub)

    def unary_stream(  # type: ignore[override]
        self,
        method: str,
        request_serializer: Serialize | None = None,
        response_deserializer: Deserialize | None = None,
        _registered_method: bool = False,
    ) -> Callable[..., UnaryStreamCall]:
        """See `grpc.aio.Channel`."""
        stub = _method(method, request_serializer, response_deserializer)
        return functools.partial(self._call_unary, UnaryStreamCall, stub)

    def stream_unary(  # type: ignore[override]
        self,
        method: str,
        request_serializer: Serialize | None = None,
        response_deserializer: Deserialize | None = None,
        _registered_method: bool = False,
    ) -> Callable[..., StreamUnaryCall]:
        """See `grpc.aio.Channel`."""
        stub = _method(method, request_serializer, response_deserializer)
        return functools.partial(self._call_stream, StreamUnaryCall, stub)

    def stream_stream(  # type: ignore[override]
        self,
        method: str,
        request_serializer: Serialize | None = None,
        response_deserializer: Deserialize | None = None,
        _registered_method: bool = False,
    ) -> Callable[..., StreamStreamCall]:
        """See `grpc.aio.Channel`."""
        stub = _method(method, request_serializer, response_deserializer)
        return functools.partial(self._call_stream, StreamStreamCall, stub)

    def _call_unary(
        self,
        kind: Callable[..., CallT],
        method: Method,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Iterable[Sequence[Any]] | None = None,
        wait_for_ready: bool | None = None,
    ) -> CallT:
        if self._closed:
            raise grpc.aio.UsageError("Channel is closed.")
        data = request if method.serialize is None else method.serialize(request)
        call = kind(self, method, timeout, metadata, bool(wait_for_ready))
        if len(data) > GRPC_MESSAGE_BYTES_MAX:
            call.refused(grpc.StatusCode.RESOURCE_EXHAUSTED, too_large(len(data)))
            return call
        call.request = data
        self.start(call)
        return call

    def _call_stream(
        self,
        kind: Callable[..., StreamT],
        method: Method,
        request_iterator: AsyncIterable[Any] | Iterable[Any] | None = None,
        timeout: float | None = None,
        metadata: Iterable[Sequence[Any]] | None = None,
        *,
        wait_for_ready: bool | None = None,
    ) -> StreamT:
        if self._closed:
            raise grpc.aio.UsageError("Channel is closed.")
        call = kind(self, method, timeout, metadata, bool(wait_for_ready))
        self.start(call)
        if request_iterator is not None:
            call.send_all(request_iterator)
        return call
