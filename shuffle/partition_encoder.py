"""Rows of one partition as blocks and an index, wherever these are stored."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa

from shuffle.arrow_blocks import (
    crc32c,
    encode_block,
    plain_batch,
    plain_schema,
    write_options,
)
from shuffle.errors import SchemasDiffer
from shuffle.partition_index import Block, PartitionMetrics, encode_index, index_message, metrics_of
from shuffle.partition_name import PartitionIdentity

BLOCK_BYTES_MAX = 2 << 20
SUBPARTITIONS_MAX = 1 << 16


class PartitionEncoder(ABC):
    """Makes the blocks of one partition; who derives from it stores them.

    Used by one thread. Batches of a subpartition keep their order, and blocks that of writing.
    """

    def __init__(
        self,
        identity: PartitionIdentity,
        subpartitions: int,
        *,
        compression: str = "lz4",
        block_bytes_max: int = BLOCK_BYTES_MAX,
    ) -> None:
        """`block_bytes_max` bounds a block before compression."""
        if not 1 <= subpartitions <= SUBPARTITIONS_MAX:
            raise ValueError(f"subpartitions {subpartitions} must be in 1..{SUBPARTITIONS_MAX}")
        self.identity = identity
        self._subpartitions = subpartitions
        self._options = write_options(compression)
        self._block_bytes_max = block_bytes_max
        self._input_schema: pa.Schema | None = None
        self._schema: pa.Schema | None = None
        self._blocks: list[Block] = []
        self._offset = 0

    @abstractmethod
    def commit(self) -> PartitionMetrics:
        """Complete the partition."""

    @abstractmethod
    def abort(self) -> None:
        """Give up what was written. May be called at any time, repeatedly."""

    @abstractmethod
    def _store(self, data: pa.Buffer, block: Block) -> None:
        """Put a block behind those before it."""

    @property
    def schema(self) -> pa.Schema | None:
        """The schema that is stored, once it is known."""
        return self._schema

    def declare_schema(self, schema: pa.Schema) -> None:
        """Fixes the schema, so that even a partition without rows has one.

        Raises SchemasDiffer when another one was declared or written before.
        """
        if self._input_schema is None:
            self._input_schema = schema
            self._schema = plain_schema(schema)
        elif not self._input_schema.equals(schema):
            raise SchemasDiffer(
                f"output {self.identity.output} of {self.identity.vertex}",
                columns_text(self._input_schema),
                columns_text(schema),
            )

    def write(self, subpartition: int, batch: pa.RecordBatch) -> None:
        """Appends the rows to a subpartition, as blocks of about `block_bytes_max` at most.

        Rows are not gathered: a caller with many small batches joins them first. Raises
        SchemasDiffer, UnsupportedColumnType, PartitionIncomplete, and what storing raises.
        """
        if not 0 <= subpartition < self._subpartitions:
            raise ValueError(f"subpartition {subpartition} must be in 0..{self._subpartitions - 1}")
        self.declare_schema(batch.schema)
        if self._schema is None or batch.num_rows == 0:
            return
        pieces = max(1, -(-batch.nbytes // self._block_bytes_max))
        rows_max = -(-batch.num_rows // pieces)
        for start in range(0, batch.num_rows, rows_max):
            piece = plain_batch(batch.slice(start, rows_max), self._schema)
            self._append(subpartition, encode_block(piece, self._options), piece.num_rows)

    def _append(self, subpartition: int, data: pa.Buffer, rows: int) -> None:
        block = Block(subpartition, self._offset, data.size, crc32c(data), rows)
        self._store(data, block)
        self._blocks.append(block)
        self._offset += data.size

    def _schema_bytes(self) -> bytes:
        return b"" if self._schema is None else bytes(self._schema.serialize().to_pybytes())

    def _index(self) -> bytes:
        """The index of what was written."""
        name, schema = self.identity.name, self._schema_bytes()
        return encode_index(index_message(name, schema, self._subpartitions, self._blocks))

    def _metrics(self, index: bytes) -> PartitionMetrics:
        return metrics_of(self._blocks, self._subpartitions, self._offset, crc32c(index[:-4]))


def columns_text(schema: pa.Schema) -> str:
    """The columns of a schema for a message: "name type, ..."."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)
