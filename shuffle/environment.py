"""What a task process reads its inputs with (`InputReader`) and writes its outputs with.

`InputReader` reads a range of subpartitions from many partitions in a fixed order, near ones by
memory map and far ones by Flight, a little ahead of the task. Threads are allowed here: this is
the inside of a task. `ResultWriter` is in a module of its own.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pyarrow as pa

from holdover.runtime.transport_security import CredentialFiles
from shuffle.errors import PartitionUnreachable, SchemasDiffer, ShuffleError
from shuffle.flight import FetchedBlock, FetchInterrupted, FlightPartitionClient, PartitionStream
from shuffle.partition_encoder import columns_text
from shuffle.partition_file import PartitionFile, decoded_batch
from shuffle.partition_name import partition_base
from shuffle.result_writer import ResultOutput, ResultWriter

__all__ = [
    "FetchLimits",
    "InputReader",
    "PartitionSource",
    "ResultOutput",
    "ResultWriter",
]


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """A partition to read, and the data address (host:port) of who holds it."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How far a reader runs ahead, and how long it tries to reach a holder that does not answer."""

    #: Remote partitions that are fetched at the same time, the one that is being read included.
    partitions_max: int = 2
    #: Fetched bytes that wait to be read; one block more when the reader has nothing else to read.
    ahead_bytes_max: int = 64 << 20
    #: Without any progress for this long, a partition is unreachable (P41).
    retry_timeout_s: float = 60.0
    #: Bound of one Flight call; a call that is cut by it continues in the next.
    call_timeout_s: float = 30.0


class InputReader:
    """Reads subpartitions `first <= s < end` of some partitions, in the order they are given in.

    Within a partition, batches come by subpartition and then in writing order: the order is the
    same in every attempt. Batches of remote partitions are verified before they are decoded, like
    those of local ones. To be used by one thread, once.
    """

    def __init__(
        self,
        sources: Sequence[PartitionSource],
        first_subpartition: int,
        end_subpartition: int,
        *,
        shuffle_dir: str,
        local_address: str,
        limits: FetchLimits | None = None,
        credentials: CredentialFiles | None = None,
    ) -> None:
        """Partitions at `local_address` are files under `shuffle_dir`.

        Others are fetched over TLS when there are `credentials`.
        """
        self._sources = tuple(sources)
        self._range = (first_subpartition, end_subpartition)
        self._shuffle_dir = shuffle_dir
        self._remote = [i for i, s in enumerate(self._sources) if s.address != local_address]
        self._is_remote = frozenset(self._remote)
        self._limits = limits or FetchLimits()
        self._credentials = credentials
        self._fetcher: _Fetcher | None = None
        self._position = 0
        self._opened: PartitionFile | None = None
        self._schema: pa.Schema | None = None
        #: Bytes of blocks read so far by memory map, and over the network.
        self.local_bytes = 0
        self.remote_bytes = 0
        #: Rows read so far.
        self.rows = 0

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
        """Ends the fetches. A reader that was closed must not be read any more."""
        if self._fetcher is not None:
            self._fetcher.close()

    def schema(self) -> pa.Schema:
        """The schema of all batches, known also when there are none.

        An empty schema when no producer knew one (all of them ended without a batch). Raises as
        `__iter__` does.
        """
        while self._schema is None and self._position < len(self._sources):
            schema = self._schema_at(self._position)
            if schema is None:
                # A partition without schema has no rows: it is read already.
                self._advance()
            else:
                self._schema = schema
        return self._schema if self._schema is not None else pa.schema([])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The batches that were not read yet.

        Raises PartitionNotFound, PartitionDamaged, PartitionUnreachable, each naming the partition,
        and SchemasDiffer when partitions do not fit together.
        """
        while self._position < len(self._sources):
            schema = self._schema_at(self._position)
            if schema is not None:
                self._check_schema(schema)
                for batch in self._batches_at(self._position, schema):
                    self.rows += batch.num_rows
                    yield batch
            self._advance()

    def _check_schema(self, schema: pa.Schema) -> None:
        if self._schema is None:
            self._schema = schema
        elif not self._schema.equals(schema):
            name = self._sources[self._position].name
            raise SchemasDiffer(
                f"partition {name}", columns_text(self._schema), columns_text(schema)
            )

    def _schema_at(self, position: int) -> pa.Schema | None:
        if position in self._is_remote:
            return self._started_fetcher().schema(position)
        if self._opened is None:
            name = self._sources[position].name
            self._opened = PartitionFile.open(partition_base(self._shuffle_dir, name), name)
        return self._opened.schema

    def _batches_at(self, position: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        self._started_fetcher()  # remote partitions are fetched while local ones are read
        if position in self._is_remote:
            name = self._sources[position].name
            for block in self._started_fetcher().blocks(position):
                self.remote_bytes += block.data.size
                yield decoded_batch(block.data, block.rows, schema, name)
        elif self._opened is not None:
            self.local_bytes += sum(b.length for b in self._opened.blocks(*self._range))
            yield from self._opened.read(*self._range)

    def _advance(self) -> None:
        if self._position in self._is_remote:
            self._started_fetcher().done_with(self._position)
        self._opened = None
        self._position += 1

    def _started_fetcher(self) -> _Fetcher:
        if self._fetcher is None:
            sources = {i: self._sources[i] for i in self._remote}
            self._fetcher = _Fetcher(sources, self._range, self._limits, self._credentials)
        return self._fetcher


@dataclass(slots=True)
class _Inbox:
    """What has arrived of one partition and was not read yet."""

    blocks: deque[FetchedBlock] = field(default_factory=deque)
    #: True once `schema` says what the partition's header said.
    has_schema: bool = False
    schema: pa.Schema | None = None
    ended: bool = False
    error: BaseException | None = None


class _Fetcher:
    """Threads that fetch remote partitions in order, ahead of the reader but not far.

    One condition guards all fields. The partition that is being read is always among those that
    are fetched, and may always deliver a block when it has none waiting: the others can fill the
    budget but not block it.
    """

    def __init__(
        self,
        sources: dict[int, PartitionSource],
        subpartitions: tuple[int, int],
        limits: FetchLimits,
        credentials: CredentialFiles | None,
    ) -> None:
        self._sources = sources
        self._range = subpartitions
        self._limits = limits
        self._credentials = credentials
        self._changed = threading.Condition()
        self._waiting = deque(sources)
        self._inboxes = {position: _Inbox() for position in sources}
        self._unread = deque(sources)
        self._running = 0
        self._ahead_bytes = 0
        self._closed = False
        self._clients: dict[str, FlightPartitionClient] = {}
        self._streams: dict[int, PartitionStream] = {}
        self._threads = [
            threading.Thread(target=self._work, name=f"fetch-{i}", daemon=True)
            for i in range(min(limits.partitions_max, len(sources)))
        ]
        for thread in self._threads:
            thread.start()

    # --- the reader's side

    def schema(self, position: int) -> pa.Schema | None:
        """Waits for the header of a partition; raises what ended its fetch."""
        inbox = self._inboxes[position]
        with self._changed:
            self._changed.wait_for(lambda: inbox.has_schema or inbox.ended)
            if not inbox.has_schema and inbox.error is not None:
                raise inbox.error
            return inbox.schema

    def blocks(self, position: int) -> Iterator[FetchedBlock]:
        """The blocks of a partition as they arrive; raises what ended its fetch."""
        inbox = self._inboxes[position]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(inbox.blocks) or inbox.ended)
                if not inbox.blocks:
                    if inbox.error is not None:
                        raise inbox.error
                    return
                block = inbox.blocks.popleft()
                self._ahead_bytes -= block.data.size
                self._changed.notify_all()
            yield block

    def done_with(self, position: int) -> None:
        """The reader goes on to the next partition: another one may be fetched."""
        with self._changed:
            self._unread.remove(position)
            self._running -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all fetches and waits, briefly, for the threads."""
        with self._changed:
            self._closed = True
            streams = list(self._streams.values())
            self._changed.notify_all()
        for stream in streams:
            stream.cancel()
        for thread in self._threads:
            thread.join(timeout=2.0)
        for client in self._clients.values():
            client.close()

    # --- the threads' side

    def _work(self) -> None:
        while (position := self._next()) is not None:
            error: BaseException | None = None
            try:
                self._fetch(position)
            except Exception as failure:  # noqa: BLE001  (raised where the reader waits for it)
                error = failure
            with self._changed:
                self._inboxes[position].ended = True
                self._inboxes[position].error = error
                self._changed.notify_all()

    def _next(self) -> int | None:
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._closed or not self._waiting or self._running < self._limits.partitions_max
                )
            )
            if self._closed or not self._waiting:
                return None
            self._running += 1
            return self._waiting.popleft()

    def _fetch(self, position: int) -> None:
        """Fetches a partition to its end, over as many calls as it takes."""
        source = self._sources[position]
        received = 0
        progress_s = time.monotonic()
        pause_s = 0.05
        while not self._closed:
            before = received
            try:
                for block in self._open_stream(position, received):
                    self._deliver(position, block)
                    received += 1
                return
            except FetchInterrupted as error:
                interruption = error
            finally:
                with self._changed:
                    self._streams.pop(position, None)
            now_s = time.monotonic()
            if received > before:
                progress_s, pause_s = now_s, 0.05
            if now_s - progress_s >= self._limits.retry_timeout_s:
                raise PartitionUnreachable(source.name, source.address, str(interruption))
            with self._changed:
                self._changed.wait_for(lambda: self._closed, timeout=pause_s)
            pause_s = min(pause_s * 2, 1.0)

    def _open_stream(self, position: int, start_block: int) -> PartitionStream:
        source = self._sources[position]
        with self._changed:
            client = self._clients.get(source.address)
            if client is None:
                client = FlightPartitionClient(
                    source.address,
                    call_timeout_s=self._limits.call_timeout_s,
                    files=self._credentials,
                )
                self._clients[source.address] = client
        stream = client.fetch(source.name, *self._range, start_block)
        with self._changed:
            if self._closed:
                stream.cancel()
            self._streams[position] = stream
            inbox = self._inboxes[position]
            inbox.schema, inbox.has_schema = stream.schema, True
            self._changed.notify_all()
        return stream

    def _deliver(self, position: int, block: FetchedBlock) -> None:
        inbox = self._inboxes[position]
        fits: Callable[[], bool] = lambda: (  # noqa: E731
            self._closed
            or self._ahead_bytes + block.data.size <= self._limits.ahead_bytes_max
            or (self._unread[0] == position and not inbox.blocks)
        )
        with self._changed:
            self._changed.wait_for(fits)
            if self._closed:
                raise ShuffleError(f"the reader of {self._sources[position].name} was closed")
            inbox.blocks.append(block)
            self._ahead_bytes += block.data.size
            self._changed.notify_all()
