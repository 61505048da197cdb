"""Partitions to play with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from shuffle.partition_file import PartitionWriter
from shuffle.partition_index import PartitionMetrics
from shuffle.partition_name import PartitionIdentity

IDENTITY = PartitionIdentity("job", "map", 0, 3, 0, 1)

#: Writes a partition of some batches, each for a subpartition, and returns its metrics.
WritePartition = Callable[..., PartitionMetrics]


@pytest.fixture
def shuffle_dir(tmp_path: Path) -> str:
    return str(tmp_path / "shuffle")


@pytest.fixture
def write_partition(shuffle_dir: str) -> WritePartition:
    def write(
        pieces: list[tuple[int, pa.RecordBatch]],
        *,
        identity: PartitionIdentity = IDENTITY,
        subpartitions: int = 2,
        compression: str = "lz4",
        block_bytes_max: int = 1 << 20,
    ) -> PartitionMetrics:
        writer = PartitionWriter(
            shuffle_dir,
            identity,
            subpartitions,
            compression=compression,
            block_bytes_max=block_bytes_max,
        )
        for subpartition, batch in pieces:
            writer.write(subpartition, batch)
        return writer.commit()

    return write
