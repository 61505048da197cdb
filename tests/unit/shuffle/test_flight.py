"""Partitions over Flight: exactly what the file holds, or a clear word about why not."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from holdover.runtime.errors import AddressInUse, AddressUnavailable
from shuffle.errors import PartitionDamaged, PartitionNotFound
from shuffle.flight import (
    FetchInterrupted,
    FlightPartitionClient,
    FlightPartitionServer,
)
from shuffle.flight_servers import FlightPartitionServers
from shuffle.partition_file import decoded_batch
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX, partition_base
from tests.unit.shuffle.conftest import IDENTITY, WritePartition

NAME = IDENTITY.name


def numbers(first: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + rows), pa.int64())})


@pytest.fixture
async def server(shuffle_dir: str) -> AsyncIterator[FlightPartitionServer]:
    def lookup(name: str) -> str | None:
        return partition_base(shuffle_dir, name) + DATA_SUFFIX if name == NAME else None

    server = FlightPartitionServer("127.0.0.1", 0, lookup)
    yield server
    await server.stop()


def fetched(server: FlightPartitionServer, first: int, end: int, start_block: int = 0) -> list[int]:
    with FlightPartitionClient(f"127.0.0.1:{server.port}") as client:
        stream = client.fetch(NAME, first, end, start_block)
        values: list[int] = []
        for block in stream:
            batch = decoded_batch(block.data, block.rows, stream.schema, NAME)
            values += batch.column(0).to_pylist()
        return values


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
async def test_a_range_arrives_in_reading_order(
    server: FlightPartitionServer, write_partition: WritePartition, compression: str
) -> None:
    pieces = [(1, numbers(0, 5)), (0, numbers(5, 5)), (1, numbers(10, 5))]
    await asyncio.to_thread(write_partition, pieces, compression=compression)
    both = await asyncio.to_thread(fetched, server, 0, 2)
    assert both == [*range(5, 10), *range(5), *range(10, 15)]
    assert await asyncio.to_thread(fetched, server, 1, 2) == [*range(5), *range(10, 15)]
    assert await asyncio.to_thread(fetched, server, 0, 2, 2) == [*range(10, 15)]
    assert await asyncio.to_thread(fetched, server, 0, 2, 3) == []


async def test_many_blocks_travel_in_few_messages_and_large_ones_alone(
    server: FlightPartitionServer, write_partition: WritePartition
) -> None:
    await asyncio.to_thread(
        write_partition, [(0, numbers(0, 400_000))], block_bytes_max=5_000, compression="none"
    )
    assert await asyncio.to_thread(fetched, server, 0, 1) == list(range(400_000))
    await asyncio.to_thread(
        write_partition, [(0, numbers(0, 800_000))], block_bytes_max=1 << 30, compression="none"
    )
    assert await asyncio.to_thread(fetched, server, 0, 1) == list(range(800_000))


async def test_an_empty_range_still_brings_the_schema(
    server: FlightPartitionServer, write_partition: WritePartition
) -> None:
    await asyncio.to_thread(write_partition, [(0, numbers(0, 1))])

    def schema() -> pa.Schema | None:
        with FlightPartitionClient(f"127.0.0.1:{server.port}") as client:
            stream = client.fetch(NAME, 1, 2)
            assert list(stream) == []
            return stream.schema

    assert await asyncio.to_thread(schema) == numbers(0, 1).schema


async def test_an_unknown_partition_is_not_found(server: FlightPartitionServer) -> None:
    """P41: the owner's clear word."""
    with FlightPartitionClient(f"127.0.0.1:{server.port}") as client:
        with pytest.raises(PartitionNotFound, match="job/other-0-0-0-1 is lost: no finished"):
            await asyncio.to_thread(client.fetch, "job/other-0-0-0-1", 0, 1)
        with pytest.raises(PartitionNotFound, match=NAME):
            await asyncio.to_thread(client.fetch, NAME, 0, 1)


async def test_a_cut_file_is_damage(
    server: FlightPartitionServer, shuffle_dir: str, write_partition: WritePartition
) -> None:
    """P34."""
    await asyncio.to_thread(write_partition, [(0, numbers(0, 5))])
    path = Path(partition_base(shuffle_dir, NAME) + DATA_SUFFIX)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(PartitionDamaged, match="has 100 bytes, not"):
        await asyncio.to_thread(fetched, server, 0, 1)
    os.unlink(path)
    with pytest.raises(PartitionDamaged, match="is missing"):
        await asyncio.to_thread(fetched, server, 0, 1)


@pytest.mark.parametrize("suffix", [DATA_SUFFIX, INDEX_SUFFIX])
async def test_a_flipped_byte_is_damage(
    server: FlightPartitionServer, shuffle_dir: str, write_partition: WritePartition, suffix: str
) -> None:
    """P38: found by the consumer, before it decodes."""
    await asyncio.to_thread(write_partition, [(0, numbers(0, 5))])
    path = Path(partition_base(shuffle_dir, NAME) + suffix)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with pytest.raises(PartitionDamaged, match=f"{NAME} is lost: .*CRC32C"):
        await asyncio.to_thread(fetched, server, 0, 1)


async def test_a_wrong_request_is_refused(
    server: FlightPartitionServer, write_partition: WritePartition
) -> None:
    await asyncio.to_thread(write_partition, [(0, numbers(0, 5))])
    with FlightPartitionClient(f"127.0.0.1:{server.port}") as client:
        with pytest.raises(ValueError, match=r"subpartitions 0\.\.9"):
            await asyncio.to_thread(client.fetch, NAME, 0, 9)
    with (
        flight.FlightClient(f"grpc+tcp://127.0.0.1:{server.port}") as raw,
        pytest.raises(pa.ArrowInvalid, match="bad fetch ticket"),
    ):
        await asyncio.to_thread(lambda: raw.do_get(flight.Ticket(b"\xff\xff")).schema)


async def test_nobody_listening_is_an_interruption_not_a_loss() -> None:
    """P41."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with FlightPartitionClient(address) as client, pytest.raises(FetchInterrupted):
        await asyncio.to_thread(client.fetch, NAME, 0, 1)


async def test_a_server_that_never_answers_is_an_interruption() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with FlightPartitionClient(address, call_timeout_s=0.3) as client:
            with pytest.raises(FetchInterrupted):
                await asyncio.to_thread(client.fetch, NAME, 0, 1)


async def test_a_taken_port_is_named(server: FlightPartitionServer) -> None:
    with pytest.raises(AddressInUse, match=f"127.0.0.1:{server.port}"):
        await FlightPartitionServers().start("127.0.0.1", server.port, lambda _: None)


async def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(AddressUnavailable, match=r"192\.0\.2\.1"):
        await FlightPartitionServers().start("192.0.2.1", 0, lambda _: None)


async def test_a_stop_frees_the_port_and_leaves_no_thread_that_keeps_the_process() -> None:
    before = set(threading.enumerate())
    server = await FlightPartitionServers().start("127.0.0.1", 0, lambda _: None)
    await server.stop()
    await server.stop()
    again = await FlightPartitionServers().start("127.0.0.1", server.port, lambda _: None)
    assert again.port == server.port
    await again.stop()
    left = [t for t in threading.enumerate() if t not in before and not t.daemon]
    assert [t.name for t in left if not t.name.startswith("asyncio_")] == []


async def test_a_stop_does_not_wait_for_a_client_that_reads_nothing(
    server: FlightPartitionServer, write_partition: WritePartition
) -> None:
    await asyncio.to_thread(write_partition, [(0, numbers(0, 4_000_000))], compression="none")
    with FlightPartitionClient(f"127.0.0.1:{server.port}") as client:
        stream = await asyncio.to_thread(client.fetch, NAME, 0, 1)
        async with asyncio.timeout(8):
            await server.stop()
        with pytest.raises(FetchInterrupted):
            await asyncio.to_thread(lambda: list(stream))
