"""What a shuffle service's receiver is told of output that is put to its partition server, and what
who puts is told; in both worlds. Who puts is another service, which copies what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from holdover.ids import AttemptKey, partition_name
from holdover.runtime import Disk, PartitionReceiver, PartitionServer, PartitionServers, Runtime
from holdover.v1.common_pb2 import FinishedExecution, ResultPartition
from holdover.v1.job_pb2 import DISTRIBUTION_KIND_HASH
from shuffle.errors import OutputRefused, PartitionDamaged, PartitionNotFound, ShuffleError
from shuffle.flight_servers import FlightPartitionServers
from shuffle.partition_file import PartitionWriter
from shuffle.partition_name import parse_partition_name
from simulator.world.process import CURRENT
from simulator.world.rows import ModelledPartition, Rows, index_checksum
from simulator.world.world import World
from tests.doubles.partition_receiver import NotingReceiver

KEY = AttemptKey("job", "map", 0, 0, 1)
ROWS = 1_000


@dataclass
class Services:
    """One service that holds finished attempts, and another that takes them."""

    servers: PartitionServers
    disk: Disk
    other_disk: Disk
    directory: str
    other_directory: str
    #: Starts the other's server, in its process.
    start: Callable[[PartitionReceiver | None], Awaitable[PartitionServer]]
    host: str
    #: Writes one finished partition.
    write: Callable[[str, str], Awaitable[ResultPartition]]
    running: list[PartitionServer] = field(default_factory=list)

    async def serve(self, receiver: NotingReceiver | None) -> str:
        """The other's address."""
        if receiver is not None:
            receiver.directory = self.other_directory
        self.running.append(await self.start(receiver))
        return f"{self.host}:{self.running[-1].port}"

    async def hold(self, key: AttemptKey, outputs: int = 1) -> FinishedExecution:
        """A finished attempt at the first."""
        finished = FinishedExecution(attempt=key.to_proto())
        for output in range(outputs):
            partition = await self.write(self.directory, partition_name(key, output))
            partition.output = output
            finished.partitions.append(partition)
        return finished

    async def copy(self, finished: FinishedExecution, address: str) -> None:
        """What a leader wants when the first is drained."""
        await self.servers.copy(self.directory, finished, address)

    async def files(self) -> dict[str, bytes]:
        """What the other has on its disk, by path in the shuffle directory."""
        found = await self.other_disk.glob(f"{self.other_directory}/**/*")
        paths = [each.path for each in found]
        return {
            path.removeprefix(f"{self.other_directory}/"): await self.other_disk.read(path)
            for path in paths
        }


@pytest.fixture
async def services(
    world: World | None, runtime_arm: Runtime, tmp_path: Path
) -> AsyncIterator[Services]:
    """Both, without a server yet."""
    made = _real(runtime_arm, tmp_path) if world is None else _simulated(world, runtime_arm)
    for disk, directory in (
        (made.disk, made.directory),
        (made.other_disk, made.other_directory),
    ):
        await disk.make_directories(directory)
    yield made
    for server in made.running:
        await server.stop()


def _real(runtime: Runtime, place: Path) -> Services:
    servers = FlightPartitionServers()

    async def write(directory: str, name: str) -> ResultPartition:
        def written() -> ResultPartition:
            writer = PartitionWriter(directory, parse_partition_name(name), 2)
            for half in range(2):
                numbers = pa.array(range(half * ROWS, half * ROWS + ROWS // 2), pa.int64())
                writer.write(half, pa.record_batch({"n": numbers}))
            metrics = writer.commit()
            return ResultPartition(data_bytes=metrics.data_bytes, index_crc32c=metrics.index_crc32c)

        return await asyncio.to_thread(written)

    async def start(receiver: PartitionReceiver | None) -> PartitionServer:
        return await servers.start("127.0.0.1", 0, lambda _: None, receiver)

    disk = runtime.disk
    directories = str(place / "one"), str(place / "other")
    return Services(servers, disk, disk, *directories, start, "127.0.0.1", write)


def _simulated(world: World, runtime: Runtime) -> Services:
    other = world.process(world.host("other"), "other")
    theirs = world.runtime(other)

    async def write(directory: str, name: str) -> ResultPartition:
        rows = Rows()
        rows.ids.extend(range(ROWS))
        partition = ModelledPartition.of(rows, DISTRIBUTION_KIND_HASH, 2, 0, 8 * ROWS)
        index, data = partition.encode()
        await runtime.disk.make_directories(f"{directory}/{name.partition('/')[0]}")
        await runtime.disk.publish(f"{directory}/{name}.data", data)
        await runtime.disk.publish(f"{directory}/{name}.index", index)
        return ResultPartition(data_bytes=len(data), index_crc32c=index_checksum(index))

    async def start(receiver: PartitionReceiver | None) -> PartitionServer:
        return await other.spawn(
            theirs.partition_servers.start("0.0.0.0", 0, lambda _: None, receiver)
        )

    assert CURRENT.get() is not other
    local = "/local/shuffle"
    return Services(
        runtime.partition_servers,
        runtime.disk,
        theirs.disk,
        local,
        local,
        start,
        "other",
        write,
    )


async def test_each_partition_is_written_and_then_their_attempt_is_published(
    services: Services,
) -> None:
    receiver = NotingReceiver()
    finished = await services.hold(KEY, outputs=2)
    await services.copy(finished, await services.serve(receiver))
    puts = [
        told
        for output in range(2)
        for told in (f"begin {partition_name(KEY, output)} True", "take", "complete", "end")
    ]
    # It has asked first whether a copy is there already.
    assert receiver.told == ["publish True", *puts, "publish True"]
    assert receiver.taken_bytes == sum(partition.data_bytes for partition in finished.partitions)
    assert receiver.published == [finished]


async def test_the_files_are_those_of_the_first_and_have_no_names_yet(services: Services) -> None:
    finished = await services.hold(KEY)
    await services.copy(finished, await services.serve(NotingReceiver()))
    name = partition_name(KEY, 0)
    expected = {
        f"{name}{suffix}.part": await services.disk.read(f"{services.directory}/{name}{suffix}")
        for suffix in (".data", ".index")
    }
    assert await services.files() == expected


async def test_a_copy_that_is_published_is_not_made_again(services: Services) -> None:
    receiver = NotingReceiver()
    finished = await services.hold(KEY)
    address = await services.serve(receiver)
    for _ in range(2):
        await services.copy(finished, address)
    assert receiver.told[-2:] == ["publish True", "publish True"]
    assert receiver.published == [finished]


@pytest.mark.parametrize("step", ["begin", "take", "complete"])
async def test_what_is_refused_is_told_to_who_puts_and_leaves_nothing(
    services: Services, step: str
) -> None:
    receiver = NotingReceiver(refuses=step)
    finished = await services.hold(KEY)
    with pytest.raises(OutputRefused, match="it is full"):
        await services.copy(finished, await services.serve(receiver))
    assert receiver.told[-1] == (
        "begin " + partition_name(KEY, 0) + " True" if step == "begin" else "end"
    )
    assert receiver.published == []
    if step == "take":
        assert await services.files() == {}


async def test_a_publication_that_is_refused_is_told_to_who_puts(services: Services) -> None:
    receiver = NotingReceiver(refuses="publish")
    finished = await services.hold(KEY)
    with pytest.raises(OutputRefused, match="it is full"):
        await services.copy(finished, await services.serve(receiver))
    assert receiver.published == []


@pytest.mark.parametrize("suffix", [".index", ".data"])
async def test_what_is_gone_is_said_to_be_lost_and_is_not_published(
    services: Services, suffix: str
) -> None:
    """P34"""
    receiver = NotingReceiver()
    finished = await services.hold(KEY)
    await services.disk.remove(f"{services.directory}/{partition_name(KEY, 0)}{suffix}")
    with pytest.raises((PartitionNotFound, PartitionDamaged), match=partition_name(KEY, 0)):
        await services.copy(finished, await services.serve(receiver))
    assert receiver.published == []


@pytest.mark.parametrize("suffix", [".index", ".data"])
async def test_what_is_damaged_is_said_to_be_lost_and_is_not_published(
    services: Services, suffix: str
) -> None:
    """P38: a byte is flipped."""
    receiver = NotingReceiver()
    finished = await services.hold(KEY)
    path = f"{services.directory}/{partition_name(KEY, 0)}{suffix}"
    content = await services.disk.read(path)
    middle = len(content) // 2
    flipped = bytes([content[middle] ^ 1])
    await services.disk.remove(path)
    await services.disk.publish(path, content[:middle] + flipped + content[middle + 1 :])
    with pytest.raises(PartitionDamaged, match=partition_name(KEY, 0)):
        await services.copy(finished, await services.serve(receiver))
    assert receiver.published == []


async def test_who_is_no_shuffle_service_takes_nothing(services: Services) -> None:
    finished = await services.hold(KEY)
    with pytest.raises(ShuffleError, match="shuffle service"):
        await services.copy(finished, await services.serve(None))
