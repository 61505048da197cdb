"""All that is clearly lost is named at once, and nothing that merely does not answer."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pyarrow as pa

from shuffle.environment import PartitionSource
from shuffle.flight_servers import FlightPartitionServers
from shuffle.partition_file import PartitionWriter
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX, partition_base
from shuffle.survey import lost_partitions
from tests.unit.shuffle.conftest import IDENTITY

NAMES = [replace(IDENTITY, subtask=subtask).name for subtask in range(4)]


def write_with_losses(shuffle_dir: str) -> list[str]:
    """Four partitions: one without data, one cut, one without index; the names of those three."""
    for subtask in range(4):
        writer = PartitionWriter(shuffle_dir, replace(IDENTITY, subtask=subtask), 1)
        writer.write(0, pa.record_batch({"n": list(range(100))}))
        writer.commit()
    bases = [partition_base(shuffle_dir, name) for name in NAMES]
    os.unlink(bases[0] + DATA_SUFFIX)
    os.truncate(bases[2] + DATA_SUFFIX, os.path.getsize(bases[2] + DATA_SUFFIX) // 2)
    os.unlink(bases[3] + INDEX_SUFFIX)
    return [NAMES[0], NAMES[2], NAMES[3]]


def survey(shuffle_dir: str, address: str) -> list[str]:
    sources = [PartitionSource(name, address) for name in NAMES]
    return lost_partitions(sources, shuffle_dir=shuffle_dir, local_address="here:1")


def test_lost_partitions_of_the_own_disk_are_named(shuffle_dir: str) -> None:
    """P34: missing, cut and unknown."""
    assert write_with_losses(shuffle_dir) == survey(shuffle_dir, "here:1")


async def test_lost_partitions_of_another_holder_are_named(shuffle_dir: str) -> None:
    """The holder tells, without sending rows."""
    lost = await asyncio.to_thread(write_with_losses, shuffle_dir)
    server = await FlightPartitionServers().start(
        "127.0.0.1", 0, lambda name: partition_base(shuffle_dir, name)
    )
    address = f"127.0.0.1:{server.port}"
    assert await asyncio.to_thread(survey, shuffle_dir, address) == lost
    await server.stop()
    assert await asyncio.to_thread(survey, shuffle_dir, address) == []
