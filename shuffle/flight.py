"""Partitions over Arrow Flight: served from files as opaque blocks, checked where they arrive.

The server decodes nothing: a message carries some blocks of the data file as rows of one binary
column, read straight into the buffer that is sent. It reads instead of mapping the file because a
mapped file that is cut or fails under the reader kills the process (SIGBUS), and the process is a
TaskManager that owes heartbeats; it is no slower. Flight's threads are C++ threads beside the event
loop. All answers say which of three things is meant: here is the data, I do not have it (or it is
damaged), or ask again.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from pyarrow import flight

from holdover.runtime.errors import AddressInUse, AddressUnavailable
from holdover.runtime.transport_security import CredentialFiles, Credentials
from holdover.v1 import shuffle_pb2
from shuffle.errors import PartitionDamaged, PartitionLost, PartitionNotFound, ShuffleError
from shuffle.flight_connection import FlightConnection
from shuffle.flight_index_cache import IndexCache
from shuffle.flight_put import PutEndpoint
from shuffle.partition_file import check_block, check_data_size
from shuffle.partition_index import Block, Index, schema_from_bytes
from shuffle.partition_name import DATA_SUFFIX

#: Blocks that follow one another in the file travel together up to this many bytes.
MESSAGE_BYTES_MAX = 2 << 20
#: Partitions that one stream brings at most.
PARTITIONS_MAX = 1_001
#: Blocks whose places are remembered: those of 500 partitions of 500 subpartitions, some 40 MB.
_INDEX_BLOCKS_MAX = 1 << 18
#: Streams that one server reads files for at the same time; others wait.
STREAMS_MAX = 128
#: How long a stream waits for its turn before the client is told to ask again.
_TURN_TIMEOUT_S = 5.0
_STOP_TIMEOUT_S = 5.0

_BLOCKS_FIELD = pa.field("block", pa.large_binary(), nullable=False)
_BLOCKS_SCHEMA = pa.schema([_BLOCKS_FIELD])
_HEADER_KEY = b"holdover.fetch-header"
_NOT_FOUND = b"not-found:"
_DAMAGED = b"damaged:"

#: Partition name -> path of its data file (or that path without ".data"), None when not held.
Lookup = Callable[[str], str | None]


class FetchInterrupted(ShuffleError):
    """The fetch broke off without a clear answer; asking again may help (P41)."""


# ---------------------------------------------------------------------------------------- server


class FlightPartitionServer:
    """A running server of one process's partitions."""

    def __init__(
        self,
        host: str,
        port: int,
        lookup: Lookup,
        credentials: Credentials | None = None,
        puts: PutEndpoint | None = None,
    ) -> None:
        """Binds and serves at once. Raises AddressInUse or AddressUnavailable.

        Without `puts` nothing can be put.

        With `credentials`, only over TLS, and only to who has a certificate as well.
        """
        try:
            self._server = _Server(host, port, lookup, credentials, puts)
        except _FLIGHT_FAILURES as error:
            raise _bind_error(host, port, str(error)) from error
        self.port: int = self._server.port
        self._stopped = False

    async def stop(self) -> None:
        """Ends the streams, whose clients are told to ask again, and frees the port. Idempotent.

        Does not wait longer than five seconds for a client that reads nothing.
        """
        if self._stopped:
            return
        self._stopped = True
        self._server.stopping.set()
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def shut_down() -> None:
            self._server.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(ended.set)

        # A daemon: a client that never reads must not keep this process alive.
        threading.Thread(target=shut_down, name="partition-server-stop", daemon=True).start()
        try:
            await asyncio.wait_for(ended.wait(), _STOP_TIMEOUT_S)
        except TimeoutError:
            return


def _bind_error(host: str, port: int, reason: str) -> OSError:
    """gRPC reports a failed bind without its cause; binding once more tells."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return AddressInUse(f"{host}:{port}")
        return AddressUnavailable(f"{host}:{port}", error.strerror or str(error))
    return AddressUnavailable(f"{host}:{port}", reason)


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    def __init__(
        self,
        host: str,
        port: int,
        lookup: Lookup,
        credentials: Credentials | None,
        puts: PutEndpoint | None,
    ) -> None:
        self._lookup = lookup
        self._puts = puts
        self._indexes = IndexCache(_INDEX_BLOCKS_MAX)
        self._turns = threading.BoundedSemaphore(STREAMS_MAX)
        self.stopping = threading.Event()
        if credentials is None:
            super().__init__(f"grpc+tcp://{host}:{port}")
        else:
            super().__init__(
                f"grpc+tls://{host}:{port}",
                tls_certificates=[(credentials.certificate_chain, credentials.private_key)],
                verify_client=True,
                root_certificates=credentials.ca,
            )

    def do_get(self, _context: object, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Answers a FetchTicket with a header and the blocks that it names."""
        try:
            request = shuffle_pb2.FetchTicket.FromString(ticket.ticket)
            if request.more:
                return self._get_many([request, *request.more])
            path, index, blocks = self._find(request)
        except PartitionLost as error:
            raise _server_error(error) from error
        except (DecodeError, ValueError) as error:
            raise pa.ArrowInvalid(f"bad fetch ticket: {error}") from error
        header = _header(index, blocks)
        schema = pa.schema([_BLOCKS_FIELD], metadata={_HEADER_KEY: header.SerializeToString()})
        return flight.GeneratorStream(schema, self._messages(path, index.name, blocks, schema))

    def _get_many(self, requests: list[shuffle_pb2.FetchTicket]) -> flight.FlightDataStream:
        if len(requests) > PARTITIONS_MAX:
            raise ValueError(f"{len(requests)} partitions are more than {PARTITIONS_MAX}")
        return flight.GeneratorStream(_BLOCKS_SCHEMA, self._many(requests))

    def _many(self, requests: list[shuffle_pb2.FetchTicket]) -> Iterator[Any]:
        """Partition after partition: one file is open at a time, whatever their number."""
        for request in requests:
            try:
                path, index, blocks = self._find(request)
            except PartitionLost as error:
                raise _server_error(error) from error
            except ValueError as error:
                raise pa.ArrowInvalid(f"bad fetch ticket: {error}") from error
            yield _no_blocks(), pa.py_buffer(_header(index, blocks).SerializeToString())
            yield from self._messages(path, index.name, blocks, _BLOCKS_SCHEMA)

    def do_put(
        self, _context: object, descriptor: flight.FlightDescriptor, reader: Any, writer: Any
    ) -> None:
        """Takes a partition, which a PutHeader describes."""
        self._endpoint().do_put(descriptor.command, reader, writer)

    def do_action(self, _context: object, action: flight.Action) -> list[flight.Result]:
        """Publishes or discards what an attempt has put."""
        return [flight.Result(self._endpoint().do_action(action.type, action.body.to_pybytes()))]

    def _endpoint(self) -> PutEndpoint:
        if self._puts is None:
            raise pa.ArrowInvalid("nothing can be put here: this is not a shuffle service")
        return self._puts

    def _find(self, request: shuffle_pb2.FetchTicket) -> tuple[str, Index, list[Block]]:
        name = request.partition_name
        held_at = self._lookup(name)
        if held_at is None:
            raise PartitionNotFound(name)
        base = held_at.removesuffix(DATA_SUFFIX)
        index = self._indexes.read(base, name)
        # Said with the header, before a reader has done any work for nothing.
        check_data_size(base + DATA_SUFFIX, index)
        blocks = index.range(request.first_subpartition, request.end_subpartition)
        return base + DATA_SUFFIX, index, blocks[request.start_block :]

    def _messages(
        self, path: str, name: str, blocks: list[Block], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        if not self._turns.acquire(timeout=_TURN_TIMEOUT_S):
            raise flight.FlightUnavailableError(f"{STREAMS_MAX} fetches are served already")
        try:
            if not blocks:
                return
            with pa.OSFile(path) as file:
                for run in _runs(blocks):
                    if self.stopping.is_set():
                        raise flight.FlightUnavailableError("the partition server is stopping")
                    yield _message(file, run, name, schema)
        except OSError as error:
            damage = PartitionDamaged(name, f"its data file cannot be read: {error}")
            raise _server_error(damage) from error
        except PartitionDamaged as error:
            raise _server_error(error) from error
        finally:
            self._turns.release()


def _header(index: Index, blocks: list[Block]) -> shuffle_pb2.FetchHeader:
    return shuffle_pb2.FetchHeader(
        schema=index.schema_bytes,
        length=[block.length for block in blocks],
        crc32c=[block.crc32c for block in blocks],
        rows=[block.rows for block in blocks],
    )


def _no_blocks() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], pa.large_binary())], schema=_BLOCKS_SCHEMA)


def _server_error(error: PartitionLost) -> flight.FlightServerError:
    code = _NOT_FOUND if isinstance(error, PartitionNotFound) else _DAMAGED
    return flight.FlightServerError(str(error), extra_info=code + error.reason.encode())


def _runs(blocks: list[Block]) -> Iterator[list[Block]]:
    """Cuts the blocks into runs that are contiguous in the file, of MESSAGE_BYTES_MAX or one."""
    run: list[Block] = []
    run_bytes = 0
    for block in blocks:
        follows = run and run[-1].offset + run[-1].length == block.offset
        if run and not (follows and run_bytes + block.length <= MESSAGE_BYTES_MAX):
            yield run
            run, run_bytes = [], 0
        run.append(block)
        run_bytes += block.length
    if run:
        yield run


def _message(file: pa.NativeFile, run: list[Block], name: str, schema: pa.Schema) -> pa.RecordBatch:
    ends = np.cumsum([0, *(block.length for block in run)], dtype=np.int64)
    file.seek(run[0].offset)
    data = file.read_buffer(int(ends[-1]))
    if data.size != ends[-1]:
        raise PartitionDamaged(name, "the data file is too short")
    column = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(run), [None, pa.py_buffer(ends), data]
    )
    return pa.RecordBatch.from_arrays([column], schema=schema)


# ---------------------------------------------------------------------------------------- client


@dataclass(frozen=True, slots=True)
class FetchedBlock:
    """A block whose checksum was verified; decoding it is left to who reads it."""

    data: pa.Buffer
    rows: int


class FlightPartitionClient:
    """Fetches partitions from one server. Connects when it is first used, and again by itself.

    Every call is bounded by `call_timeout_s`; a fetch that its reader drains more slowly is
    interrupted, and is to be continued by another call. May be shared between threads.
    """

    def __init__(
        self,
        address: str,
        *,
        call_timeout_s: float = 30.0,
        files: CredentialFiles | None = None,
    ) -> None:
        """`address` is host:port. With `files`, over TLS; each fetch knows what is new in them."""
        self.address = address
        self._call_timeout_s = call_timeout_s
        self._connection = FlightConnection(address, files)

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
        self._connection.close()

    def fetch(
        self, name: str, first_subpartition: int, end_subpartition: int, start_block: int = 0
    ) -> PartitionStream:
        """Begins to fetch the blocks of subpartitions `first <= s < end` from `start_block` on.

        Raises PartitionNotFound and PartitionDamaged when the server says so clearly, ValueError
        when it refuses the request as wrong, else FetchInterrupted.
        """
        ticket = shuffle_pb2.FetchTicket(
            partition_name=name,
            first_subpartition=first_subpartition,
            end_subpartition=end_subpartition,
            start_block=start_block,
        )
        options = flight.FlightCallOptions(timeout=self._call_timeout_s)
        try:
            reader = self._connection.client().do_get(
                flight.Ticket(ticket.SerializeToString()), options
            )
            metadata = reader.schema.metadata or {}
            header = shuffle_pb2.FetchHeader.FromString(metadata.get(_HEADER_KEY, b""))
            return PartitionStream(name, reader, header)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{self.address} refuses to fetch {name}: {error}") from error
        except _FLIGHT_FAILURES as error:
            raise _client_error(name, error) from error
        except DecodeError as error:
            raise FetchInterrupted(f"{self.address} sent a bad header: {error}") from error

    def fetch_many(
        self,
        names: Sequence[str],
        first_subpartition: int,
        end_subpartition: int,
        start_block: int = 0,
    ) -> PartitionsStream:
        """Begins to fetch the same subpartitions of two to PARTITIONS_MAX partitions by one stream,
        of the first of them only from `start_block` on.

        Raises FetchInterrupted. What is said of one of them is raised where it would have come.
        """
        if not 2 <= len(names) <= PARTITIONS_MAX:
            raise ValueError(f"{len(names)} partitions must be 2..{PARTITIONS_MAX}")
        tickets = [
            shuffle_pb2.FetchTicket(
                partition_name=name,
                first_subpartition=first_subpartition,
                end_subpartition=end_subpartition,
            )
            for name in names
        ]
        tickets[0].start_block = start_block
        tickets[0].more.extend(tickets[1:])
        options = flight.FlightCallOptions(timeout=self._call_timeout_s)
        ticket = flight.Ticket(tickets[0].SerializeToString())
        try:
            return PartitionsStream(names, self._connection.client().do_get(ticket, options))
        except _FLIGHT_FAILURES as error:
            raise FetchInterrupted(f"{self.address} does not answer: {error}") from error


class PartitionsStream:
    """Several partitions in one stream, in the order in which they were asked for."""

    def __init__(self, names: Sequence[str], reader: Any) -> None:
        self._names = names
        self._reader = reader

    def cancel(self) -> None:
        """Ends the fetch; may be called from any thread."""
        self._reader.cancel()

    def __iter__(self) -> Iterator[PartitionStream]:
        """Each is to be read to its end before the next. Raises as `PartitionStream` does, with the
        name of the partition that was to come."""
        for name in self._names:
            try:
                chunk = self._reader.read_chunk()
                if chunk.data.num_rows:
                    raise FetchInterrupted(f"blocks came before the header of {name}")
                described = chunk.app_metadata
                header = shuffle_pb2.FetchHeader.FromString(
                    described.to_pybytes() if described else b""
                )
            except StopIteration:
                raise FetchInterrupted(f"the fetch ended before {name}") from None
            except pa.ArrowInvalid as error:
                raise ValueError(f"the fetch of {name} is refused: {error}") from error
            except _FLIGHT_FAILURES as error:
                raise _client_error(name, error) from error
            except DecodeError as error:
                raise FetchInterrupted(f"a bad header came for {name}: {error}") from error
            yield PartitionStream(name, self._reader, header)


class PartitionStream:
    """The blocks of one fetch, in reading order, each verified. Used by one thread."""

    def __init__(self, name: str, reader: Any, header: shuffle_pb2.FetchHeader) -> None:
        self.name = name
        #: Schema of the partition; None when its producer wrote nothing and knew none.
        self.schema: pa.Schema | None = schema_from_bytes(header.schema)
        self._reader = reader
        self._header = header

    def cancel(self) -> None:
        """Ends the fetch; may be called from any thread."""
        self._reader.cancel()

    def __iter__(self) -> Iterator[FetchedBlock]:
        """Raises PartitionDamaged or FetchInterrupted."""
        received = 0
        expected = len(self._header.crc32c)
        while received < expected:
            for data in self._next_message():
                if received == expected or data.size != self._header.length[received]:
                    raise FetchInterrupted(f"the fetch of {self.name} sent an unexpected block")
                check_block(data, self._header.crc32c[received], self.name)
                yield FetchedBlock(data, self._header.rows[received])
                received += 1

    def _next_message(self) -> Iterator[pa.Buffer]:
        try:
            column = self._reader.read_chunk().data.column(0)
        except StopIteration:
            raise FetchInterrupted(f"the fetch of {self.name} ended too early") from None
        except _FLIGHT_FAILURES as error:
            raise _client_error(self.name, error) from error
        _, offsets, data = column.buffers()
        ends = np.frombuffer(offsets, dtype=np.int64)[: len(column) + 1].tolist()
        return (data.slice(ends[i], ends[i + 1] - ends[i]) for i in range(len(column)))


_FLIGHT_FAILURES = (pa.ArrowException, OSError)


def _client_error(name: str, error: Exception) -> ShuffleError:
    """What a failed Flight call means: only the server's own clear word makes a partition lost."""
    extra_info = getattr(error, "extra_info", None) or b""
    if extra_info.startswith(_NOT_FOUND):
        return PartitionNotFound(name, extra_info.removeprefix(_NOT_FOUND).decode())
    if extra_info.startswith(_DAMAGED):
        return PartitionDamaged(name, extra_info.removeprefix(_DAMAGED).decode())
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    return FetchInterrupted(first_line)
