"""The writing side of puts: what a task writes its output to a shuffle service with.

Blocks are encoded and checksummed here, and are the very bytes that the service stores and that
readers verify. A put that breaks off fails its attempt: what was sent is not kept to be sent again.
Publishing and discarding are repeated until they are answered, for some time.
"""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from google.protobuf.message import Message
from pyarrow import flight

from holdover.runtime.transport_security import CredentialFiles
from holdover.v1 import shuffle_pb2
from holdover.v1.common_pb2 import ExecutionAttempt, FinishedExecution
from shuffle.arrow_blocks import joined
from shuffle.errors import OutputRefused, PartitionIncomplete, ShuffleError
from shuffle.flight_connection import FlightConnection
from shuffle.flight_put import DISCARD, PUBLISH, PUBLISH_COPY, PUT_SCHEMA, REFUSED
from shuffle.partition_encoder import BLOCK_BYTES_MAX, PartitionEncoder
from shuffle.partition_index import Block, PartitionMetrics
from shuffle.partition_name import PartitionIdentity

#: Blocks are gathered for a message up to this many bytes.
_MESSAGE_BYTES_MAX = 2 << 20
#: Bound of one put. It is as long as its task takes; a service that is lost ends it sooner.
_PUT_TIMEOUT_S = 24 * 3_600.0
_RETRY_PAUSE_FIRST_S = 0.05
_RETRY_PAUSE_MAX_S = 1.0
#: Nobody waits for what is only discarded.
_DISCARD_TIMEOUT_S = 2.0
_FAILURES = (pa.ArrowException, flight.FlightError, OSError)


class ShuffleServiceTarget:
    """One shuffle service as the target of an attempt's output; a `ResultTarget`."""

    def __init__(
        self,
        address: str,
        *,
        retry_timeout_s: float = 30.0,
        call_timeout_s: float = 30.0,
        files: CredentialFiles | None = None,
    ) -> None:
        """`address` is the service's data address; without an answer within `retry_timeout_s` it
        counts as unreachable."""
        self.address = address
        self._retry_timeout_s = retry_timeout_s
        self._call_timeout_s = call_timeout_s
        #: To the service, for those who put to it.
        self.connection = FlightConnection(address, files)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self.connection.close()

    def open(
        self,
        identity: PartitionIdentity,
        subpartitions: int,
        *,
        compression: str = "lz4",
        block_bytes_max: int = BLOCK_BYTES_MAX,
    ) -> FlightPartitionWriter:
        """A writer for one partition, which connects with its first block."""
        return FlightPartitionWriter(
            self.connection,
            identity,
            subpartitions,
            compression=compression,
            block_bytes_max=block_bytes_max,
        )

    def publish(self, execution: FinishedExecution, *, is_copy: bool = False) -> FinishedExecution:
        """Make all that the attempt has put its finished output, at once; the answer is what the
        service holds. Raises OutputRefused when it does not, or does not answer."""
        action = PUBLISH_COPY if is_copy else PUBLISH
        deadline_s = time.monotonic() + self._retry_timeout_s
        pause_s = _RETRY_PAUSE_FIRST_S
        while True:
            try:
                return FinishedExecution.FromString(
                    self._act(action, execution, self._call_timeout_s)
                )
            except _FAILURES as error:
                failure = put_error(self.address, error)
                if not isinstance(failure, _Unanswered):
                    raise failure from error
                if time.monotonic() + pause_s > deadline_s:
                    raise OutputRefused(str(failure)) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_PAUSE_MAX_S)

    def discard(self, attempt: ExecutionAttempt) -> None:
        """Have the service delete what the attempt has put and not published. A courtesy: what
        remains is deleted with its job."""
        with suppress(*_FAILURES):
            self._act(DISCARD, attempt, _DISCARD_TIMEOUT_S)

    def _act(self, name: str, message: Message, timeout_s: float) -> bytes:
        options = flight.FlightCallOptions(timeout=timeout_s)
        action = flight.Action(name, message.SerializeToString())
        (answer,) = self.connection.client().do_action(action, options)
        return bytes(answer.body.to_pybytes())


class FlightPartitionWriter(PartitionEncoder):
    """Puts one partition to a shuffle service. See `PartitionEncoder`."""

    def __init__(
        self,
        connection: FlightConnection,
        identity: PartitionIdentity,
        subpartitions: int,
        *,
        compression: str,
        block_bytes_max: int,
        is_copy: bool = False,
    ) -> None:
        """See `PartitionEncoder`. A copy is of output that is finished elsewhere."""
        super().__init__(
            identity, subpartitions, compression=compression, block_bytes_max=block_bytes_max
        )
        self._connection = connection
        self._is_copy = is_copy
        self._stream: Any = None
        self._answers: Any = None
        self._closed = False
        self._message: list[tuple[pa.Buffer, Block]] = []
        self._message_bytes = 0

    def _store(self, data: pa.Buffer, block: Block) -> None:
        if self._closed:
            raise PartitionIncomplete(f"the writer of {self.identity.name} was closed before")
        if self._message and self._message_bytes + data.size > _MESSAGE_BYTES_MAX:
            self._send()
        self._message.append((data, block))
        self._message_bytes += data.size

    def commit(self) -> PartitionMetrics:
        """Completes the partition; its attempt is still to be published.

        Raises PartitionIncomplete after commit or abort, OutputRefused.
        """
        if self._closed:
            raise PartitionIncomplete(f"the writer of {self.identity.name} was closed before")
        if self._message:
            self._send()
        last = pa.RecordBatch.from_arrays([pa.array([], pa.large_binary())], schema=PUT_SCHEMA)
        self._write(last, shuffle_pb2.PutMessage(complete=True))
        try:
            self._stream.done_writing()
            answer = self._answers.read()
            if answer is None:
                raise pa.ArrowCancelled("the put has ended without an answer")
            result = shuffle_pb2.PutResult.FromString(answer.to_pybytes())
        except _FAILURES as error:
            raise self._failure(error) from error
        self._close_stream()
        metrics = self._metrics(self._index())
        if (result.data_bytes, result.index_crc32c) != (metrics.data_bytes, metrics.index_crc32c):
            raise OutputRefused(
                f"{self._connection.address} has stored {self.identity.name} as"
                f" {result.data_bytes} bytes with an index of CRC32C {result.index_crc32c:08x}, not"
                f" {metrics.data_bytes} and {metrics.index_crc32c:08x}"
            )
        return metrics

    def abort(self) -> None:
        """Breaks the put off, which deletes the partition at the service unless it is complete."""
        self._message = []
        self._close_stream()

    def _send(self) -> None:
        blocks, self._message, self._message_bytes = self._message, [], 0
        ends = np.cumsum([0, *(data.size for data, _ in blocks)], dtype=np.int64)
        data = joined([data for data, _ in blocks])
        column = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(blocks), [None, pa.py_buffer(ends), data]
        )
        described = shuffle_pb2.PutMessage(
            subpartition=[block.subpartition for _, block in blocks],
            crc32c=[block.crc32c for _, block in blocks],
            rows=[block.rows for _, block in blocks],
        )
        self._write(pa.RecordBatch.from_arrays([column], schema=PUT_SCHEMA), described)

    def _write(self, batch: pa.RecordBatch, described: shuffle_pb2.PutMessage) -> None:
        try:
            if self._stream is None:
                self._open_stream()
            self._stream.write_with_metadata(batch, pa.py_buffer(described.SerializeToString()))
        except _FAILURES as error:
            raise self._failure(error) from error

    def _open_stream(self) -> None:
        header = shuffle_pb2.PutHeader(
            partition_name=self.identity.name,
            schema=self._schema_bytes(),
            subpartitions=self._subpartitions,
            is_copy=self._is_copy,
        )
        descriptor = flight.FlightDescriptor.for_command(header.SerializeToString())
        options = flight.FlightCallOptions(timeout=_PUT_TIMEOUT_S)
        self._stream, self._answers = self._connection.client().do_put(
            descriptor, PUT_SCHEMA, options
        )

    def _failure(self, error: Exception) -> ShuffleError:
        """Why the stream has failed: a write that fails does not say it, its end does."""
        stream, self._stream, self._closed = self._stream, None, True
        if stream is not None:
            try:
                stream.close()
            except _FAILURES as reason:
                error = reason
        failure = put_error(self._connection.address, error)
        return OutputRefused(str(failure)) if isinstance(failure, _Unanswered) else failure

    def _close_stream(self) -> None:
        stream, self._stream, self._closed = self._stream, None, True
        if stream is not None:
            with suppress(*_FAILURES):
                stream.close()


class _Unanswered(ShuffleError):
    """The service has not said what it thinks of the call."""


def put_error(address: str, error: Exception) -> ShuffleError:
    """What a failed put or action means: OutputRefused when the service says so, ShuffleError when
    it calls the call wrong, else that it was not answered."""
    extra_info = getattr(error, "extra_info", None) or b""
    if extra_info.startswith(REFUSED):
        return OutputRefused(f"{address}: {extra_info.removeprefix(REFUSED).decode()}")
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    if isinstance(error, pa.ArrowInvalid):
        return ShuffleError(f"the shuffle service at {address} refuses a put: {first_line}")
    return _Unanswered(f"the shuffle service at {address} does not answer: {first_line}")
