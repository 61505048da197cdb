"""What a task process reads its inputs with (`InputReader`) and writes its outputs with.

`InputReader` reads a range of subpartitions from many partitions in a fixed order, near ones by
memory map and far ones by Flight, a little ahead of the task. Threads are allowed here: this is
the inside of a task. `ResultWriter` is in a module of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

import pyarrow as pa

from holdover.runtime.transport_security import CredentialFiles
from shuffle.errors import SchemasDiffer
from shuffle.flight_fetcher import FetchLimits, PartitionFetcher, PartitionSource
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
        self._fetcher: PartitionFetcher | None = None
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

    def _started_fetcher(self) -> PartitionFetcher:
        if self._fetcher is None:
            sources = {i: self._sources[i] for i in self._remote}
            self._fetcher = PartitionFetcher(sources, self._range, self._limits, self._credentials)
        return self._fetcher
