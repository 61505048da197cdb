"""A job whose log is gone is told from one that never ran (P09)."""

from __future__ import annotations

import errno

import pytest

from holdover.v1 import common_pb2
from jobmanager.job_recovery import RECOVERY_DATA_MISSING
from simulator.world.storage import SimulatedStorage
from tests.unit.jobmanager.leader_lives import (
    OUTPUTS,
    PARALLELISM,
    ROOT,
    InstantTaskManager,
    Leader,
    live,
    three_sinks,
)

FINISHED, PARKED = common_pb2.JOB_STATE_FINISHED, common_pb2.JOB_STATE_PARKED
EVENTS = f"{ROOT}/jobs/job/events"
MARK = f"{ROOT}/jobs/job/events-recorded"


async def mark_is_there(leader: Leader) -> bool:
    return await leader.disk.stat(MARK) is not None


async def published(leader: Leader) -> list[str]:
    return [file.path for file in await leader.disk.glob("/out/*/*/*")]


def with_events(taskmanager: InstantTaskManager) -> None:
    """A first leader submits the job; what happened becomes durable, and is marked as such."""

    async def life(leader: Leader) -> None:
        await leader.take_office()
        await leader.dispatcher.submit(three_sinks())
        await leader.until(lambda: mark_is_there(leader), "events are marked as durable")

    assert live(taskmanager, 1, life)


async def lose_log(leader: Leader) -> None:
    await leader.disk.remove_tree(EVENTS)
    await leader.disk.sync_directory(f"{ROOT}/jobs/job")


def test_a_log_that_is_gone_is_reported_and_the_job_starts_from_its_beginning() -> None:
    taskmanager = InstantTaskManager(SimulatedStorage(), hangs=frozenset({"m"}))
    with_events(taskmanager)

    async def life(leader: Leader) -> None:
        await lose_log(leader)
        taskmanager.hangs = frozenset()
        await leader.take_office()
        [report] = await leader.dispatcher.recovery_reports("job")
        assert report.restarted_reason.startswith(RECOVERY_DATA_MISSING)
        assert EVENTS in report.restarted_reason
        await leader.until_cleaned_up("job")
        assert len(await published(leader)) == len(OUTPUTS) * (PARALLELISM + 1)

    assert live(taskmanager, 2, life)


def test_a_job_that_never_ran_is_no_such_case() -> None:
    taskmanager = InstantTaskManager(SimulatedStorage())

    async def stores(leader: Leader) -> None:
        await leader.store.open()
        await leader.store.store(three_sinks(), submitted_wall_ms=1, leader_epoch=1)

    async def life(leader: Leader) -> None:
        await leader.take_office()
        [report] = await leader.dispatcher.recovery_reports("job")
        assert report.restarted_reason == "no event of the job had become durable"

    assert live(taskmanager, 1, stores)
    assert live(taskmanager, 2, life)


@pytest.mark.parametrize("loss", ["missing", "damaged"])
def test_output_that_is_published_already_is_not_written_a_second_time(loss: str) -> None:
    """P09: one sink's output is committed, the log is lost. Nothing runs until somebody decides."""
    taskmanager = InstantTaskManager(SimulatedStorage())
    disk = taskmanager.disk

    async def dies_half_way(leader: Leader) -> None:
        disk.faults.fail("rename", errno.EIO, f"{OUTPUTS[1]}/*", times=None)
        await leader.take_office()
        await leader.dispatcher.submit(three_sinks())

        async def half() -> bool:
            return len(await published(leader)) == PARALLELISM

        await leader.until(half, "one of three sinks is published")
        await leader.until(lambda: mark_is_there(leader), "events are marked as durable")
        await disk.sync_directory(f"{OUTPUTS[0]}/job")

    async def decides(leader: Leader) -> None:
        disk.faults.heal()
        if loss == "missing":
            await lose_log(leader)
        else:
            for file in await disk.glob(f"{EVENTS}/*"):
                content = bytearray(await disk.read(file.path))
                content[len(content) // 2] ^= 0xFF
                disk.overwrite(file.path, bytes(content))
        before, ran = await published(leader), len(taskmanager.ran)
        await leader.take_office()
        status = await leader.dispatcher.status("job")
        assert status.state == PARKED
        assert OUTPUTS[0] in status.failure.message
        assert {"missing": RECOVERY_DATA_MISSING, "damaged": "is damaged"}[loss] in (
            status.failure.message
        )
        assert (await published(leader), len(taskmanager.ran)) == (before, ran)
        for path in before:
            await disk.remove(path)
        await leader.dispatcher.retry("job")
        await leader.resources.offer_all()
        await leader.until_cleaned_up("job")
        assert (await leader.dispatcher.status("job")).state == FINISHED
        assert len(await published(leader)) == len(OUTPUTS) * (PARALLELISM + 1)

    assert live(taskmanager, 1, dies_half_way)
    assert live(taskmanager, 2, decides)
