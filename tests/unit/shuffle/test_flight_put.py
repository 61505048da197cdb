"""Output of tasks over Flight: all of an attempt is served, or nothing, and never two mixed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from shuffle.errors import OutputRefused, PartitionNotFound, ShuffleError
from shuffle.finished_record import record_name
from shuffle.flight_result_target import ShuffleServiceTarget
from shuffle.flight_servers import FlightPartitionServers
from tests.unit.shuffle.conftest import WritePartition
from tests.unit.shuffle.shuffle_service_harness import (
    ServiceWorld,
    attempt,
    execution,
    identity,
    numbers,
    put,
)

KEY = attempt()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServiceWorld]:
    world = ServiceWorld(tmp_path / "shuffle")
    await world.start()
    yield world
    await world.stop()


@pytest.fixture
def target(world: ServiceWorld) -> ShuffleServiceTarget:
    return ShuffleServiceTarget(world.address, retry_timeout_s=60)


async def test_what_is_put_is_served_once_its_attempt_is_published(world: ServiceWorld) -> None:
    finished = await world.put(KEY)
    with pytest.raises(PartitionNotFound):
        await world.fetched(KEY)
    assert await world.publish(finished) == finished
    assert await world.fetched(KEY) == list(range(10))
    name = identity(KEY).name
    assert world.files() == sorted([f"{name}.data", f"{name}.index", record_name(KEY)])


async def test_files_are_those_that_a_task_writes_to_its_own_disk(
    world: ServiceWorld, write_partition: WritePartition, shuffle_dir: str
) -> None:
    pieces = [(half, numbers(half * 5, 5)) for half in range(2)]
    metrics = await asyncio.to_thread(write_partition, pieces, identity=identity(KEY))
    base = Path(shuffle_dir) / identity(KEY).name
    local = [base.with_name(base.name + end).read_bytes() for end in (".data", ".index")]
    finished = await world.put(KEY)
    assert finished == execution(KEY, metrics)
    await world.publish(finished)
    assert [base.with_name(base.name + end).read_bytes() for end in (".data", ".index")] == local


async def test_many_messages_arrive_in_order(
    world: ServiceWorld, target: ShuffleServiceTarget
) -> None:
    finished = await asyncio.to_thread(put, target, KEY, 2_000_000)
    await world.publish(finished)
    assert await world.fetched(KEY) == list(range(2_000_000))


async def test_a_partition_without_rows_or_schema_is_a_partition(
    world: ServiceWorld, target: ShuffleServiceTarget
) -> None:
    metrics = await asyncio.to_thread(lambda: target.open(identity(KEY), 2).commit())
    await world.publish(execution(KEY, metrics))
    assert await world.fetched(KEY) == []


async def test_publishing_again_changes_nothing(world: ServiceWorld) -> None:
    finished = await world.put(KEY)
    answers = await asyncio.gather(*(world.publish(finished) for _ in range(3)))
    assert answers == [finished] * 3
    assert len(world.service.finished.inventory()) == 1


async def test_a_put_of_a_published_attempt_is_refused_and_harms_nothing(
    world: ServiceWorld,
) -> None:
    await world.finish(KEY)
    with pytest.raises(OutputRefused, match="published already"):
        await world.put(KEY)
    assert await world.fetched(KEY) == list(range(10))


async def test_a_stream_that_breaks_off_leaves_nothing(
    world: ServiceWorld, target: ShuffleServiceTarget
) -> None:
    writer = target.open(identity(KEY), 2, compression="none")
    for _ in range(3):  # more than one message, so that some of it is on the disk
        await asyncio.to_thread(writer.write, 0, pa.record_batch({"b": pa.array([bytes(1 << 21)])}))
    await asyncio.to_thread(writer.abort)
    assert world.files() == []
    assert world.service.header().shuffle.held_bytes == 0


async def test_a_put_whose_connection_breaks_is_refused_and_leaves_nothing(
    world: ServiceWorld,
) -> None:
    """P41: its attempt has failed by no fault of its own; the next one is taken."""
    links: list[asyncio.StreamWriter] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", world.server.port)
        links.extend((writer, far_writer))
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

    async with await asyncio.start_server(forward, "127.0.0.1", 0) as between:
        port = between.sockets[0].getsockname()[1]
        with ShuffleServiceTarget(f"127.0.0.1:{port}", retry_timeout_s=60) as target:
            writer = target.open(identity(KEY), 2, compression="none")
            blob = pa.record_batch({"b": pa.array([bytes(1 << 21)])})
            for _ in range(3):  # more than one message, so that some of it is on its way
                await asyncio.to_thread(writer.write, 0, blob)
            for link in links:
                link.transport.abort()
            with pytest.raises(OutputRefused, match="does not answer"):
                await asyncio.to_thread(writer.commit)
            async with asyncio.timeout(30):
                while world.files():  # the service has heard of it
                    await asyncio.sleep(0.01)
    again = attempt(number=1)
    await world.finish(again)
    assert await world.fetched(again) == list(range(10))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


async def test_two_attempts_of_a_subtask_do_not_meet(
    world: ServiceWorld, target: ShuffleServiceTarget
) -> None:
    first, second = attempt(number=0), attempt(number=1)
    early = await asyncio.to_thread(put, target, first, 10, 100)
    late = await asyncio.to_thread(put, target, second, 10, 200)
    await world.publish(late)
    assert await world.fetched(second) == list(range(200, 210))
    with pytest.raises(PartitionNotFound):
        await world.fetched(first)
    await world.publish(early)
    assert await world.fetched(first) == list(range(100, 110))


async def test_a_later_put_takes_the_place_of_an_earlier_one(
    world: ServiceWorld, target: ShuffleServiceTarget
) -> None:
    earlier = target.open(identity(KEY), 2)
    blob = pa.record_batch({"b": pa.array([bytes(1 << 21)])})
    for _ in range(2):
        await asyncio.to_thread(earlier.write, 0, blob)
    await world.finish(KEY)
    with pytest.raises(OutputRefused):
        await asyncio.to_thread(earlier.commit)
    assert await world.fetched(KEY) == list(range(10))


async def test_what_is_published_must_be_what_was_put(world: ServiceWorld) -> None:
    finished = await world.put(KEY)
    finished.partitions[0].index_crc32c ^= 1
    with pytest.raises(OutputRefused, match="not its writer's"):
        await world.publish(finished)
    assert world.files() == []


async def test_an_attempt_that_put_not_all_of_its_outputs_is_not_published(
    world: ServiceWorld,
) -> None:
    finished = await world.put(KEY)
    finished.partitions.add(output=1)
    with pytest.raises(OutputRefused, match="not put here"):
        await world.publish(finished)


async def test_a_full_service_says_which_option_leaves_no_room(tmp_path: Path) -> None:
    world = ServiceWorld(tmp_path / "shuffle")
    await world.start(**{"shuffle.service.max-bytes": "1 kb"})
    with pytest.raises(OutputRefused, match=r"full: .* shuffle\.service\.max-bytes"):
        await world.put(KEY, rows=100_000)
    assert world.files() == []
    await world.stop()


async def test_the_reserve_of_the_disk_is_left_free(tmp_path: Path) -> None:
    world = ServiceWorld(tmp_path / "shuffle")
    await world.start(**{"shuffle.service.disk-reserve": "1000 tb"})
    with pytest.raises(OutputRefused, match=r"shuffle\.service\.disk-reserve"):
        await world.put(KEY)
    await world.stop()


async def test_a_service_that_does_not_answer_refuses_in_time(world: ServiceWorld) -> None:
    finished = await world.put(KEY)
    await world.server.stop()
    with (
        ShuffleServiceTarget(world.address, retry_timeout_s=0.2, call_timeout_s=1) as target,
        pytest.raises(OutputRefused, match="does not answer"),
    ):
        await asyncio.to_thread(target.publish, finished)


async def test_a_partition_server_that_is_no_shuffle_service_takes_nothing(tmp_path: Path) -> None:
    world = ServiceWorld(tmp_path / "shuffle")
    await world.start()
    await world.server.stop()
    world.server = await FlightPartitionServers().start(
        "127.0.0.1", 0, world.service.finished.path_of
    )
    with pytest.raises(ShuffleError, match="not a shuffle service"):
        await world.put(KEY)
    await world.stop()
