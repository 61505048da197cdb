"""Calls as the client sees them: the objects that generated stubs return.

MODEL. What `grpc.aio` promises of its call objects, without its tasks: a call is sent when it is
made, and one future serves all who await it. A call that was cancelled here, or whose channel was
closed, raises `CancelledError` in those who await it; every other failure is an `AioRpcError`. Not
modelled: compression, credentials, client interceptors. Streams are `streams`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import grpc.aio

from holdover.runtime.network import GRPC_MESSAGE_BYTES_MAX
from simulator.world.promise import Promise, wake_all

if TYPE_CHECKING:
    from simulator.world.channel import SimulatedChannel
    from simulator.world.connection import Connection
    from simulator.world.servicer import ServedCall

_LOCALLY_CANCELLED = "Locally cancelled by application!"


class Metadatum(NamedTuple):
    """One entry of metadata."""

    key: str
    value: str | bytes


RawMetadata = tuple[Metadatum, ...]
Serialize = Callable[[Any], bytes]
Deserialize = Callable[[bytes], Any]


class Method(NamedTuple):
    """What a stub knows of a method."""

    name: str
    serialize: Serialize | None
    deserialize: Deserialize | None


class Outcome(NamedTuple):
    """How a call ended."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: RawMetadata
    #: Cancelled by the caller itself, or by closing the channel.
    cancelled_here: bool = False


def raw_metadata(entries: Iterable[Sequence[Any]] | None) -> RawMetadata:
    """Metadata as it travels."""
    return tuple(Metadatum(key, value) for key, value in entries) if entries else ()


def aio_metadata(entries: RawMetadata) -> grpc.aio.Metadata:
    """Metadata as `grpc.aio` shows it."""
    return grpc.aio.Metadata(*entries)


def too_large(n_bytes: int) -> str:
    """What gRPC says of a message above the limit."""
    return f"Sent message larger than max ({n_bytes} vs. {GRPC_MESSAGE_BYTES_MAX})"


class ClientCall(grpc.aio.Call):
    """What all kinds of calls share."""

    def __init__(
        self,
        channel: SimulatedChannel,
        method: Method,
        timeout_s: float | None,
        metadata: Iterable[Sequence[Any]] | None,
        wait_for_ready: bool,
    ) -> None:
        self.channel = channel
        self.method = method
        self.metadata = raw_metadata(metadata) if metadata else ()
        self.wait_for_ready = wait_for_ready
        self.outcome: Outcome | None = None
        self.deadline_s: float | None = None
        #: Set when it has been sent.
        self.connection: Connection | None = None
        #: The other end, when it is known to have one; let go at the end of the call: there are
        #: millions of calls, and the two would keep each other until garbage is collected.
        self.served: ServedCall | None = None
        #: The serialised request, until it is sent; None for a stream of requests.
        self.request: bytes | None = None
        self._loop = channel.loop
        #: Who waits for an answer, or its end.
        self._waiting: list[Promise[None]] = []
        #: Who waits for a connection, or for room to write.
        self._writing: list[Promise[None]] = []
        self._initial_metadata: RawMetadata | None = None
        self._done_callbacks: list[Callable[[Any], object]] = []
        channel.calls[self] = None
        if timeout_s is not None:
            rate = channel.node.process.host.clock_rate
            left_s = timeout_s if timeout_s > 0.0 else 0.0
            self.deadline_s = self._loop.now_s + left_s / rate
            channel.node.deadlines.add(self.deadline_s, self)

    # ------------------------------------------------------------------ from the network

    def has_ended(self) -> bool:
        """Whether nothing can happen to it any more."""
        return self.outcome is not None

    def received_initial_metadata(self, metadata: RawMetadata) -> None:
        """The server's first word."""
        if self._initial_metadata is None:
            self._initial_metadata = metadata
            self._tell()

    def received_status(
        self, code: grpc.StatusCode, details: str, trailing_metadata: RawMetadata
    ) -> None:
        """The server's last word."""
        self.served = None
        self._end_at_last(Outcome(code, details, trailing_metadata))

    def connection_broke(self, reason: str) -> None:
        """There will be no answer."""
        self.served = None
        self._end(Outcome(grpc.StatusCode.UNAVAILABLE, reason, ()))

    def deadline_passed(self) -> None:
        """See `Expiring`."""
        self._abandon(Outcome(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ()))

    def refused(self, code: grpc.StatusCode, details: str) -> None:
        """It cannot be made."""
        self._abandon(Outcome(code, details, ()))

    def not_connected(self, details: str) -> Sequence[Promise[None]]:
        """There is nobody to send it to. Returns who is to be woken, as the last act of the
        callback."""
        waiting, self._waiting = self._waiting, []
        self.refused(grpc.StatusCode.UNAVAILABLE, details)
        return waiting

    def _abandon(self, outcome: Outcome) -> None:
        """End it here and tell the server that nobody listens."""
        if self.outcome is None:
            connection = self.connection
            if connection is not None and connection.client_open:
                self.channel.note(self.method.name, "cancel")
                connection.up.post(0, self._cancel_served)
            self._end(outcome)

    def _cancel_served(self) -> None:
        served, self.served = self.served, None
        if served is not None:
            served.client_left()

    def _end(self, outcome: Outcome) -> None:
        if self.outcome is not None:
            return
        self.outcome = outcome
        self.request = None
        del self.channel.calls[self]
        if self.connection is None:
            self.channel.waiting.pop(self, None)
        else:
            self.connection.client_calls.pop(self, None)
        if self._waiting or self._writing:
            self._tell()
        for callback in self._done_callbacks:
            callback(self)

    def _end_at_last(self, outcome: Outcome) -> None:
        """End it, as the last act of a callback; see `Promise.wake`."""
        waiting, self._waiting = self._waiting, []
        self._end(outcome)
        wake_all(waiting)

    def _tell(self) -> None:
        told = self._waiting + self._writing
        self._waiting, self._writing = [], []
        for promise in told:
            if not promise.done():
                promise.set_result(None)

    def _tell_writers(self) -> None:
        writing, self._writing = self._writing, []
        for promise in writing:
            if not promise.done():
                promise.set_result(None)

    async def _change(self, waiting: list[Promise[None]]) -> None:
        """Wait with these until they are told; to be cancelled here cancels the call."""
        promise: Promise[None] = Promise(loop=self._loop)
        waiting.append(promise)
        try:
            await promise
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def _look_on(self) -> None:
        """Wait for anything to happen to the call, without a hold on it."""
        promise: Promise[None] = Promise(loop=self._loop)
        self._waiting.append(promise)
        try:
            await promise
        finally:
            if promise in self._waiting:
                self._waiting.remove(promise)

    def _failure(self, outcome: Outcome) -> BaseException:
        if outcome.cancelled_here:
            return asyncio.CancelledError()
        return grpc.aio.AioRpcError(
            outcome.code,
            aio_metadata(self._initial_metadata or ()),
            aio_metadata(outcome.trailing_metadata),
            outcome.details,
        )

    def _raise_for_status(self, outcome: Outcome) -> None:
        if outcome.code is not grpc.StatusCode.OK:
            raise self._failure(outcome)

    # ------------------------------------------------------------------ grpc.aio.Call

    def cancelled(self) -> bool:
        """See `grpc.aio.Call`."""
        return self.outcome is not None and self.outcome.code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        """See `grpc.aio.Call`."""
        return self.outcome is not None

    def time_remaining(self) -> float | None:
        """See `grpc.aio.Call`."""
        if self.deadline_s is None:
            return None
        left_s = self.deadline_s - self._loop.now_s
        return max(0.0, left_s * self.channel.node.process.host.clock_rate)

    def cancel(self) -> bool:
        """See `grpc.aio.Call`."""
        if self.outcome is not None:
            return False
        self._abandon(Outcome(grpc.StatusCode.CANCELLED, _LOCALLY_CANCELLED, (), True))
        return True

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """See `grpc.aio.Call`."""
        if self.outcome is not None:
            callback(self)
        else:
            self._done_callbacks.append(callback)

    async def _ended(self) -> Outcome:
        while self.outcome is None:
            await self._look_on()
        return self.outcome

    async def initial_metadata(self) -> grpc.aio.Metadata:
        """See `grpc.aio.Call`."""
        while self.outcome is None and self._initial_metadata is None:
            await self._look_on()
        return aio_metadata(self._initial_metadata or ())

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """See `grpc.aio.Call`."""
        return aio_metadata((await self._ended()).trailing_metadata)

    async def code(self) -> grpc.StatusCode:
        """See `grpc.aio.Call`."""
        return (await self._ended()).code

    async def details(self) -> str:
        """See `grpc.aio.Call`."""
        return (await self._ended()).details

    async def wait_for_connection(self) -> None:
        """See `grpc.aio.Call`."""
        while self.outcome is None and self.connection is None:
            await self._change(self._writing)
        if self.outcome is not None:
            self._raise_for_status(self.outcome)

    def was_sent(self) -> None:
        """It is on a connection now; those who wait to write go on."""
        if self._writing:
            self._tell_writers()


class SingleAnswer(ClientCall):
    """A call with one answer."""

    _response: Any = None

    def received_answer(
        self, data: bytes, initial_metadata: RawMetadata, trailing_metadata: RawMetadata
    ) -> None:
        """The answer, which is the server's last word too."""
        if self.outcome is not None:
            return
        deserialize = self.method.deserialize
        self._response = data if deserialize is None else deserialize(data)
        if self._initial_metadata is None:
            self._initial_metadata = initial_metadata
        self.served = None
        self._end_at_last(Outcome(grpc.StatusCode.OK, "", trailing_metadata))

    def __await__(self) -> Generator[Any, None, Any]:
        """The answer; raises `AioRpcError`."""
        while self.outcome is None:
            promise: Promise[None] = Promise(loop=self._loop)
            self._waiting.append(promise)
            try:
                yield from promise
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self.outcome.code is not grpc.StatusCode.OK:
            raise self._failure(self.outcome)
        return self._response
