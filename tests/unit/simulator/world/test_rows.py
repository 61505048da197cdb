"""Modelled rows and partitions."""

from __future__ import annotations

from array import array

import pytest

from holdover.ids import AttemptKey
from holdover.v1.job_pb2 import DistributionKind
from simulator.world.rows import (
    DamagedRows,
    ModelledPartition,
    Rows,
    maker_of,
    maker_subtask,
    stored_partition,
)

HASH = DistributionKind.DISTRIBUTION_KIND_HASH
REBALANCE = DistributionKind.DISTRIBUTION_KIND_REBALANCE


def rows(*ids: int) -> Rows:
    return Rows(array("q", ids))


@pytest.mark.parametrize("kind", [HASH, REBALANCE])
def test_each_row_and_byte_is_in_one_subpartition(kind: int) -> None:
    written = rows(*range(100))
    partition = ModelledPartition.of(written, kind, 7, subtask=3, output_bytes=10_001)
    index, data = partition.encode()
    parts = [stored_partition(index, data).part(i, i + 1) for i in range(7)]
    assert sorted(i for found, _ in parts for i in found.ids) == list(written.ids)
    assert [size for _, size in parts] == partition.subpartition_bytes()
    assert sum(partition.subpartition_bytes()) == partition.data_bytes == 10_001
    assert max(len(found) for found, _ in parts) < 30
    whole, size = stored_partition(index, data).part(0, 7)
    assert (len(whole), size) == (100, 10_001)
    assert stored_partition(index, data).part(2, 4)[0].ids == parts[2][0].ids + parts[3][0].ids


def test_bytes_without_rows_are_spread_evenly() -> None:
    partition = ModelledPartition.of(Rows(), HASH, 3, subtask=0, output_bytes=10)
    assert partition.subpartition_bytes() == [3, 3, 4]
    index, data = partition.encode()
    assert [stored_partition(index, data).part(i, i + 1)[1] for i in range(3)] == [3, 3, 4]
    assert data == b""


def test_who_made_a_row_travels_with_it() -> None:
    maker = maker_of(AttemptKey("j", "v3", 9, 2, 4), 3)
    made = rows(1, 2).made_by(maker)
    mixed = rows(7)
    mixed.extend(made)
    assert list(mixed.makers) == [0, maker, maker]
    index, data = ModelledPartition.of(mixed, HASH, 5, 0, 0).encode()
    found, _ = stored_partition(index, data).part(0, 5)
    assert dict(zip(found.ids, found.makers, strict=True)) == {7: 0, 1: maker, 2: maker}
    assert maker_subtask(maker) == (3, 9)
    assert maker != maker_of(AttemptKey("j", "v3", 9, 3, 4), 3)


def test_an_attempt_without_a_promised_order_has_its_own() -> None:
    assert [list(rows(1, 2, 3).rotated(attempt).ids) for attempt in range(2)] == [
        [1, 2, 3],
        [2, 3, 1],
    ]


@pytest.mark.parametrize("file", [0, 1])
def test_damage_is_found(file: int) -> None:
    contents = list(ModelledPartition.of(rows(1, 2), HASH, 1, 0, 0).encode())
    for damaged in (contents[file][:-8], b"", b"\xff" + contents[file][1:]):
        files = [damaged if i == file else content for i, content in enumerate(contents)]
        with pytest.raises(DamagedRows):
            stored_partition(files[0], files[1])
