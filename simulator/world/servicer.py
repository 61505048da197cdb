"""Calls as the server runs them: the context that servicers are given, and the task around it.

MODEL. What `grpc.aio` does around a handler: its answer or status is one message; what it raises
becomes UNKNOWN with the exception's text, and is told to the loop's failure handler; a handler
whose client has left is cancelled; a handler that cancels itself leaves its client without an
answer. Handlers are coroutines or asynchronous generators. Not modelled: handlers in threads,
compression, peer identities.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Never

import grpc
import grpc.aio

from holdover.runtime.network import GRPC_MESSAGE_BYTES_MAX
from simulator.world.calls import (
    ClientCall,
    RawMetadata,
    aio_metadata,
    raw_metadata,
    too_large,
)
from simulator.world.promise import Promise, wake_all
from simulator.world.streams import RequestStream

if TYPE_CHECKING:
    from simulator.world.connection import Connection

_OK = grpc.StatusCode.OK


class ServedCall(grpc.aio.ServicerContext[Any, Any]):
    """One call, from its arrival to its status."""

    def __init__(
        self,
        connection: Connection,
        call: ClientCall,
        handler: grpc.RpcMethodHandler[Any, Any],
        timeout_s: float | None,
    ) -> None:
        self.connection = connection
        self.call = call
        self.handler = handler
        self.deadline_s: float | None = None
        #: The task that runs the handler, and whether it was run to its end.
        self.task: asyncio.Task[None] | None = None
        self._was_run = False
        self._loop = connection.network.loop
        #: Whether its status was sent, or nobody waits for that any more.
        self._ended = False
        self._client_left = False
        self._code = _OK
        self._details = ""
        self._initial_metadata: RawMetadata | None = None
        self._trailing_metadata: RawMetadata = ()
        self._abort: grpc.aio.AbortError | None = None
        self._requests: deque[bytes] | None = deque() if handler.request_streaming else None
        self._requests_ended = False
        self._unread_bytes = 0
        #: The handler, when it waits for requests, or for room; it may wait with several tasks.
        self._waiting: list[Promise[None]] = []
        self._writing: list[Promise[None]] = []
        self._done_callbacks: list[Callable[[Any], object]] = []
        connection.served_calls[self] = None
        if timeout_s is not None:
            self.deadline_s = self._loop.now_s + timeout_s

    # ------------------------------------------------------------------ from the network

    def has_ended(self) -> bool:
        """See `Expiring`."""
        return self._ended

    def deadline_passed(self) -> None:
        """See `Expiring`."""
        self.client_left()

    def client_left(self) -> None:
        """Nobody waits for the answer any more: the handler is cancelled."""
        if self._ended:
            return
        self._ended = self._client_left = True
        self._leave()
        if self.task is not None:
            self.task.cancel()

    def received_message(self, data: bytes) -> None:
        """One request of a stream."""
        if self._requests is not None and not self._ended:
            self._requests.append(data)
            self._tell()

    def received_end(self) -> None:
        """There are no more requests."""
        self._requests_ended = True
        self._tell()

    def was_read(self, n_bytes: int) -> None:
        """The client has read this much; called as the client."""
        self._unread_bytes -= n_bytes
        if self._writing and self.connection.client_open:
            self.connection.up.post(0, self._tell_writers)

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        wake_all(waiting)

    def _tell_writers(self) -> None:
        writing, self._writing = self._writing, []
        wake_all(writing)

    async def _change(self, waiting: list[Promise[None]]) -> None:
        """Wait with these until they are told."""
        promise: Promise[None] = Promise(loop=self._loop)
        waiting.append(promise)
        try:
            await promise
        except asyncio.CancelledError:
            if promise in waiting:
                waiting.remove(promise)
            raise

    # ------------------------------------------------------------------ running

    def start(self, request: bytes | None) -> None:
        """Run the handler, which may have ended when this returns; the last act of a callback."""
        task = self._loop.start_task(self._run(request))
        if not self._was_run:
            self.task = task
            if self.deadline_s is not None:
                self.connection.server.deadlines.add(self.deadline_s, self)

    async def _run(self, request: bytes | None) -> None:
        """Run the handler to its end, whatever that is."""
        try:
            if self.handler.response_streaming:
                await self._run_stream(request)
            else:
                await self._run_single(request)
        except asyncio.CancelledError:
            self._leave()
        except grpc.aio.AbortError as error:
            if error is not self._abort:
                self._failed(error)
        except Exception as error:  # noqa: BLE001  a servicer's failure is told to the client
            self._failed(error)
        finally:
            self._was_run = True
            # What keeps itself is kept until garbage is collected.
            self.task = self._abort = None

    async def _run_single(self, request: bytes | None) -> None:
        handler: Any = self.handler
        if request is None:
            response = await handler.stream_unary(self._request_stream(), self)
        else:
            response = await handler.unary_unary(self._parsed(request), self)
        if self._abort is not None:
            raise self._abort
        if self._code is not _OK:
            self._send_status(self._code, self._details)
            return
        serialize = handler.response_serializer
        data = response if serialize is None else serialize(response)
        n_bytes = len(data)
        if n_bytes > GRPC_MESSAGE_BYTES_MAX:
            self._send_status(grpc.StatusCode.RESOURCE_EXHAUSTED, too_large(n_bytes))
        elif not self._ended:
            self._ended = True
            self._note(f"response {n_bytes}")
            call: Any = self.call
            answer = data, self._initial_metadata or (), self._trailing_metadata
            self.connection.down.post(n_bytes, call.received_answer, answer)
            self._leave()

    async def _run_stream(self, request: bytes | None) -> None:
        handler: Any = self.handler
        if request is None:
            answers = handler.stream_stream(self._request_stream(), self)
        else:
            answers = handler.unary_stream(self._parsed(request), self)
        if hasattr(answers, "__aiter__"):
            async with aclosing(answers):
                async for answer in answers:
                    await self.write(answer)
        else:
            await answers
        if self._abort is not None:
            raise self._abort
        self._send_status(self._code, self._details)

    def _parsed(self, data: bytes) -> Any:
        deserialize = self.handler.request_deserializer
        return data if deserialize is None else deserialize(data)

    async def _request_stream(self) -> AsyncIterator[Any]:
        while (request := await self.read()) is not grpc.aio.EOF:
            yield request

    def _failed(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": f"unexpected failure of {self.call.method.name}", "exception": error}
        )
        code = grpc.StatusCode.UNKNOWN if self._code is _OK else self._code
        self._send_status(code, f"Unexpected {type(error)}: {error}")

    def _send_status(self, code: grpc.StatusCode, details: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._note(f"status {code.name}")
        self.connection.down.post(
            0, self.call.received_status, (code, details, self._trailing_metadata)
        )
        self._leave()

    def stop(self) -> None:
        """The server stops and does not wait any longer."""
        self._send_status(grpc.StatusCode.UNAVAILABLE, "Cancelling all calls")
        if self.task is not None:
            self.task.cancel()

    def _leave(self) -> None:
        """It has ended for the server, or will send nothing any more."""
        served_calls = self.connection.served_calls
        if self not in served_calls:
            return
        del served_calls[self]
        self._requests = None
        self.connection.gate.call_ended()
        for callback in self._done_callbacks:
            callback(self)

    def _note(self, detail: str) -> None:
        connection = self.connection
        name = self.call.method.name
        to = connection.client.process.name
        connection.network.note(connection.server.process.name, name, f"{detail} to {to}")

    # ------------------------------------------------------------------ grpc.aio.ServicerContext

    async def read(self) -> Any:
        """See `grpc.aio.ServicerContext`."""
        while not self._requests:
            if self._requests is None or self._requests_ended or self._ended:
                return grpc.aio.EOF
            await self._change(self._waiting)
        data = self._requests.popleft()
        call = self.call
        if isinstance(call, RequestStream):
            call.was_read(len(data))
        return self._parsed(data)

    async def write(self, message: Any) -> None:
        """See `grpc.aio.ServicerContext`."""
        serialize = self.handler.response_serializer
        data = message if serialize is None else serialize(message)
        if len(data) > GRPC_MESSAGE_BYTES_MAX:
            self._send_status(grpc.StatusCode.RESOURCE_EXHAUSTED, too_large(len(data)))
        window_bytes = self.connection.network.links.settings.stream_window_bytes
        while self._unread_bytes > window_bytes and not self._ended:
            await self._change(self._writing)
        if self._ended:
            raise grpc.aio.UsageError("RPC already finished.")
        self._unread_bytes += len(data)
        self._note(f"message {len(data)}")
        call: Any = self.call
        if self._initial_metadata is None:
            self._send_initial_metadata(())
        self.connection.down.post(len(data), call.received_message, (data,))

    async def send_initial_metadata(self, initial_metadata: Iterable[Sequence[Any]]) -> None:
        """See `grpc.aio.ServicerContext`."""
        if self._initial_metadata is not None:
            raise grpc.aio.UsageError("Initial metadata already sent.")
        self._send_initial_metadata(raw_metadata(initial_metadata))

    def _send_initial_metadata(self, metadata: RawMetadata) -> None:
        self._initial_metadata = metadata
        if metadata and not self._ended:
            self.connection.down.post(0, self.call.received_initial_metadata, (metadata,))

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Iterable[Sequence[Any]] = (),
    ) -> Never:
        """See `grpc.aio.ServicerContext`."""
        if self._abort is not None:
            raise grpc.aio.UsageError("Abort already called!")
        self._abort = grpc.aio.AbortError("Locally aborted.")
        self._trailing_metadata = raw_metadata(trailing_metadata) or self._trailing_metadata
        self._code = code
        self._details = details or self._details
        self._send_status(code, self._details)
        raise self._abort

    async def abort_with_status(self, status: grpc.Status) -> Never:
        """See `grpc.aio.ServicerContext`."""
        await self.abort(status.code, status.details, status.trailing_metadata)

    def set_trailing_metadata(self, trailing_metadata: Iterable[Sequence[Any]]) -> None:
        """See `grpc.aio.ServicerContext`."""
        self._trailing_metadata = raw_metadata(trailing_metadata)

    def invocation_metadata(self) -> Any:
        """See `grpc.aio.ServicerContext`."""
        return self.call.metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        """See `grpc.aio.ServicerContext`."""
        self._code = code

    def set_details(self, details: str) -> None:
        """See `grpc.aio.ServicerContext`."""
        self._details = details

    def set_compression(self, compression: grpc.Compression) -> None:
        """Changes nothing: sizes are those of the messages."""

    def disable_next_message_compression(self) -> None:
        """Changes nothing: sizes are those of the messages."""

    def peer(self) -> str:
        """See `grpc.aio.ServicerContext`; the name of the host stands for its address."""
        return f"ipv4:{self.connection.client.process.host.name}:{self.connection.client_port}"

    def peer_identities(self) -> Iterable[bytes] | None:
        """None: channels are not secured."""
        return None

    def peer_identity_key(self) -> str | None:
        """None: channels are not secured."""
        return None

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Empty: channels are not secured."""
        return {}

    def time_remaining(self) -> Any:
        """See `grpc.aio.ServicerContext`; None without a deadline."""
        if self.deadline_s is None:
            return None
        left_s = self.deadline_s - self._loop.now_s
        return max(0.0, left_s * self.connection.server.process.host.clock_rate)

    def trailing_metadata(self) -> grpc.aio.Metadata:
        """See `grpc.aio.ServicerContext`."""
        return aio_metadata(self._trailing_metadata)

    def code(self) -> grpc.StatusCode:
        """See `grpc.aio.ServicerContext`."""
        return self._code

    def details(self) -> str:
        """See `grpc.aio.ServicerContext`."""
        return self._details

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """See `grpc.aio.ServicerContext`."""
        self._done_callbacks.append(callback)

    def cancelled(self) -> bool:
        """See `grpc.aio.ServicerContext`."""
        return self._client_left

    def done(self) -> bool:
        """See `grpc.aio.ServicerContext`."""
        return self._ended
