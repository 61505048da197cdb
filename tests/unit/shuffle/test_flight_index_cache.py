"""Remembered indexes are those of the files that are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from shuffle.errors import PartitionDamaged, PartitionNotFound
from shuffle.flight_index_cache import IndexCache
from shuffle.partition_name import INDEX_SUFFIX, partition_base
from tests.unit.shuffle.conftest import IDENTITY, WritePartition

NAME = IDENTITY.name


def numbers(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(rows), pa.int64())})


def test_an_index_is_decoded_once_until_the_file_is_another(
    shuffle_dir: str, write_partition: WritePartition
) -> None:
    cache, base = IndexCache(100), partition_base(shuffle_dir, NAME)
    write_partition([(0, numbers(3))])
    first = cache.read(base, NAME)
    assert cache.read(base, NAME) is first
    write_partition([(0, numbers(4))])
    assert cache.read(base, NAME).metrics.rows == 4


def test_what_is_gone_or_damaged_meanwhile_is_found_so(
    shuffle_dir: str, write_partition: WritePartition
) -> None:
    """P34, P38."""
    cache, base = IndexCache(100), partition_base(shuffle_dir, NAME)
    write_partition([(0, numbers(3))])
    cache.read(base, NAME)
    path = Path(base + INDEX_SUFFIX)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PartitionDamaged):
        cache.read(base, NAME)
    path.unlink()
    with pytest.raises(PartitionNotFound):
        cache.read(base, NAME)


def test_the_longest_unused_are_forgotten(
    shuffle_dir: str, write_partition: WritePartition
) -> None:
    """Three blocks fit; each partition has one."""
    cache = IndexCache(3)
    names = [replace(IDENTITY, subtask=subtask).name for subtask in range(4)]
    for subtask in range(4):
        write_partition([(0, numbers(3))], identity=replace(IDENTITY, subtask=subtask))
    read = [cache.read(partition_base(shuffle_dir, name), name) for name in names[:3]]
    cache.read(partition_base(shuffle_dir, names[0]), names[0])
    cache.read(partition_base(shuffle_dir, names[3]), names[3])
    assert len(cache) == 3
    again = [cache.read(partition_base(shuffle_dir, name), name) for name in names[:2]]
    assert [index is before for index, before in zip(again, read, strict=False)] == [True, False]
