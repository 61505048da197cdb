"""A shuffle service keeps finished work while leaders, and it itself, come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from holdover.v1.common_pb2 import WORKER_KIND_SHUFFLE_SERVICE
from shuffle.errors import OutputRefused
from tests.doubles.resource_manager_double import ResourceManagerDouble
from tests.unit.shuffle.shuffle_service_harness import JOB, ServiceWorld, attempt, identity

KEY = attempt()


class Cluster:
    """A shuffle service, and the leaders that follow one another at one address."""

    def __init__(self, path: Path) -> None:
        self.service = ServiceWorld(path)
        self.jm = ResourceManagerDouble(self.service.runtime, epoch=1)

    async def start(self, **options: str) -> None:
        await self.jm.start()
        await self.start_service(**options)

    async def start_service(self, **options: str) -> None:
        await self.service.start(
            **{
                "taskmanager.registration.initial-backoff": "10 ms",
                "taskmanager.registration.max-backoff": "50 ms",
                "jobmanager.rpc.address": "127.0.0.1",
                "jobmanager.rpc.port": str(self.jm.port),
                **options,
            }
        )

    async def registered(self) -> None:
        await self.jm.until(lambda: bool(self.jm.registrations), "a registration")
        await self.until(lambda: self.service.service.connection.current is not None)

    async def next_leader(self, epoch: int, **fields: object) -> None:
        port = self.jm.port
        await self.jm.vanish()
        self.jm = ResourceManagerDouble(self.service.runtime, epoch=epoch, **fields)  # type: ignore[arg-type]
        await self.jm.start(port)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 5) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pytest.fail(f"jobs {self.service.service.jobs}, files {self.service.files()}")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path / "shuffle")
    yield cluster
    await cluster.service.stop()
    await cluster.jm.vanish()


async def test_it_registers_as_a_worker_without_slots_and_tells_its_room(cluster: Cluster) -> None:
    await cluster.start(**{"shuffle.service.max-bytes": "1 mb"})
    await cluster.registered()
    header = cluster.jm.current.header
    assert (header.kind, header.slots) == (WORKER_KIND_SHUFFLE_SERVICE, 0)
    assert header.shuffle.room_bytes == 1 << 20
    await cluster.service.finish(KEY)
    await cluster.jm.until(
        lambda: cluster.jm.heartbeats[-1].shuffle.held_bytes > 0, "a heartbeat that tells it"
    )
    held = cluster.service.service.finished.bytes
    assert cluster.jm.heartbeats[-1].shuffle.room_bytes == (1 << 20) - held


async def test_what_is_published_is_offered_to_the_next_leader(cluster: Cluster) -> None:
    """P36, P39: nothing is deleted when the leader is lost."""
    await cluster.start()
    await cluster.registered()
    await cluster.service.finish(KEY, attempt(1))
    await cluster.next_leader(2)
    await cluster.registered()
    assert cluster.jm.current.finished_keys == [KEY, attempt(1)]
    assert await cluster.service.fetched(KEY) == list(range(10))


async def test_output_of_an_outdated_leaders_attempt_is_refused(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.registered()
    late = await cluster.service.put(KEY)
    await cluster.next_leader(2)
    await cluster.registered()
    with pytest.raises(OutputRefused, match="epoch 2 leads"):
        await cluster.service.publish(late)
    with pytest.raises(OutputRefused, match="epoch 2 leads"):
        await cluster.service.put(attempt(1))


async def test_what_was_put_for_an_earlier_leader_is_deleted(cluster: Cluster) -> None:
    """Its task is gone with that leader, and the next one has never heard of it."""
    await cluster.start()
    await cluster.registered()
    service = cluster.service.service
    await cluster.service.put(KEY)
    copied = service.begin(identity(attempt(1)).name, True)
    service.complete(copied)
    service.end(copied)
    await cluster.next_leader(2)
    await cluster.registered()
    await cluster.until(lambda: cluster.service.files() == [])
    assert service.incoming == []
    assert service.header().shuffle.held_bytes == 0


async def test_what_is_put_for_the_leader_outlives_its_registration(cluster: Cluster) -> None:
    """The leader may deploy before its answer has come."""
    await cluster.start()
    await cluster.registered()
    early = await cluster.service.put(attempt(epoch=2))
    await cluster.next_leader(2)
    await cluster.registered()
    await cluster.service.publish(early)
    assert await cluster.service.fetched(attempt(epoch=2)) == list(range(10))


async def test_what_no_leader_asks_for_in_time_is_released(cluster: Cluster) -> None:
    """P27, P36: at the timeout, from the loss on."""
    await cluster.start(
        **{
            "taskmanager.registration.timeout": "1 s",
            "execution.batch.job-recovery.previous-worker.recovery.timeout": "500 ms",
        }
    )
    await cluster.registered()
    await cluster.service.finish(KEY)
    await cluster.jm.vanish()
    await cluster.until(lambda: cluster.service.service.jobs == [])
    assert cluster.service.files() == []
    assert cluster.service.service.header().shuffle.held_bytes == 0


async def test_a_restart_finds_what_was_published_and_deletes_what_was_not(
    cluster: Cluster,
) -> None:
    await cluster.start()
    await cluster.registered()
    await cluster.service.finish(KEY)
    await cluster.service.put(attempt(1))
    for _ in range(3):
        await cluster.service.stop()
        cluster.jm.registrations.clear()
        await cluster.start_service()
        await cluster.registered()
        assert cluster.jm.current.finished_keys == [KEY]
        assert await cluster.service.fetched(KEY) == list(range(10))
        assert len(cluster.service.files()) == 3


async def test_of_a_job_without_recovery_nothing_is_kept_for_another_leader(
    cluster: Cluster,
) -> None:
    """P18: nor found again by a new process of the service."""
    await cluster.start()
    await cluster.registered()
    for key in (KEY, attempt(job="job-b")):
        put = await cluster.service.put(key)
        put.recovery_disabled = key == KEY
        await cluster.service.publish(put)
    assert await cluster.service.fetched(KEY) == list(range(10))
    await cluster.jm.vanish()
    await cluster.until(lambda: cluster.service.service.jobs == ["job-b"])
    assert {file.partition("/")[0] for file in cluster.service.files()} == {"job-b"}


async def test_output_of_a_job_without_recovery_is_gone_with_its_service(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.registered()
    put = await cluster.service.put(KEY)
    put.recovery_disabled = True
    await cluster.service.publish(put)
    await cluster.service.stop()
    cluster.jm.registrations.clear()
    await cluster.start_service()
    await cluster.registered()
    assert cluster.jm.current.finished_keys == []
    assert cluster.service.files() == []


async def test_the_end_of_a_job_deletes_all_of_it(cluster: Cluster) -> None:
    """P35: also what was put and never published."""
    await cluster.start()
    await cluster.registered()
    other = attempt(job="job-b")
    await cluster.service.finish(KEY, other)
    await cluster.service.put(attempt(1))
    await cluster.service.put(attempt(job="job-c"))
    cluster.jm.ended_jobs += [JOB, "job-c"]
    await cluster.until(lambda: cluster.service.service.jobs == ["job-b"])
    assert {file.partition("/")[0] for file in cluster.service.files()} == {"job-b"}
    held = cluster.service.service.header().shuffle.held_bytes
    assert held == cluster.service.service.finished.bytes


async def test_a_job_whose_puts_all_failed_leaves_no_directory(cluster: Cluster) -> None:
    """P35: nothing is held or being put when it ends, but something was."""
    await cluster.start()
    await cluster.registered()
    await cluster.service.put(KEY)
    await cluster.service.service.discard(KEY.to_proto())
    await cluster.until(lambda: cluster.service.files() == [])
    assert cluster.service.directories() == [JOB]
    cluster.jm.ended_jobs.append(JOB)
    await cluster.until(lambda: cluster.service.directories() == [])
    await cluster.until(lambda: cluster.service.service.jobs == [])


async def test_a_stream_that_outlives_its_job_leaves_no_directory(cluster: Cluster) -> None:
    """It was about to make it when the job was deleted."""
    await cluster.start()
    await cluster.registered()
    service = cluster.service.service
    put = service.begin(identity(KEY).name, False)
    await service.release_job(JOB, "it has ended")
    (cluster.service.path / JOB).mkdir()
    assert not service.end(put), "its files went with the job"
    cluster.jm.ended_jobs.append(JOB)
    await cluster.until(lambda: cluster.service.directories() == [])
    await cluster.until(lambda: service.jobs == [])


async def test_what_the_leader_rejects_is_deleted(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.registered()
    await cluster.service.finish(KEY, attempt(1))
    await cluster.next_leader(2, rejects=lambda key: key == KEY)
    await cluster.registered()
    await cluster.until(lambda: len(cluster.service.files()) == 3)
    assert await cluster.service.fetched(attempt(1)) == list(range(10))


async def test_released_attempts_give_their_room_back(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.registered()
    await cluster.service.finish(KEY)
    await cluster.service.put(attempt(1))
    cluster.service.service.release_attempts([KEY, attempt(1), attempt(2)])
    await cluster.until(lambda: cluster.service.files() == [])
    assert cluster.service.service.header().shuffle.held_bytes == 0


async def test_what_was_released_before_it_was_put_is_not_taken(cluster: Cluster) -> None:
    """Its TaskManager was given up, and lives."""
    await cluster.start()
    await cluster.registered()
    half = await cluster.service.put(attempt(1))
    cluster.service.service.release_attempts([KEY, attempt(1)])
    with pytest.raises(OutputRefused, match="released"):
        await cluster.service.put(KEY)
    with pytest.raises(OutputRefused):
        await cluster.service.publish(half)
    await cluster.service.finish(attempt(0, 1))
    await cluster.until(lambda: len(cluster.service.files()) == 3)


async def test_what_is_released_just_before_it_is_published_is_deleted(cluster: Cluster) -> None:
    """Its task may be gone before it has the answer."""
    await cluster.start()
    await cluster.registered()
    service = cluster.service.service
    publishing = asyncio.ensure_future(service.publish(await cluster.service.put(KEY), False))
    await asyncio.sleep(0)
    service.release_attempts([KEY])
    with pytest.raises(OutputRefused, match="released"):
        await publishing
    await cluster.until(lambda: cluster.service.files() == [])


async def test_a_draining_service_takes_nothing_and_keeps_what_it_holds(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.registered()
    await cluster.service.finish(KEY)
    executions, n_bytes = cluster.service.service.drain()
    assert (executions, n_bytes) == (1, cluster.service.service.finished.bytes)
    with pytest.raises(OutputRefused, match="being drained"):
        await cluster.service.put(attempt(1))
    await cluster.jm.until(lambda: cluster.jm.heartbeats[-1].shuffle.draining, "it tells that")
    assert await cluster.service.fetched(KEY) == list(range(10))
