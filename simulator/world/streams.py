"""Streams of requests and answers as the client sees them, and the four kinds of calls.

MODEL. See `calls`. A writer waits while more than a window of bytes is under way or unread. Answers
that were not read when the call broke are lost; those before a status of the server are read first.
A request iterator that fails cancels its call, as with `grpc.aio`; it is asked for nothing before
there is a connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from typing import Any

import grpc
import grpc.aio

from holdover.runtime.network import GRPC_MESSAGE_BYTES_MAX
from simulator.world.calls import ClientCall, Outcome, RawMetadata, SingleAnswer, too_large
from simulator.world.promise import wake_all


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
            waiting, self._waiting = self._waiting, []
            wake_all(waiting)

    def received_status(
        self, code: grpc.StatusCode, details: str, trailing_metadata: RawMetadata
    ) -> None:
        """The server's last word; it counts when all before it has been read."""
        self.served = None if not self._messages else self.served
        status = Outcome(code, details, trailing_metadata)
        if self._messages:
            self._status = status
        else:
            self._end_at_last(status)

    def _end(self, outcome: Outcome) -> None:
        if self.outcome is None:
            self._messages.clear()
        super()._end(outcome)

    async def _next(self) -> Any:
        """The next answer, or `EOF` when the call has ended."""
        while not self._messages:
            if self.outcome is not None:
                return grpc.aio.EOF
            await self._change(self._waiting)
        data = self._messages.popleft()
        if self.served is not None:
            self.served.was_read(len(data))
        if not self._messages and self._status is not None:
            self.served = None
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
        #: Whether its requests come from an iterator.
        self._iterates = False
        self._sender: asyncio.Task[None] | None = None
        #: What the sender is to write, as soon as there is a connection.
        self._unsent: AsyncIterable[Any] | Iterable[Any] | None = None

    def send_all(self, requests: AsyncIterable[Any] | Iterable[Any]) -> None:
        """Write what the iterator gives."""
        self._iterates = True
        if self.connection is not None:
            self._sender = self._loop.create_task(self._consume(requests))
        elif self.outcome is None:
            self._unsent = requests

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
        finally:
            # Here, and not whenever it is found that nobody has it any more.
            if isinstance(requests, AsyncGenerator):
                await requests.aclose()

    def _end(self, outcome: Outcome) -> None:
        super()._end(outcome)
        self._unsent = None
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.cancel()

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
            await self._change(self._writing)
        if self.has_ended():
            self._raise_for_status(await self._ended())
        elif self.connection is not None:
            self._unread_bytes += len(data)
            self.channel.note(self.method.name, f"message {len(data)}")
            self.connection.up.post(len(data), self._deliver, (data,))

    def _deliver(self, data: bytes) -> None:
        if self.served is not None:
            self.served.received_message(data)

    def _deliver_end(self) -> None:
        if self.served is not None:
            self.served.received_end()

    def was_read(self, n_bytes: int) -> None:
        """The server has read this much."""
        self._unread_bytes -= n_bytes
        if self._writing and self.connection is not None:
            self.connection.down.post(0, self._tell_writers)

    def _half_close(self) -> None:
        if self.outcome is None and not self._done_writing:
            self._done_writing = True
            if self.connection is not None:
                self.connection.up.post(0, self._deliver_end)

    def was_sent(self) -> None:
        """See `ClientCall.was_sent`."""
        if self._done_writing and self.connection is not None:
            self.connection.up.post(0, self._deliver_end)
        unsent, self._unsent = self._unsent, None
        if unsent is not None:
            self._sender = self._loop.create_task(self._consume(unsent))
        self._tell_writers()

    async def write(self, request: Any) -> None:
        """See `grpc.aio.StreamUnaryCall`."""
        if self._iterates:
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
