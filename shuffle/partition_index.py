"""The index of a partition: which block lies where, and how one knows that it is whole."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from holdover.v1 import shuffle_pb2
from shuffle.arrow_blocks import crc32c
from shuffle.errors import PartitionDamaged

INDEX_MAGIC = b"HLDVPIX1"
_LENGTH = struct.Struct("<I")
#: An index of more bytes than this is taken for damage: some 40 million blocks.
INDEX_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class Block:
    """Where one block lies in the data file (bytes), its checksum, and how many rows it has."""

    subpartition: int
    offset: int
    length: int
    crc32c: int
    rows: int


@dataclass(frozen=True, slots=True)
class PartitionMetrics:
    """What a finished partition holds; the tuples have one entry for each subpartition."""

    subpartition_bytes: tuple[int, ...]
    subpartition_rows: tuple[int, ...]
    data_bytes: int
    #: CRC32C of the index, which holds a CRC32C of every block: it stands for the whole content.
    index_crc32c: int

    @property
    def rows(self) -> int:
        """Rows in all subpartitions."""
        return sum(self.subpartition_rows)


@dataclass(frozen=True, slots=True)
class Index:
    """A validated index: blocks lie one after another and fill the data file."""

    name: str
    #: None when the producer wrote no batch and knew no schema.
    schema: pa.Schema | None
    schema_bytes: bytes
    subpartitions: int
    blocks: tuple[Block, ...]
    data_bytes: int
    metrics: PartitionMetrics

    def range(self, first_subpartition: int, end_subpartition: int) -> list[Block]:
        """The blocks of subpartitions `first <= s < end`, by subpartition, then in writing order.

        Raises ValueError when the range is not within the partition's subpartitions.
        """
        if not 0 <= first_subpartition <= end_subpartition <= self.subpartitions:
            raise ValueError(
                f"subpartitions {first_subpartition}..{end_subpartition} of {self.name} "
                f"are not within 0..{self.subpartitions}"
            )
        chosen = [b for b in self.blocks if first_subpartition <= b.subpartition < end_subpartition]
        chosen.sort(key=lambda block: block.subpartition)
        return chosen


def index_message(
    name: str, schema: bytes, subpartitions: int, blocks: Sequence[Block]
) -> shuffle_pb2.PartitionIndex:
    """The index of partition `name` with these blocks in file order; `schema` is serialized."""
    return shuffle_pb2.PartitionIndex(
        partition_name=name,
        schema=schema,
        subpartitions=subpartitions,
        blocks=shuffle_pb2.BlockTable(
            subpartition=[block.subpartition for block in blocks],
            offset=[block.offset for block in blocks],
            length=[block.length for block in blocks],
            crc32c=[block.crc32c for block in blocks],
            rows=[block.rows for block in blocks],
        ),
        data_bytes=sum(block.length for block in blocks),
        rows=sum(block.rows for block in blocks),
    )


def encode_index(message: shuffle_pb2.PartitionIndex) -> bytes:
    """The bytes of an index file."""
    body = message.SerializeToString(deterministic=True)
    head = INDEX_MAGIC + _LENGTH.pack(len(body)) + body
    return head + _LENGTH.pack(crc32c(head))


def decode_index(data: bytes, name: str) -> Index:
    """The index in `data`, which must be the one of partition `name`.

    Raises PartitionDamaged for anything that `encode_index` would not have written.
    """
    fixed = len(INDEX_MAGIC) + 2 * _LENGTH.size
    if len(data) < fixed or not data.startswith(INDEX_MAGIC):
        raise PartitionDamaged(name, "the index is no index")
    (length,) = _LENGTH.unpack_from(data, len(INDEX_MAGIC))
    if len(data) != fixed + length:
        raise PartitionDamaged(name, f"the index has {len(data)} bytes, not {fixed + length}")
    (expected,) = _LENGTH.unpack_from(data, len(data) - _LENGTH.size)
    actual = crc32c(data[: -_LENGTH.size])
    if actual != expected:
        raise PartitionDamaged(name, f"the index's CRC32C is {actual:08x}, not {expected:08x}")
    try:
        message = shuffle_pb2.PartitionIndex.FromString(data[len(INDEX_MAGIC) + 4 : -4])
        schema = schema_from_bytes(message.schema)
    except (DecodeError, pa.ArrowException, OSError) as error:
        raise PartitionDamaged(name, f"the index cannot be decoded: {error}") from error
    if message.partition_name != name:
        raise PartitionDamaged(name, f"the index is that of {message.partition_name}")
    blocks = _blocks(message, name)
    return Index(
        name=name,
        schema=schema,
        schema_bytes=message.schema,
        subpartitions=message.subpartitions,
        blocks=blocks,
        data_bytes=message.data_bytes,
        metrics=metrics_of(blocks, message.subpartitions, message.data_bytes, actual),
    )


def _blocks(message: shuffle_pb2.PartitionIndex, name: str) -> tuple[Block, ...]:
    table = message.blocks
    columns = (table.subpartition, table.offset, table.length, table.crc32c, table.rows)
    if len({len(column) for column in columns}) != 1:
        raise PartitionDamaged(name, "the index's block columns have different lengths")
    blocks = tuple(Block(*row) for row in zip(*columns, strict=True))
    offset = 0
    for block in blocks:
        if block.offset != offset or block.subpartition >= message.subpartitions:
            raise PartitionDamaged(name, f"the index's block at offset {block.offset} is misplaced")
        offset += block.length
    if offset != message.data_bytes or sum(block.rows for block in blocks) != message.rows:
        raise PartitionDamaged(name, "the index's totals are not those of its blocks")
    if blocks and not message.schema:
        raise PartitionDamaged(name, "the index has blocks but no schema")
    return blocks


def schema_from_bytes(data: bytes) -> pa.Schema | None:
    """The schema of an encapsulated IPC message; None for no bytes."""
    return pa.ipc.read_schema(pa.py_buffer(data)) if data else None


def metrics_of(
    blocks: Sequence[Block], subpartitions: int, data_bytes: int, index_crc32c: int
) -> PartitionMetrics:
    """Bytes and rows for each subpartition, from the blocks."""
    bytes_by = np.zeros(subpartitions, dtype=np.int64)
    rows_by = np.zeros(subpartitions, dtype=np.int64)
    for block in blocks:
        bytes_by[block.subpartition] += block.length
        rows_by[block.subpartition] += block.rows
    return PartitionMetrics(
        tuple(bytes_by.tolist()), tuple(rows_by.tolist()), data_bytes, index_crc32c
    )
