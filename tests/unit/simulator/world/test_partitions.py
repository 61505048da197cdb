"""What a holder finds of partitions that it is asked for together."""

from __future__ import annotations

import errno
from array import array

import pytest

from holdover.v1.job_pb2 import DistributionKind
from simulator.world.medium import finish
from simulator.world.partitions import FoundPartitions, partitions_on
from simulator.world.rows import ModelledPartition, Rows, stored_partition
from simulator.world.storage import SimulatedStorage

HASH = DistributionKind.DISTRIBUTION_KIND_HASH
SUBPARTITIONS = 7
#: Rows of each partition: some have none.
SIZES = (3, 0, 1, 40, 0)
BASES = tuple(f"/{place}" for place in range(len(SIZES)))


def files(place: int) -> tuple[bytes, bytes]:
    """Index and data of one partition."""
    rows = Rows(array("q", [1000 * place + row for row in range(SIZES[place])]))
    return ModelledPartition.of(rows, HASH, SUBPARTITIONS, 0, 1_000 + place).encode()


@pytest.fixture
def storage() -> SimulatedStorage:
    storage = SimulatedStorage()
    for place, base in enumerate(BASES):
        for suffix, content in zip((".index", ".data"), files(place), strict=True):
            finish(storage.publish_steps(base + suffix, content))
    return storage


def ids(found: FoundPartitions) -> dict[int, list[int]]:
    return {place: list(rows.ids) for place, rows in found.rows.items()}


def test_together_they_are_what_each_is_by_itself(storage: SimulatedStorage) -> None:
    for first in range(SUBPARTITIONS):
        for end in range(first + 1, SUBPARTITIONS + 1):
            parts = [stored_partition(*files(place)).part(first, end) for place in range(5)]
            found = partitions_on(storage, BASES, first, end)
            assert ids(found) == {n: list(rows.ids) for n, (rows, _) in enumerate(parts) if rows}
            assert (found.bytes, found.lost) == (sum(size for _, size in parts), {})


def test_what_happens_to_one_after_it_was_found_is_seen(storage: SimulatedStorage) -> None:
    def lost(*bases: str | None) -> dict[int, str]:
        return partitions_on(storage, bases or BASES, 0, SUBPARTITIONS).lost

    none = "no finished partition of this name"
    assert lost() == {}
    finish(storage.remove_steps("/2.data"))
    assert lost() == {2: none}
    storage.overwrite("/3.data", b"damaged!")
    assert lost() == {2: none, 3: "the data is not what the index describes"}
    assert lost("/0", None, "/9", "/1") == {1: none, 2: none}
    fault = storage.faults.fail("read", errno.EIO, "/0.index", times=None)
    assert list(lost()) == [0, 2, 3]
    storage.faults.heal(fault)
    assert list(lost()) == [2, 3]
