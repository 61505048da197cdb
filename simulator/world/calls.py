"""Calls as the client sees them: the objects that generated stubs return.

MODEL. What `grpc.aio` promises of its call objects, without its tasks: a call is sent when it is
made, and one future serves all who await it. A call that was cancelled here, or whose channel was
closed, raises `CancelledError` in those who await it; every other failure is an `AioRpcError`.
Answers that were not read when the call broke are lost; those before a status of the server are
read first. Not modelled: compression, credentials, client interceptors.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Sequence,
)
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import grpc.aio

from holdover.runtime.network import GRPC_MESSAGE_BYTES_MAX

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
        self.metadata = raw_metadata(metadata)
        self.wait_for_ready = wait_for_ready
        self.outcome: Outcome | None = None
        self.deadline_s: float | None = None
        #: Set when it has been sent.
        self.connection: Connection | None = None
        #: The other end, when it is known to have one.
        self.served: ServedCall | None = None
        #: The serialised request, until it is sent; None for a stream of requests.
        self.request: bytes | None = None
        self._loop = channel.loop
        self._changed: asyncio.Future[None] | None = None
        self._initial_metadata: RawMetadata | None = None
        self._done_callbacks: list[Callable[[Any], object]] = []
        channel.calls[self] = None
        if timeout_s is not None:
            rate = channel.node.process.host.clock_rate
            self.deadline_s = self._loop.now_s + max(timeout_s, 0.0) / rate
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
        self._end(Outcome(code, details, trailing_metadata))

    def connection_broke(self, reason: str) -> None:
        """There will be no answer."""
        self._end(Outcome(grpc.StatusCode.UNAVAILABLE, reason, ()))

    def deadline_passed(self) -> None:
        """See `Expiring`."""
        self._abandon(Outcome(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ()))

    def refused(self, code: grpc.StatusCode, details: str) -> None:
        """It cannot be made."""
        self._abandon(Outcome(code, details, ()))

    def _abandon(self, outcome: Outcome) -> None:
        """End it here and tell the server that nobody listens."""
        if self.outcome is None:
            connection = self.connection
            if connection is not None and connection.client_open:
                self.channel.note(self.method.name, "cancel")
                connection.up.post(0, self._cancel_served)
            self._end(outcome)

    def _cancel_served(self) -> None:
        if self.served is not None:
            self.served.client_left()

    def _end(self, outcome: Outcome) -> None:
        if self.outcome is not None:
            return
        self.outcome = outcome
        self.request = None
        self.channel.calls.pop(self, None)
        if self.connection is None:
            self.channel.waiting.pop(self, None)
        else:
            self.connection.client_calls.pop(self, None)
        self._tell()
        for callback in self._done_callbacks:
            callback(self)

    def _tell(self) -> None:
        changed = self._changed
        if changed is not None:
            self._changed = None
            if not changed.done():
                changed.set_result(None)

    async def _change(self) -> None:
        """Wait for anything to happen to the call; to be cancelled here cancels the call."""
        if self._changed is None:
            self._changed = self._loop.create_future()
        try:
            await asyncio.shield(self._changed)
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def _look_on(self) -> None:
        """Wait for anything to happen to the call, without a hold on it."""
        if self._changed is None:
            self._changed = self._loop.create_future()
        await asyncio.shield(self._changed)

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
            await self._change()
        if self.outcome is not None:
            self._raise_for_status(self.outcome)

    def was_sent(self) -> None:
        """It is on a connection now; those who wait to write go on."""
        self._tell()


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
        self._end(Outcome(grpc.StatusCode.OK, "", trailing_metadata))

    def __await__(self) -> Generator[Any, None, Any]:
        """The answer; raises `AioRpcError`."""
        while self.outcome is None:
            changed = self._changed
            if changed is None:
                changed = self._changed = self._loop.create_future()
            try:
                yield from changed
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self.outcome.code is not grpc.StatusCode.OK:
            raise self._failure(self.outcome)
        return self._response


class AnswerStream(ClientCall):
    """A call with a stream of answers."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._messages: deque[bytes] = deque()
        self._status: Outcome | None = None

    def received_message(self, data: bytes) -> None:
        """One answer."""
        if self.outcome is None:
            self._messages.append(data)
            self._tell()

    def received_status(
        self, code: grpc.StatusCode, details: str, trailing_metadata: RawMetadata
    ) -> None:
        """The server's last word; it counts when all before it has been read."""
        status = Outcome(code, details, trailing_metadata)
        if self._messages:
            self._status = status
        else:
            self._end(status)

    def _end(self, outcome: Outcome) -> None:
        if self.outcome is None:
            self._messages.clear()
        super()._end(outcome)

    async def _next(self) -> Any:
        """The next answer, or `EOF` when the call has ended."""
        while not self._messages:
            if self.outcome is not None:
                return grpc.aio.EOF
            await self._change()
        data = self._messages.popleft()
        if self.served is not None:
            self.served.was_read(len(data))
        if not self._messages and self._status is not None:
            self._end(self._status)
        deserialize = self.method.deserialize
        return data if deserialize is None else deserialize(data)

    async def read(self) -> Any:
        """See `grpc.aio.UnaryStreamCall`."""
        message = await self._next()
        if message is grpc.aio.EOF and self.outcome is not None:
            self._raise_for_status(self.outcome)
        return message

    async def __aiter__(self) -> AsyncIterator[Any]:
        """All answers; raises `AioRpcError`."""
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message


class RequestStream(ClientCall):
    """A call with a stream of requests."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._done_writing = False
        self._unread_bytes = 0
        self._sender: asyncio.Task[None] | None = None

    def send_all(self, requests: AsyncIterable[Any] | Iterable[Any]) -> None:
        """Write what the iterator gives."""
        self._sender = self._loop.create_task(self._consume(requests))

    async def _consume(self, requests: AsyncIterable[Any] | Iterable[Any]) -> None:
        try:
            if isinstance(requests, AsyncIterable):
                async for request in requests:
                    await self._write(request)
            else:
                for request in requests:
                    await self._write(request)
            self._half_close()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # those who await the call are told
        except Exception:  # noqa: BLE001  whatever the caller's iterator raises cancels the call
            self.cancel()

    def _end(self, outcome: Outcome) -> None:
        super()._end(outcome)
        if self._sender is not None:
            self._sender.cancel()

    async def _write(self, request: Any) -> None:
        if self.outcome is not None:
            raise asyncio.InvalidStateError("RPC already finished.")
        if self._done_writing:
            raise asyncio.InvalidStateError('RPC is half closed after calling "done_writing".')
        serialize = self.method.serialize
        data = request if serialize is None else serialize(request)
        if len(data) > GRPC_MESSAGE_BYTES_MAX:
            self.refused(grpc.StatusCode.RESOURCE_EXHAUSTED, too_large(len(data)))
        window_bytes = self.channel.network.links.settings.stream_window_bytes
        while not self.has_ended() and (
            self.connection is None or self._unread_bytes > window_bytes
        ):
            await self._change()
        if self.has_ended():
            self._raise_for_status(await self._ended())
        elif self.connection is not None:
            self._unread_bytes += len(data)
            self.channel.note(self.method.name, f"message {len(data)}")
            self.connection.up.post(len(data), self._deliver, data)

    def _deliver(self, data: bytes) -> None:
        if self.served is not None:
            self.served.received_message(data)

    def _deliver_end(self) -> None:
        if self.served is not None:
            self.served.received_end()

    def was_read(self, n_bytes: int) -> None:
        """The server has read this much."""
        self._unread_bytes -= n_bytes
        if self._changed is not None and self.connection is not None:
            self.connection.down.post(0, self._tell)

    def _half_close(self) -> None:
        if self.outcome is None and not self._done_writing:
            self._done_writing = True
            if self.connection is not None:
                self.connection.up.post(0, self._deliver_end)

    def was_sent(self) -> None:
        """See `ClientCall.was_sent`."""
        if self._done_writing and self.connection is not None:
            self.connection.up.post(0, self._deliver_end)
        super().was_sent()

    async def write(self, request: Any) -> None:
        """See `grpc.aio.StreamUnaryCall`."""
        if self._sender is not None:
            raise grpc.aio.UsageError(
                "The iterator and read/write APIs may not be mixed on a single RPC."
            )
        try:
            await self._write(request)
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def done_writing(self) -> None:
        """See `grpc.aio.StreamUnaryCall`."""
        self._half_close()


class UnaryUnaryCall(SingleAnswer, grpc.aio.UnaryUnaryCall[Any, Any]):
    """One request, one answer."""


class UnaryStreamCall(AnswerStream, grpc.aio.UnaryStreamCall[Any, Any]):
    """One request, many answers."""


class StreamUnaryCall(RequestStream, SingleAnswer, grpc.aio.StreamUnaryCall[Any, Any]):
    """Many requests, one answer."""


class StreamStreamCall(RequestStream, AnswerStream, grpc.aio.StreamStreamCall[Any, Any]):
    """Many requests, many answers."""
