"""Copying finished output from one shuffle service to another, as it lies in the files."""

from __future__ import annotations

import posixpath

import pyarrow as pa

from holdover.ids import AttemptKey, partition_name
from holdover.v1.common_pb2 import FinishedExecution
from shuffle.errors import OutputRefused, PartitionDamaged
from shuffle.flight_connection import FlightConnection
from shuffle.flight_result_target import FlightPartitionWriter, ShuffleServiceTarget
from shuffle.partition_file import check_block, read_index
from shuffle.partition_index import Index
from shuffle.partition_name import DATA_SUFFIX, parse_partition_name


def copy_execution(
    shuffle_dir: str, execution: FinishedExecution, target: ShuffleServiceTarget
) -> None:
    """Put the partitions of a finished attempt to another service, and publish them there.

    What is published there already is left alone. Raises OutputRefused for the other's sake,
    PartitionNotFound and PartitionDamaged when it cannot be copied from here at all.
    """
    try:
        target.publish(execution, is_copy=True)
    except OutputRefused:
        pass  # as is to be expected: it is not there yet
    else:
        return
    key = AttemptKey.from_proto(execution.attempt)
    for partition in execution.partitions:
        name = partition_name(key, partition.output)
        base = posixpath.join(shuffle_dir, name)
        writer = _PartitionCopier(target.connection, read_index(base, name))
        try:
            writer.copy(base + DATA_SUFFIX)
            writer.commit()
        finally:
            writer.abort()
    target.publish(execution, is_copy=True)


class _PartitionCopier(FlightPartitionWriter):
    """Puts the blocks of a file, each verified, with the schema that its index has."""

    def __init__(self, connection: FlightConnection, index: Index) -> None:
        super().__init__(
            connection,
            parse_partition_name(index.name),
            index.subpartitions,
            compression="none",
            block_bytes_max=1,
            is_copy=True,
        )
        self._copied = index

    def copy(self, path: str) -> None:
        """Send all blocks."""
        name = self._copied.name
        try:
            with open(path, "rb") as file:
                for block in self._copied.blocks:
                    data = pa.py_buffer(file.read(block.length))
                    check_block(data, block.crc32c, name)
                    self._append(block.subpartition, data, block.rows)
        except OSError as error:
            raise PartitionDamaged(name, f"its data file cannot be read: {error}") from error

    def _schema_bytes(self) -> bytes:
        return self._copied.schema_bytes
