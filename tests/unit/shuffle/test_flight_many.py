"""Many partitions by one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from shuffle.errors import PartitionDamaged, PartitionNotFound
from shuffle.flight import (
    PARTITIONS_MAX,
    FetchInterrupted,
    FlightPartitionClient,
    FlightPartitionServer,
)
from shuffle.partition_file import decoded_batch
from shuffle.partition_name import DATA_SUFFIX, partition_base
from tests.unit.shuffle.conftest import IDENTITY, WritePartition

IDENTITIES = [replace(IDENTITY, subtask=subtask) for subtask in range(5)]
NAMES = [identity.name for identity in IDENTITIES]


def numbers(first: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + rows), pa.int64())})


@pytest.fixture
async def server(
    shuffle_dir: str, write_partition: WritePartition
) -> AsyncIterator[FlightPartitionServer]:
    """Serves partitions of two subpartitions; the third of them is empty."""
    for number, identity in enumerate(IDENTITIES):
        pieces = [(half, numbers(100 * number + 10 * half, 10)) for half in range(2)]
        await asyncio.to_thread(write_partition, [] if number == 2 else pieces, identity=identity)
    server = FlightPartitionServer(
        "127.0.0.1", 0, lambda name: partition_base(shuffle_dir, name) + DATA_SUFFIX
    )
    yield server
    await server.stop()


def fetched(
    server: FlightPartitionServer, names: list[str], into: dict[str, list[int]]
) -> dict[str, list[int]]:
    """Values of the second subpartitions by partition."""
    with FlightPartitionClient(f"127.0.0.1:{server.port}") as client:
        for stream in client.fetch_many(names, 1, 2):
            values = into.setdefault(stream.name, [])
            for block in stream:
                batch = decoded_batch(block.data, block.rows, stream.schema, stream.name)
                values += batch.column(0).to_pylist()
    return into


async def test_all_arrive_in_the_order_asked_for(server: FlightPartitionServer) -> None:
    found = await asyncio.to_thread(fetched, server, NAMES[::-1], {})
    assert list(found) == NAMES[::-1]
    expected = {
        name: [] if number == 2 else list(range(100 * number + 10, 100 * number + 20))
        for number, name in enumerate(NAMES)
    }
    assert found == expected


async def test_the_first_that_is_lost_is_named_and_those_before_are_there(
    server: FlightPartitionServer, shuffle_dir: str
) -> None:
    absent = replace(IDENTITY, subtask=9).name
    into: dict[str, list[int]] = {}
    with pytest.raises(PartitionNotFound) as lost:
        await asyncio.to_thread(fetched, server, [NAMES[0], absent, NAMES[1]], into)
    assert lost.value.name == absent
    assert into == {NAMES[0]: list(range(10, 20))}


async def test_damage_names_its_partition(server: FlightPartitionServer, shuffle_dir: str) -> None:
    """P38"""
    path = Path(partition_base(shuffle_dir, NAMES[1]) + DATA_SUFFIX)
    data = bytearray(path.read_bytes())
    data[-64] ^= 1
    path.write_bytes(data)
    with pytest.raises(PartitionDamaged) as damaged:
        await asyncio.to_thread(fetched, server, NAMES, {})
    assert damaged.value.name == NAMES[1]


async def test_a_reader_that_skips_blocks_is_told(server: FlightPartitionServer) -> None:
    def skip() -> None:
        with FlightPartitionClient(f"127.0.0.1:{server.port}") as client:
            for _ in client.fetch_many(NAMES, 0, 2):
                pass

    with pytest.raises(FetchInterrupted, match="before the header"):
        await asyncio.to_thread(skip)


async def test_their_number_is_bounded_and_the_range_is_checked(
    server: FlightPartitionServer,
) -> None:
    def fetch(names: list[str], end: int) -> None:
        with FlightPartitionClient(f"127.0.0.1:{server.port}") as client:
            list(client.fetch_many(names, 0, end))

    with pytest.raises(ValueError, match=f"must be 2..{PARTITIONS_MAX}"):
        await asyncio.to_thread(fetch, NAMES * PARTITIONS_MAX, 1)
    with pytest.raises(ValueError, match="are not within"):
        await asyncio.to_thread(fetch, NAMES, 7)
