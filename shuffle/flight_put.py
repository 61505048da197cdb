"""The serving side of puts: partitions that tasks elsewhere write to a shuffle service by Flight.

A partition is one DoPut stream: messages of some encoded blocks each, as rows of one binary
column, and a last one that says that it is complete. Nothing of it is served until its attempt's
DoAction "publish", which may be repeated. Flight waits for whoever reads slowly, so neither side
holds more than a few messages.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError, Message
from pyarrow import flight

from holdover.errors import InvalidId
from holdover.runtime import PartitionReceiver
from holdover.v1 import shuffle_pb2
from holdover.v1.common_pb2 import ExecutionAttempt, FinishedExecution
from shuffle.errors import OutputRefused
from shuffle.partition_file_intake import BadPut, IncomingPartition, PartitionIntake

PUBLISH = "publish"
PUBLISH_COPY = "publish-copy"
DISCARD = "discard"
#: Partitions that are written at the same time; others are refused, and go elsewhere.
PUTS_MAX = 256
#: The extra information of errors that mean `OutputRefused` begins with this.
REFUSED = b"refused:"
PUT_SCHEMA = pa.schema([pa.field("block", pa.large_binary(), nullable=False)])
#: How long the event loop has for an action; the client is told to ask again.
_ACTION_TIMEOUT_S = 25.0

MessageT = TypeVar("MessageT", bound=Message)


class PutEndpoint:
    """What a Flight server does with puts. Called from its threads."""

    def __init__(self, receiver: PartitionReceiver, loop: asyncio.AbstractEventLoop) -> None:
        """`receiver` is asked on `loop` to publish and to discard."""
        self._receiver = receiver
        self._loop = loop
        self._intake = PartitionIntake(receiver)
        self._turns = threading.BoundedSemaphore(PUTS_MAX)

    def do_put(self, command: bytes, reader: Any, writer: Any) -> None:
        """Take one partition; answers a PutResult when it is complete."""
        if not self._turns.acquire(blocking=False):
            raise _refused(f"{PUTS_MAX} partitions are being written here already")
        try:
            with _told():
                incoming = self._intake.begin(shuffle_pb2.PutHeader.FromString(command))
                try:
                    result = _receive(incoming, reader)
                finally:
                    incoming.close()
            writer.write(pa.py_buffer(result.SerializeToString()))
        finally:
            self._turns.release()

    def do_action(self, name: str, body: bytes) -> bytes:
        """Publish or discard the output of an attempt."""
        with _told():
            if name in (PUBLISH, PUBLISH_COPY):
                execution = FinishedExecution.FromString(body)
                publishing = self._receiver.publish(execution, name == PUBLISH_COPY)
                held: FinishedExecution = self._on_loop(publishing)
                return held.SerializeToString()
            if name == DISCARD:
                self._on_loop(self._receiver.discard(ExecutionAttempt.FromString(body)))
                return b""
            raise BadPut(f"action {name!r} is not {PUBLISH!r}, {PUBLISH_COPY!r} or {DISCARD!r}")

    def _on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:  # the loop is closed: the process ends
            work.close()
            raise flight.FlightUnavailableError("the shuffle service is stopping") from error
        try:
            return future.result(_ACTION_TIMEOUT_S)
        except (TimeoutError, concurrent.futures.CancelledError) as error:
            # What was begun goes on: repeating the call finds it done, or joins it.
            raise flight.FlightUnavailableError("the shuffle service is busy or stops") from error


@contextmanager
def _told() -> Iterator[None]:
    """Errors as the client is told of them."""
    try:
        yield
    except OutputRefused as error:
        raise _refused(str(error)) from error
    except (BadPut, DecodeError, InvalidId) as error:
        raise pa.ArrowInvalid(str(error)) from error
    except pa.ArrowException:
        raise
    except OSError as error:
        raise _refused(f"the shuffle service cannot store it: {error}") from error


def _refused(reason: str) -> flight.FlightServerError:
    return flight.FlightServerError(reason, extra_info=REFUSED + reason.encode())


def _receive(incoming: IncomingPartition, reader: Any) -> shuffle_pb2.PutResult:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            raise BadPut("the stream has ended before the partition was complete") from None
        described = chunk.app_metadata
        message = shuffle_pb2.PutMessage.FromString(described.to_pybytes() if described else b"")
        if message.complete:
            return incoming.complete()
        if chunk.data is not None:
            incoming.append(*_blocks(chunk.data.column(0)), message)


def _blocks(column: pa.LargeBinaryArray) -> tuple[pa.Buffer, list[int]]:
    """The bytes of all blocks of a message, which lie together, and the length of each."""
    if len(column) == 0:
        return pa.py_buffer(b""), []
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    first, last = int(ends[0]), int(ends[-1])
    return data.slice(first, last - first), np.diff(ends).tolist()
