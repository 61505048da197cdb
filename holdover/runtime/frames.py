"""Whole messages over a stream socket, on the event loop: the worker's side of a `TaskSocket`."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

from holdover.runtime.processes import TASK_MESSAGE_BYTES_MAX
from holdover.runtime.task_socket import FRAME_HEADER

# Reading pauses while this much has been received and not taken; the peer then blocks in send.
_RECEIVED_BYTES_MAX = 4 * 1024 * 1024


class FrameProtocol(asyncio.Protocol):
    """Cuts what arrives into messages, and applies back pressure both ways.

    One receiver and any number of senders at a time.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._partial = bytearray()
        self._messages: deque[bytes] = deque()
        self._message_bytes = 0
        self._paused_reading = False
        self._arrived = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._ended = False
        self._bytes_received = 0

    @property
    def ended(self) -> bool:
        """Whether the peer has closed its end, or this side was closed."""
        return self._ended

    async def send(self, message: bytes) -> bool:
        """Send one message once the socket accepts it; false when the peer is gone.

        Raises `ValueError` above `TASK_MESSAGE_BYTES_MAX`.
        """
        if len(message) > TASK_MESSAGE_BYTES_MAX:
            raise ValueError(
                f"a message of {len(message)} bytes is over the limit of {TASK_MESSAGE_BYTES_MAX}"
            )
        await self._may_write.wait()
        if self._ended or self._transport is None:
            return False
        self._transport.writelines([FRAME_HEADER.pack(len(message)), message])
        return True

    async def receive(self) -> bytes | None:
        """The next message, None after the last; cancellation loses nothing."""
        while not self._messages:
            if self._ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        message = self._messages.popleft()
        self._message_bytes -= len(message)
        if self._paused_reading and self._message_bytes <= _RECEIVED_BYTES_MAX // 2:
            self._paused_reading = False
            if self._transport is not None and not self._ended:
                self._transport.resume_reading()
        return message

    async def end_when_quiet(self, quiet_s: float) -> None:
        """End once nothing has arrived for `quiet_s`.

        For a peer that is known to be dead while a process it left behind holds the socket open.
        """
        while not self._ended:
            seen = self._bytes_received
            await asyncio.sleep(quiet_s)
            if seen == self._bytes_received and not self._paused_reading:
                self.close()

    def close(self) -> None:
        """Drop the connection. Messages that have arrived can still be received."""
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        # Not checked by isinstance: uvloop's transports are of no asyncio class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._bytes_received += len(data)
        self._partial += data
        start = 0
        while len(self._partial) - start >= FRAME_HEADER.size:
            (length,) = FRAME_HEADER.unpack_from(self._partial, start)
            if length > TASK_MESSAGE_BYTES_MAX:
                self.close()  # the peer does not speak this protocol; it cannot be trusted further
                return
            end = start + FRAME_HEADER.size + length
            if len(self._partial) < end:
                break
            self._messages.append(bytes(memoryview(self._partial)[start + FRAME_HEADER.size : end]))
            self._message_bytes += length
            start = end
        if start:
            del self._partial[:start]
            self._arrived.set()
        if self._message_bytes > _RECEIVED_BYTES_MAX and not self._paused_reading:
            self._paused_reading = True
            if self._transport is not None:
                self._transport.pause_reading()

    def pause_writing(self) -> None:
        """Called by the loop."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Called by the loop."""
        self._may_write.set()

    def connection_lost(self, exception: Exception | None) -> None:
        """Called by the loop."""
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._arrived.set()
        self._may_write.set()
