"""What the writer does about each fault of the storage, and how it heals."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from holdover.runtime.real_disk import LocalDisk
from holdover.v1.events_pb2 import JobEventRecord
from jobmanager.event_store import (
    EventStoreStatus,
    JobEventWriter,
    replay,
)
from simulator.world.storage import SimulatedStorage
from tests.unit.jobmanager.event_store.event_logs import (
    DIRECTORY,
    JOB_ID,
    PATIENT,
    Leader,
    LoopClock,
    is_active,
    is_degraded,
    number_of,
    numbered,
    numbers,
    replayed,
)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("full", "No space left"),
        ("write", "Input/output error"),
        ("sync", "Input/output error"),
        ("read-only", "Read-only file system"),
        ("vanished", "vanished"),
        ("moved away", "vanished"),
    ],
)
async def test_each_fault_shows_at_the_next_flush_and_heals_by_itself(
    fault: str, reason: str
) -> None:
    """P02, P05, P06: the mode, the reason, a count that stays; then a snapshot."""
    disk = SimulatedStorage()
    await disk.make_directories(DIRECTORY)
    leader = Leader(disk, settings=PATIENT)
    leader.record(1)
    await leader.writer.flush()
    await strike(disk, fault)
    leader.record(2)
    leader.writer.request_flush()
    status = await leader.until(is_degraded)
    assert reason in status.reason
    leader.record(3)
    disk.faults.heal()
    await leader.writer.flush()
    assert is_active(leader.writer.status)
    assert leader.writer.status.failures >= 1
    disk.power_loss()
    disk.power_on()
    found, findings = await replayed(disk)
    assert (found, findings.began_with_snapshot) == ([1, 2, 3], True)
    await leader.writer.close()


async def strike(disk: SimulatedStorage, fault: str) -> None:
    match fault:
        case "full":
            disk.faults.fill()
        case "read-only":
            disk.faults.make_read_only()
        case "vanished":
            await disk.remove_tree(DIRECTORY)
        case "moved away":
            await disk.rename(DIRECTORY, DIRECTORY + ".old")
        case _:
            disk.faults.break_operation(fault)


async def test_a_directory_that_is_removed_from_a_real_disk_is_noticed(tmp_path: Path) -> None:
    """The open file can be written and synced all the same."""
    directory = tmp_path / "job" / "events"
    statuses: list[EventStoreStatus] = []
    writer = JobEventWriter(
        LocalDisk(),
        LoopClock(),
        str(directory),
        job_id=JOB_ID,
        leader_epoch=1,
        snapshot_source=lambda: numbers(0, 2),
        settings=PATIENT,
        on_status=statuses.append,
    )
    writer.start()
    writer.append(numbered(0))
    await writer.flush()
    await asyncio.to_thread(shutil.rmtree, directory)
    writer.append(numbered(1))
    await writer.flush()
    await writer.close()
    assert [status.mode.name for status in statuses] == ["ACTIVE", "DEGRADED", "ACTIVE"]
    found: list[JobEventRecord] = []
    await replay(LocalDisk(), str(directory), found.append)
    assert [number_of(record) for record in found] == [0, 1]


async def test_a_log_that_vanishes_while_nothing_happens_is_written_anew() -> None:
    disk = SimulatedStorage()
    leader = Leader(disk, settings=replace(PATIENT, probe_interval_s=0.01))
    leader.record(1)
    await leader.writer.flush()
    await disk.remove_tree(DIRECTORY)
    await leader.until(is_degraded)
    await leader.until(is_active)
    assert (await replayed(disk))[0] == [1]
    await leader.writer.close()


async def test_a_deposed_leader_does_not_bring_back_a_job_that_has_ended() -> None:
    """P44: its successor has deleted all of it."""
    disk = SimulatedStorage()
    leader = Leader(disk, settings=replace(PATIENT, probe_interval_s=0.01))
    leader.record(1)
    await leader.writer.flush()
    await disk.remove_tree("/log")
    status = await leader.until(lambda status: status.failures > 2)
    assert "the job's directory is gone" in status.reason
    await leader.writer.close(timeout_s=0.01)
    assert await disk.stat("/log") is None
