"""A result partition on disk: one data file and one index, whatever the number of consumers.

Both are written under a temporary name and published by rename, the data first and the index last,
so that a partition exists if and only if its index does, whenever the writer is killed. A reader
verifies each block's checksum before it decodes it; whatever is wrong with the files is reported
as a lost partition, never as an I/O error that would be retried against the same files (P34, P38).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO, Self

import pyarrow as pa

from shuffle.arrow_blocks import crc32c, decode_block
from shuffle.errors import PartitionDamaged, PartitionIncomplete, PartitionNotFound
from shuffle.partition_encoder import BLOCK_BYTES_MAX, PartitionEncoder
from shuffle.partition_index import INDEX_BYTES_MAX, Block, Index, PartitionMetrics, decode_index
from shuffle.partition_name import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    PART_SUFFIX,
    PartitionIdentity,
    partition_base,
)


class PartitionWriter(PartitionEncoder):
    """Writes one partition; nothing of it can be seen before `commit` returns.

    A writer that is neither committed nor aborted leaves files of which nothing is ever offered.
    """

    def __init__(
        self,
        shuffle_dir: str,
        identity: PartitionIdentity,
        subpartitions: int,
        *,
        compression: str = "lz4",
        block_bytes_max: int = BLOCK_BYTES_MAX,
        sync: bool = False,
    ) -> None:
        """`block_bytes_max` bounds a block before compression; `sync` survives power loss."""
        super().__init__(
            identity, subpartitions, compression=compression, block_bytes_max=block_bytes_max
        )
        self._sync = sync
        self._base = partition_base(shuffle_dir, identity.name)
        os.makedirs(os.path.dirname(self._base), exist_ok=True)
        # Open until commit or abort, which close it.
        self._file: BinaryIO | None = open(self._base + DATA_SUFFIX + PART_SUFFIX, "wb")  # noqa: SIM115

    def _store(self, data: pa.Buffer, block: Block) -> None:
        self._open_file().write(data)

    def _open_file(self) -> BinaryIO:
        if self._file is None:
            raise PartitionIncomplete(f"the writer of {self.identity.name} was closed before")
        return self._file

    def commit(self) -> PartitionMetrics:
        """Publishes the partition.

        Raises PartitionIncomplete after commit or abort, and OSError of the disk; then nothing was
        published, and `abort` cleans up.
        """
        file = self._open_file()
        data = self._index()
        file.flush()
        if self._sync:
            os.fsync(file.fileno())
        file.close()
        index_part = self._base + INDEX_SUFFIX + PART_SUFFIX
        with open(index_part, "wb") as index_file:
            index_file.write(data)
            if self._sync:
                index_file.flush()
                os.fsync(index_file.fileno())
        os.rename(self._base + DATA_SUFFIX + PART_SUFFIX, self._base + DATA_SUFFIX)
        os.rename(index_part, self._base + INDEX_SUFFIX)
        self._file = None
        if self._sync:
            _sync_directory(os.path.dirname(self._base))
        return self._metrics(data)

    def abort(self) -> None:
        """Deletes what was written, also after a commit. May be called at any time, repeatedly."""
        if self._file is not None:
            self._file.close()
            self._file = None
        delete_partition_files(self._base)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def delete_partition_files(base: str) -> None:
    """Deletes the files of a partition, index first; absent files are fine, other OSErrors pass."""
    # The index goes first: from then on the partition does not exist.
    for suffix in (INDEX_SUFFIX, DATA_SUFFIX):
        for ending in ("", PART_SUFFIX):
            with suppress(FileNotFoundError):
                os.unlink(base + suffix + ending)


def read_index(base: str, name: str) -> Index:
    """The validated index of partition `name`; raises PartitionNotFound or PartitionDamaged."""
    try:
        with open(base + INDEX_SUFFIX, "rb") as file:
            return decode_index(file.read(INDEX_BYTES_MAX), name)
    except FileNotFoundError as error:
        raise PartitionNotFound(name) from error
    except OSError as error:
        raise PartitionDamaged(name, f"its index cannot be read: {error.strerror}") from error


class PartitionFile:
    """A published partition, open for reading by memory map; may be shared between threads.

    Blocks and arrays alias the map, which lives as long as any of them does, even when the files
    are deleted meanwhile.
    """

    def __init__(self, index: Index, data: pa.Buffer) -> None:
        self.index = index
        self._data = data

    @classmethod
    def open(cls, base: str, name: str) -> Self:
        """Opens the partition `name`, whose files are `base` + ".data" and ".index".

        Raises PartitionNotFound when there is no index, PartitionDamaged when the index or the
        size of the data file is wrong or either cannot be read.
        """
        index = read_index(base, name)
        return cls(index, _map_data(base + DATA_SUFFIX, index))

    @property
    def schema(self) -> pa.Schema | None:
        """Schema of all blocks; None when the producer wrote nothing and knew none."""
        return self.index.schema

    def blocks(self, first_subpartition: int, end_subpartition: int) -> list[Block]:
        """The blocks of a range in reading order (`Index.range`)."""
        return self.index.range(first_subpartition, end_subpartition)

    def raw(self, block: Block) -> pa.Buffer:
        """The bytes of a block as they lie in the file, not verified, without copying them."""
        return self._data.slice(block.offset, block.length)

    def read(
        self, first_subpartition: int, end_subpartition: int, start_block: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """The batches of a range in reading order, without the first `start_block` of them.

        Each block is verified before it is decoded. Raises PartitionDamaged.
        """
        for block in self.blocks(first_subpartition, end_subpartition)[start_block:]:
            yield checked_batch(
                self.raw(block), block.crc32c, block.rows, self.index.schema, self.index.name
            )


def checked_batch(
    block: pa.Buffer, expected_crc32c: int, rows: int, schema: pa.Schema | None, name: str
) -> pa.RecordBatch:
    """Verifies a block of partition `name`, then decodes it; raises PartitionDamaged."""
    check_block(block, expected_crc32c, name)
    return decoded_batch(block, rows, schema, name)


def check_block(block: pa.Buffer, expected_crc32c: int, name: str) -> None:
    """Raises PartitionDamaged unless the bytes are those that were written."""
    actual = crc32c(block)
    if actual != expected_crc32c:
        raise PartitionDamaged(name, f"a block's CRC32C is {actual:08x}, not {expected_crc32c:08x}")


def decoded_batch(
    block: pa.Buffer, rows: int, schema: pa.Schema | None, name: str
) -> pa.RecordBatch:
    """Decodes a verified block; raises PartitionDamaged when it is not a batch of `rows` rows."""
    if schema is None:
        raise PartitionDamaged(name, "it has a block but no schema")
    try:
        batch = decode_block(block, schema)
    except (pa.ArrowException, OSError) as error:
        raise PartitionDamaged(name, f"a block cannot be decoded: {error}") from error
    if batch.num_rows != rows:
        raise PartitionDamaged(name, f"a block has {batch.num_rows} rows, not {rows}")
    return batch


def check_data_size(path: str, index: Index) -> None:
    """Raises PartitionDamaged unless the data file is there and as long as its index says."""
    try:
        size = os.stat(path).st_size
    except OSError as error:
        raise _unreadable(index, error) from error
    _check_size(size, index)


def _check_size(size: int, index: Index) -> None:
    if size != index.data_bytes:
        raise PartitionDamaged(
            index.name, f"the data file has {size} bytes, not {index.data_bytes}"
        )


def _unreadable(index: Index, error: OSError) -> PartitionDamaged:
    if isinstance(error, FileNotFoundError):
        return PartitionDamaged(index.name, "its data file is missing")
    return PartitionDamaged(index.name, f"its data file cannot be read: {error.strerror}")


def _map_data(path: str, index: Index) -> pa.Buffer:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            _check_size(size, index)
            if size == 0:
                return pa.py_buffer(b"")
            return pa.py_buffer(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))
    except OSError as error:
        raise _unreadable(index, error) from error
