"""The task process's side of its message socket: synchronous, because user code is."""

from __future__ import annotations

import socket
import struct
import threading

from holdover.runtime.processes import TASK_MESSAGE_BYTES_MAX

# Each message is preceded by its length: 4 bytes, big-endian.
FRAME_HEADER = struct.Struct(">I")
# A message up to this size goes out with its header, and wakes its reader once.
_JOINED_BYTES_MAX = 64 * 1024


class TaskSocket:
    """Whole messages to and from the worker that owns this process.

    `send` may be called from any thread; `receive` from one thread at a time.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._send_lock = threading.Lock()

    def send(self, message: bytes) -> None:
        """Send one message; blocks while the worker is slow to read.

        Raises `ValueError` above `TASK_MESSAGE_BYTES_MAX`, `OSError` when the worker is gone.
        """
        if len(message) > TASK_MESSAGE_BYTES_MAX:
            raise ValueError(
                f"a message of {len(message)} bytes is over the limit of {TASK_MESSAGE_BYTES_MAX}"
            )
        header = FRAME_HEADER.pack(len(message))
        with self._send_lock:
            if len(message) <= _JOINED_BYTES_MAX:
                self._connection.sendall(header + message)
            else:
                self._connection.sendall(header)
                self._connection.sendall(message)

    def receive(self) -> bytes | None:
        """Wait for the next message; None when the worker has closed the socket or is gone."""
        header = self._read(FRAME_HEADER.size)
        if header is None:
            return None
        (length,) = FRAME_HEADER.unpack(header)
        if length > TASK_MESSAGE_BYTES_MAX:
            raise ValueError(
                f"a message of {length} bytes is over the limit of {TASK_MESSAGE_BYTES_MAX}"
            )
        return self._read(length)

    def close(self) -> None:
        """Close the socket; the worker then sees this process as gone."""
        self._connection.close()

    def _read(self, length: int) -> bytes | None:
        received = bytearray()
        while len(received) < length:
            try:
                part = self._connection.recv(min(length - len(received), 1 << 20))
            except ConnectionResetError:
                return None
            if not part:
                return None
            received += part
        return bytes(received)
