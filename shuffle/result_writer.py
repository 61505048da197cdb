"""What a task writes its results with: one partition for each output, split each in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from shuffle.arrow_blocks import concatenated, plain_batch, plain_schema
from shuffle.errors import SchemasDiffer
from shuffle.partition_encoder import BLOCK_BYTES_MAX, PartitionEncoder, columns_text
from shuffle.partition_file import PartitionWriter
from shuffle.partition_index import PartitionMetrics
from shuffle.partition_name import PartitionIdentity
from shuffle.partitioner import Partitioner


class ResultTarget(Protocol):
    """Where the partitions of an attempt are written to, when it is not a directory here."""

    def open(
        self,
        identity: PartitionIdentity,
        subpartitions: int,
        *,
        compression: str,
        block_bytes_max: int,
    ) -> PartitionEncoder:
        """A writer for one partition."""
        ...


@dataclass(frozen=True, slots=True)
class ResultOutput:
    """One output of a task: the partition that it becomes and how its rows are split."""

    identity: PartitionIdentity
    partitioner: Partitioner


class ResultWriter:
    """Writes the same rows to all outputs of a task, each split in its own way.

    Rows are collected until they make blocks of a good size for each subpartition, so a task may
    write small batches. At most `buffer_bytes_max` are held back (twice that while they are split).
    """

    def __init__(
        self,
        shuffle_dir: str,
        outputs: Sequence[ResultOutput],
        *,
        compression: str = "lz4",
        buffer_bytes_max: int = 32 << 20,
        block_bytes_max: int = BLOCK_BYTES_MAX,
        sync: bool = False,
        target: ResultTarget | None = None,
    ) -> None:
        """Writes to `shuffle_dir`, or to `target` where there is one."""
        widest = max((output.partitioner.subpartitions for output in outputs), default=1)
        self._buffer_bytes_max = max(1, min(buffer_bytes_max, widest * block_bytes_max))
        self._buffer: list[pa.RecordBatch] = []
        self._buffer_bytes = 0
        self._input_schema: pa.Schema | None = None
        self._schema: pa.Schema | None = None
        self._partitioners = [output.partitioner for output in outputs]
        self._writers: list[PartitionEncoder] = []
        for output in outputs:
            identity, subpartitions = output.identity, output.partitioner.subpartitions
            if target is None:
                writer: PartitionEncoder = PartitionWriter(
                    shuffle_dir,
                    identity,
                    subpartitions,
                    compression=compression,
                    block_bytes_max=block_bytes_max,
                    sync=sync,
                )
            else:
                writer = target.open(
                    identity,
                    subpartitions,
                    compression=compression,
                    block_bytes_max=block_bytes_max,
                )
            self._writers.append(writer)
        #: Rows written so far.
        self.rows = 0

    def declare_schema(self, schema: pa.Schema) -> None:
        """Fixes the schema, so that consumers know it even if no row follows.

        Raises SchemasDiffer when another one was declared or written before.
        """
        if self._input_schema is None:
            self._input_schema = schema
            self._schema = plain_schema(schema)
            for writer in self._writers:
                writer.declare_schema(self._schema)
        elif not self._input_schema.equals(schema):
            raise SchemasDiffer(
                "a task's output", columns_text(self._input_schema), columns_text(schema)
            )

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows. Raises SchemasDiffer, MissingKeyColumn, other ShuffleErrors, and OSError."""
        self.declare_schema(batch.schema)
        if batch.num_rows == 0:
            return
        self.rows += batch.num_rows
        pieces = max(1, -(-batch.nbytes // self._buffer_bytes_max))
        rows_max = -(-batch.num_rows // pieces)
        for start in range(0, batch.num_rows, rows_max):
            piece = plain_batch(batch.slice(start, rows_max), self._schema)
            self._buffer.append(piece)
            self._buffer_bytes += piece.nbytes
            if self._buffer_bytes >= self._buffer_bytes_max:
                self._flush()

    def _flush(self) -> None:
        if not self._buffer:
            return
        batch = concatenated(self._buffer)
        self._buffer, self._buffer_bytes = [], 0
        for partitioner, writer in zip(self._partitioners, self._writers, strict=True):
            for subpartition, piece in partitioner.split(batch):
                writer.write(subpartition, piece)

    def commit(self) -> tuple[PartitionMetrics, ...]:
        """Completes the partitions, one after another; the metrics are in the order of outputs.

        Those in a directory are published by it; those of a target when their attempt is.

        When it raises, `abort` deletes also those that were published already.
        """
        self._flush()
        return tuple(writer.commit() for writer in self._writers)

    def abort(self) -> None:
        """Deletes all that was written. May be called at any time, repeatedly."""
        self._buffer, self._buffer_bytes = [], 0
        for writer in self._writers:
            writer.abort()
