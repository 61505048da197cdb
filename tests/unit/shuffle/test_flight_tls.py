"""Partitions over mutual TLS: who gets them, and what a replaced certificate does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

from holdover.cli.certificate_authority import LOCAL_HOSTS, Authority
from holdover.runtime import PartitionServer
from holdover.runtime.transport_security import CredentialFiles
from shuffle.environment import FetchLimits, InputReader, PartitionSource
from shuffle.errors import OutputRefused
from shuffle.flight import FetchInterrupted, FlightPartitionClient
from shuffle.flight_result_target import ShuffleServiceTarget
from shuffle.flight_servers import FlightPartitionServers
from shuffle.partition_name import DATA_SUFFIX, partition_base
from tests.doubles.certificates import authority, files_in, install, node
from tests.unit.shuffle.conftest import IDENTITY, WritePartition
from tests.unit.shuffle.shuffle_service_harness import ServiceWorld, attempt, put
from tests.unit.shuffle.shuffle_service_harness import identity as service_identity

NAME = IDENTITY.name
ROWS = 1_000_000


@pytest.fixture
def issuer() -> Authority:
    return authority()


@pytest.fixture
async def files(issuer: Authority, tmp_path: Path) -> CredentialFiles:
    return await asyncio.to_thread(files_in, node(tmp_path / "server", issuer))


@pytest.fixture
async def server(
    files: CredentialFiles, shuffle_dir: str, write_partition: WritePartition
) -> AsyncIterator[PartitionServer]:
    numbers = pa.record_batch({"n": pa.array(range(ROWS), pa.int64())})
    await asyncio.to_thread(
        write_partition, [(0, numbers)], block_bytes_max=50_000, compression="none"
    )
    server = await FlightPartitionServers(files).start(
        "127.0.0.1", 0, lambda name: partition_base(shuffle_dir, name) + DATA_SUFFIX
    )
    yield server
    await server.stop()


def refusal(server: PartitionServer, files: CredentialFiles | None) -> str:
    with FlightPartitionClient(f"127.0.0.1:{server.port}", files=files) as client:
        with pytest.raises(FetchInterrupted) as raised:
            client.fetch(NAME, 0, 1)
    return str(raised.value)


def fetched(server: PartitionServer, files: CredentialFiles) -> int:
    """Rows that a task reads from the server."""
    with InputReader(
        [PartitionSource(NAME, f"127.0.0.1:{server.port}")],
        0,
        1,
        shuffle_dir="/nowhere",
        local_address="elsewhere:1",
        limits=FetchLimits(retry_timeout_s=10.0, ahead_bytes_max=100_000),
        credentials=files,
    ) as reader:
        return sum(batch.num_rows for batch in reader)


async def test_a_task_of_the_cluster_gets_what_it_asks_for(
    server: PartitionServer, tmp_path: Path
) -> None:
    files = await asyncio.to_thread(files_in, tmp_path / "server", watched=False)
    assert await asyncio.to_thread(fetched, server, files) == ROWS


async def test_who_does_not_speak_tls_gets_nothing(server: PartitionServer) -> None:
    assert "failed to connect" in await asyncio.to_thread(refusal, server, None)


async def test_who_has_a_strangers_certificate_gets_nothing(
    server: PartitionServer, issuer: Authority, tmp_path: Path
) -> None:
    other = authority("another")
    install(tmp_path / "client", other.issue("client", LOCAL_HOSTS), issuer, other)
    stranger = await asyncio.to_thread(files_in, tmp_path / "client")
    assert "failed to connect" in await asyncio.to_thread(refusal, server, stranger)


async def test_a_server_of_another_authority_is_not_read_from(
    server: PartitionServer, tmp_path: Path
) -> None:
    other = await asyncio.to_thread(files_in, node(tmp_path / "client", authority("another")))
    assert "certificate verify failed" in await asyncio.to_thread(refusal, server, other)


async def test_a_server_must_have_the_expected_name(
    server: PartitionServer, tmp_path: Path
) -> None:
    def with_name(name: str) -> CredentialFiles:
        return files_in(tmp_path / "server", name)

    wrong = await asyncio.to_thread(with_name, "tm.example")
    assert "is not in peer certificate" in await asyncio.to_thread(refusal, server, wrong)
    right = await asyncio.to_thread(with_name, "localhost")
    assert await asyncio.to_thread(fetched, server, right) == ROWS


async def test_replaced_certificates_are_served_at_the_same_port_and_streams_go_on(
    server: PartitionServer, files: CredentialFiles, tmp_path: Path
) -> None:
    """A stream that it cuts is continued by its reader, which knows the new files too (P41)."""
    readers_files = await asyncio.to_thread(files_in, tmp_path / "server", watched=False)
    port = server.port
    reader = InputReader(
        [PartitionSource(NAME, f"127.0.0.1:{port}")],
        0,
        1,
        shuffle_dir="/nowhere",
        local_address="elsewhere:1",
        limits=FetchLimits(retry_timeout_s=20.0, ahead_bytes_max=100_000),
        credentials=readers_files,
    )
    batches = iter(reader)
    rows = (await asyncio.to_thread(next, batches)).num_rows
    successor = authority("successor")
    node(tmp_path / "server", successor)
    await asyncio.to_thread(files.refresh)
    newcomer = await asyncio.to_thread(files_in, node(tmp_path / "newcomer", successor))
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(_is_let_in, server, newcomer):
            await asyncio.sleep(0.1)
    assert server.port == port
    rows += await asyncio.to_thread(lambda: sum(batch.num_rows for batch in batches))
    await asyncio.to_thread(reader.close)
    assert rows == ROWS


def _is_let_in(server: PartitionServer, files: CredentialFiles) -> bool:
    with FlightPartitionClient(f"127.0.0.1:{server.port}", files=files) as client:
        try:
            client.fetch(NAME, 0, 0).cancel()
        except FetchInterrupted:
            return False
    return True


async def test_output_is_put_over_tls_by_a_task_of_the_cluster_and_by_nobody_else(
    files: CredentialFiles, tmp_path: Path
) -> None:
    world = ServiceWorld(tmp_path / "service", files)
    await world.start()
    task = await asyncio.to_thread(files_in, tmp_path / "server", watched=False)

    def finish() -> None:
        with ShuffleServiceTarget(world.address, files=task) as target:
            target.publish(put(target, attempt()))

    await asyncio.to_thread(finish)
    assert world.service.finished.path_of(service_identity(attempt()).name)
    with pytest.raises(OutputRefused, match="does not answer"):
        await world.put(attempt(1))
    await world.stop()
