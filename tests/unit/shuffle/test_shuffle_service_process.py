"""A whole shuffle service, and what leaders, operators and other services ask of it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from holdover.config import Configuration
from holdover.coordination.leader_services import configured_leader_service
from holdover.errors import ConfigurationError
from holdover.ids import AttemptKey
from holdover.runtime.real import real_runtime
from holdover.v1.common_pb2 import PartitionLocation
from holdover.v1.shuffle_service_pb2 import (
    CopyPartitionsRequest,
    CopyPartitionsResponse,
    DrainRequest,
)
from holdover.v1.shuffle_service_pb2_grpc import ShuffleServiceStub
from holdover.v1.taskmanager_pb2 import PingRequest, ReleaseJobRequest, ReleasePartitionsRequest
from shuffle.flight_result_target import ShuffleServiceTarget
from shuffle.flight_servers import FlightPartitionServers
from shuffle.service import ShuffleService
from shuffle.service_process import ShuffleServiceProcess
from tests.doubles.resource_manager_double import ResourceManagerDouble, SeenRegistration
from tests.unit.shuffle.shuffle_service_harness import JOB, attempt, identity, put

KEY = attempt()


class Services:
    """Shuffle services of one cluster; what is started is stopped."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runtime = dataclasses.replace(
            real_runtime(), partition_servers=FlightPartitionServers()
        )
        self.jm = ResourceManagerDouble(self.runtime, epoch=1)
        self.running: list[ShuffleServiceProcess] = []

    async def start(self, name: str = "shuffle-1") -> ShuffleServiceProcess:
        """Start one, and wait until it is registered."""
        if self.jm.server is None:
            await self.jm.start()
        configuration = Configuration.of(
            {
                "jobmanager.rpc.address": "127.0.0.1",
                "jobmanager.rpc.port": str(self.jm.port),
                "io.tmp.dirs": str(self.root / "tmp"),
                "high-availability.storageDir": str(self.root / "storage"),
                "shuffle.service.resource-id": name,
                "shuffle.service.disk-reserve": "0 b",
            }
        )
        leader_service = configured_leader_service(self.runtime, configuration)
        process = ShuffleServiceProcess(self.runtime, configuration, leader_service)
        self.running.append(process)
        await process.start()
        await self.jm.until(
            lambda: any(r.header.data_address == process.data_address for r in self.registrations),
            f"{name} registers",
        )
        async with asyncio.timeout(60):
            await service(process).connection.connected()
        return process

    @property
    def registrations(self) -> list[SeenRegistration]:
        """All that the JobManager has seen."""
        return self.jm.registrations

    async def stop(self, process: ShuffleServiceProcess) -> None:
        """Stop one in good order."""
        self.running.remove(process)
        await process.stop("the test is over")
        assert not process.failed.done()

    def registration_id(self, process: ShuffleServiceProcess) -> str:
        """What the JobManager knows it by."""
        current = service(process).connection.current
        assert current is not None
        return current.registration_id


def service(process: ShuffleServiceProcess) -> ShuffleService:
    """What is inside."""
    assert process.service is not None
    return process.service


async def finish(process: ShuffleServiceProcess, *keys: AttemptKey) -> None:
    """Put and publish the output of attempts."""

    def run() -> None:
        with ShuffleServiceTarget(process.data_address, retry_timeout_s=60) as target:
            for key in keys:
                target.publish(put(target, key))

    await asyncio.to_thread(run)


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    services = Services(tmp_path)
    yield services
    for process in list(services.running):
        await services.stop(process)
    await services.jm.vanish()


async def test_a_restart_under_the_same_name_offers_what_is_finished(services: Services) -> None:
    first = await services.start()
    await finish(first, KEY)
    await services.stop(first)
    second = await services.start()
    assert services.jm.current.finished_keys == [KEY]
    assert service(second).finished.path_of(identity(KEY).name)


async def test_a_name_belongs_to_one_living_process(services: Services) -> None:
    await services.start()
    with pytest.raises(ConfigurationError, match=r"shuffle\.service\.resource-id"):
        await services.start()


async def test_a_start_sweeps_what_dead_nameless_services_have_left(services: Services) -> None:
    """P40: a living neighbour, and one that may come back, keep theirs."""
    root = services.root / "tmp"
    for name in ("shuffle-dead", "shuffle-named"):
        (root / name / "shuffle" / "job-x").mkdir(parents=True)
        (root / name / "shuffle" / "job-x" / "left.data").write_bytes(b"left")
    (root / "shuffle-dead" / "generated").touch()
    neighbour = await services.start("")
    await finish(neighbour, KEY)
    await services.start()
    await services.jm.until(lambda: not (root / "shuffle-dead").exists(), "it is swept")
    assert (root / "shuffle-named" / "shuffle" / "job-x" / "left.data").exists()
    held = f"{identity(KEY).name}.data"
    assert (root / neighbour.resource_id / "shuffle" / held).exists()


async def test_a_leader_releases_partitions_and_jobs_and_an_old_one_does_not(
    services: Services,
) -> None:
    process = await services.start()
    await finish(process, KEY, attempt(1), attempt(job="job-b"))
    async with services.runtime.network.channel(process.address) as channel:
        stub = ShuffleServiceStub(channel)
        await stub.ReleasePartitions(
            ReleasePartitionsRequest(leader_epoch=1, attempts=[KEY.to_proto()]), timeout=5
        )
        await stub.ReleaseJob(ReleaseJobRequest(leader_epoch=1, job_id="job-b"), timeout=60)
        ping = PingRequest(leader_epoch=1, registration_id=services.registration_id(process))
        assert (await stub.Ping(ping, timeout=60)).registered
        held = [AttemptKey.from_proto(e.attempt) for e in service(process).finished.inventory()]
        assert held == [attempt(1)]
        service(process).connection.admit(2)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ReleaseJob(ReleaseJobRequest(leader_epoch=1, job_id=JOB), timeout=60)
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert service(process).finished.holds(JOB)


async def copied(
    services: Services,
    source: ShuffleServiceProcess,
    target: ShuffleServiceProcess,
    *keys: AttemptKey,
) -> list[CopyPartitionsResponse]:
    """What the source says of copying attempts to the target."""
    async with asyncio.timeout(60):
        await service(source).connection.connected()  # it may have lost the leader for a moment
    request = CopyPartitionsRequest(
        leader_epoch=1,
        registration_id=services.registration_id(source),
        attempts=[key.to_proto() for key in keys],
        target=PartitionLocation(worker_id=target.resource_id, data_address=target.data_address),
    )
    async with services.runtime.network.channel(source.address) as channel:
        answers = ShuffleServiceStub(channel).CopyPartitions(request, timeout=60)
        return [answer async for answer in answers]


async def test_finished_output_is_copied_to_another_service_byte_by_byte(
    services: Services,
) -> None:
    source, target = await services.start("shuffle-1"), await services.start("shuffle-2")
    await finish(source, KEY, attempt(1))
    for _ in range(2):
        answers = await copied(services, source, target, KEY, attempt(1))
        assert [answer.obstacle for answer in answers] == ["", ""]
    assert service(target).finished.inventory() == service(source).finished.inventory()
    for ending in (".data", ".index"):
        files = [Path(service(p).directory, identity(KEY).name + ending) for p in (source, target)]
        assert files[0].read_bytes() == files[1].read_bytes()


async def test_what_is_damaged_or_not_here_is_lost_and_not_copied(services: Services) -> None:
    """P38: damage is found before it travels."""
    source, target = await services.start("shuffle-1"), await services.start("shuffle-2")
    await finish(source, KEY, attempt(1))
    path = Path(service(source).directory, identity(KEY).name + ".data")
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    damaged, absent, whole = await copied(services, source, target, KEY, attempt(2), attempt(1))
    assert (damaged.lost, absent.lost, whole.lost) == (True, True, False)
    assert "CRC32C" in damaged.obstacle
    assert service(target).finished.get(attempt(1)) is not None
    assert service(target).finished.get(KEY) is None


async def test_a_target_that_is_full_is_an_obstacle_and_no_loss(services: Services) -> None:
    source, target = await services.start("shuffle-1"), await services.start("shuffle-2")
    await finish(source, KEY)
    service(target).drain()
    (answer,) = await copied(services, source, target, KEY)
    assert (answer.lost, "being drained" in answer.obstacle) == (False, True)


async def test_output_of_an_earlier_leaders_time_can_be_copied(services: Services) -> None:
    source, target = await services.start("shuffle-1"), await services.start("shuffle-2")
    await finish(source, KEY)
    port, services.jm = services.jm.port, services.jm
    await services.jm.vanish()
    services.jm = ResourceManagerDouble(services.runtime, epoch=2)
    await services.jm.start(port)
    await services.jm.until(lambda: len(services.registrations) == 2, "both register again")
    await asyncio.gather(*(service(p).connection.connected() for p in (source, target)))
    await services.jm.until(
        lambda: all(service(p).epoch_seen == 2 for p in (source, target)), "both know the leader"
    )
    await service(source).copy(KEY, target.data_address)
    assert service(target).finished.get(KEY) is not None


async def test_a_drained_service_ends_when_the_leader_says_so(services: Services) -> None:
    process = await services.start()
    await finish(process, KEY)
    async with services.runtime.network.channel(process.address) as channel:
        stub = ShuffleServiceStub(channel)
        for _ in range(2):
            answer = await stub.Drain(DrainRequest(), timeout=60)
            assert answer.executions == 1
            assert answer.partition_bytes == service(process).finished.bytes
    service(process).drained.set()
    async with asyncio.timeout(60):
        assert await process.stopped() == "it is drained"
    await services.stop(process)
    assert not (services.root / "tmp" / process.resource_id).exists(), "all of it is elsewhere"
