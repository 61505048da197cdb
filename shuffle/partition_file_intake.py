"""Files of partitions that arrive from tasks elsewhere, written as their blocks come.

Each block is verified before it is appended to the data file; the index is written when all of them
are there. Both have their temporary names until the attempt is published (`PartitionReceiver`).
Nothing is held in memory but the index. Threads are allowed here, as wherever Flight calls.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa

from holdover.runtime import PartitionReceiver
from holdover.v1 import shuffle_pb2
from shuffle.arrow_blocks import crc32c
from shuffle.partition_encoder import SUBPARTITIONS_MAX
from shuffle.partition_index import Block, encode_index, index_message, schema_from_bytes
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX, PART_SUFFIX, partition_base


class BadPut(ValueError):
    """What was put is not what it should be; the text says what is wrong."""


class PartitionIntake:
    """Opens the files of partitions. Thread-safe."""

    def __init__(self, receiver: PartitionReceiver) -> None:
        self._receiver = receiver
        # A stream that ends must not delete the files of the one that has just taken its place.
        self._lock = threading.Lock()

    def begin(self, header: shuffle_pb2.PutHeader) -> IncomingPartition:
        """Open a partition. Raises BadPut, what the receiver refuses with, OSError of the disk."""
        name = header.partition_name
        if not 1 <= header.subpartitions <= SUBPARTITIONS_MAX:
            raise BadPut(f"subpartitions {header.subpartitions} must be in 1..{SUBPARTITIONS_MAX}")
        try:
            schema_from_bytes(header.schema)
            base = partition_base(self._receiver.directory, name)
        except (ValueError, pa.ArrowException, OSError) as error:
            raise BadPut(f"{name!r} cannot be put: {error}") from error
        with self._lock:
            put = self._receiver.begin(name, header.is_copy)
            try:
                return IncomingPartition(self, put, header, base)
            except BaseException:
                self._receiver.end(put)
                raise

    def take(self, put: int, wanted_bytes: int) -> None:
        """See `PartitionReceiver.take`."""
        self._receiver.take(put, wanted_bytes)

    def complete(self, put: int, base: str, index: bytes) -> None:
        """Write the index beside a data file that is complete."""
        with self._lock:
            self._receiver.take(put, 0)
            with open(base + INDEX_SUFFIX + PART_SUFFIX, "wb") as file:
                file.write(index)
            self._receiver.complete(put)

    def end(self, put: int, base: str) -> None:
        """A stream is over: delete its files unless they are complete or not its own any more."""
        with self._lock:
            if self._receiver.end(put):
                delete_part_files(base)


class IncomingPartition:
    """One partition on its way. Used by one thread."""

    def __init__(
        self, intake: PartitionIntake, put: int, header: shuffle_pb2.PutHeader, base: str
    ) -> None:
        """Opens a file of its own: who still writes for an earlier stream writes to no name."""
        self._intake = intake
        self._put = put
        self._header = header
        self._base = base
        self._blocks: list[Block] = []
        self._offset = 0
        os.makedirs(os.path.dirname(base), exist_ok=True)
        delete_part_files(base)
        # Open until `close`.
        self._file = open(base + DATA_SUFFIX + PART_SUFFIX, "xb", buffering=0)  # noqa: SIM115

    def append(
        self, data: pa.Buffer, lengths: Sequence[int], message: shuffle_pb2.PutMessage
    ) -> None:
        """Verify the blocks that lie in `data`, and put them behind those before.

        Raises BadPut, what the receiver refuses with, OSError of the disk.
        """
        name = self._header.partition_name
        columns = (lengths, message.subpartition, message.crc32c, message.rows)
        if any(len(column) != len(lengths) for column in columns) or sum(lengths) != data.size:
            raise BadPut(f"a message of {name} does not describe its {len(lengths)} blocks")
        if lengths and not self._header.schema:
            raise BadPut(f"{name} has blocks but no schema")
        blocks: list[Block] = []
        start = 0
        for length, subpartition, expected, rows in zip(*columns, strict=True):
            if crc32c(data.slice(start, length)) != expected:
                raise BadPut(f"a block of {name} was damaged on its way")
            if subpartition >= self._header.subpartitions:
                raise BadPut(f"a block of {name} is for subpartition {subpartition}")
            blocks.append(Block(subpartition, self._offset + start, length, expected, rows))
            start += length
        self._intake.take(self._put, data.size)
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._blocks += blocks
        self._offset += data.size

    def complete(self) -> shuffle_pb2.PutResult:
        """All blocks are there: write the index. Raises as `append` does."""
        header = self._header
        index = encode_index(
            index_message(header.partition_name, header.schema, header.subpartitions, self._blocks)
        )
        self._file.close()
        self._intake.complete(self._put, self._base, index)
        return shuffle_pb2.PutResult(data_bytes=self._offset, index_crc32c=crc32c(index[:-4]))

    def close(self) -> None:
        """The stream is over; deletes the partition unless it is complete."""
        self._file.close()
        self._intake.end(self._put, self._base)


def delete_part_files(base: str) -> None:
    """Delete the files of a partition that has not been published; absent ones are fine."""
    for suffix in (INDEX_SUFFIX, DATA_SUFFIX):
        with suppress(FileNotFoundError):
            os.unlink(base + suffix + PART_SUFFIX)
