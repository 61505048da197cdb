"""The writer: when it flushes, what it does about errors, and what a power loss may cost."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from holdover.runtime import AppendFile, ObjectStoreFenced
from holdover.runtime.real_disk import LocalDisk
from holdover.v1.events_pb2 import JobEvent, JobEventRecord
from holdover.v1.jobmanager_pb2 import RECOVERY_MODE_DEGRADED
from jobmanager.event_store import (
    EventStoreDegraded,
    EventStoreFenced,
    EventTooLarge,
    EventWriterSettings,
    JobEventWriter,
    replay,
)
from simulator.world.storage import PowerLoss, SimulatedStorage
from tests.unit.jobmanager.event_store.event_logs import (
    DIRECTORY,
    JOB_ID,
    PATIENT,
    Leader,
    LoopClock,
    is_active,
    is_degraded,
    next_leader,
    number_of,
    numbered,
    path,
    put,
    replayed,
    segment,
)


def count(disk: SimulatedStorage, operation: str) -> int:
    return sum(1 for name, _ in disk.operations if name == operation)


class HangingDisk(SimulatedStorage):
    """Writes hang while `hangs` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self.released = asyncio.Event()

    async def open_append(self, path: str) -> AppendFile:
        if self.hangs:
            await self.released.wait()
        return await super().open_append(path)


async def test_appending_touches_no_disk_and_a_flush_is_one_write_and_one_sync() -> None:
    """P08."""
    disk = SimulatedStorage()
    leader = Leader(disk, settings=PATIENT)
    for number in range(1000):
        leader.record(number)
    assert disk.mutations == 0
    await leader.writer.flush()
    assert (count(disk, "write"), count(disk, "sync")) == (1, 1)
    assert leader.writer.status.durable_sequence == 1000
    disk.power_loss()
    disk.power_on()
    assert (await replayed(disk))[0] == leader.state
    await leader.writer.close()


async def test_the_interval_a_full_buffer_and_a_request_each_cause_a_flush() -> None:
    """P08."""
    disk = SimulatedStorage()
    for settings in (
        EventWriterSettings(flush_interval_s=0.01),
        EventWriterSettings(flush_interval_s=3600, buffer_bytes=100),
    ):
        leader = Leader(disk, settings=settings)
        for number in range(10):
            leader.record(number)
        await leader.until(lambda status: status.durable_sequence >= 10)
        await leader.writer.close()
    leader = Leader(disk, settings=PATIENT)
    leader.record(1)
    leader.writer.request_flush()
    await leader.until(lambda status: status.durable_sequence >= 1)
    await leader.writer.close()


async def test_syncs_are_bounded_by_intervals_and_full_buffers() -> None:
    """P08: a stream of events in many loop steps."""
    disk = SimulatedStorage()
    leader = Leader(disk, settings=EventWriterSettings(flush_interval_s=3600, buffer_bytes=8192))
    for number in range(2000):
        leader.record(number)
        await asyncio.sleep(0)
    await leader.writer.flush()
    status = leader.writer.status
    assert status.syncs <= status.written_bytes // 8192 + 1
    await leader.writer.close()


async def test_segments_roll_and_replay_in_order() -> None:
    disk = SimulatedStorage()
    leader = Leader(disk, settings=EventWriterSettings(segment_bytes_max=200))
    for number in range(30):
        leader.record(number)
        await leader.writer.flush()
    found, findings = await replayed(disk)
    assert found == leader.state
    assert findings.segments > 3
    await leader.writer.close()


@pytest.mark.parametrize("operation", ["write", "sync", "open_append", "sync_directory"])
async def test_after_an_error_a_fresh_segment_begins_with_a_snapshot(operation: str) -> None:
    """P02: the handle that failed is never used again, and nothing on it is called durable."""
    disk = SimulatedStorage(unsynced="torn")
    leader = Leader(disk, settings=PATIENT)
    if operation in ("write", "sync"):
        leader.record(0)
        await leader.writer.flush()
    disk.fail(operation, errno.EIO, f"{DIRECTORY}*", times=3)
    leader.record(1)
    leader.writer.request_flush()
    status = await leader.until(is_degraded)
    assert "Input/output error" in status.reason
    assert status.to_proto().mode == RECOVERY_MODE_DEGRADED
    assert status.durable_sequence < 2
    leader.record(2)
    await leader.writer.flush()
    assert is_active(leader.writer.status)
    failed = [at for at, name in enumerate(disk.operations) if name[0] == operation][-2]
    assert path() not in [name for verb, name in disk.operations[failed:] if verb == "write"]
    disk.power_loss()
    disk.power_on()
    assert (await replayed(disk))[0] == leader.state
    await leader.writer.close()


async def test_a_full_disk_is_visible_bounded_quiet_and_left_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P06."""
    disk = SimulatedStorage()
    disk.fail("write", errno.ENOSPC, skip=3, times=1_000_000)
    leader = Leader(disk, settings=replace(PATIENT, buffer_bytes_max=10_000))
    for number in range(3000):
        leader.record(number)
        if number % 100 == 0:
            leader.writer.request_flush()
            await asyncio.sleep(0.001)
        assert leader.writer.status.buffered_bytes <= 10_000
    await leader.until(is_degraded)
    with pytest.raises(EventStoreDegraded, match="No space left"):
        await leader.writer.flush(timeout_s=0.05)
    full, _ = await replayed(disk)
    assert full == leader.state[: len(full)]
    disk.faults.heal()
    await leader.writer.flush()
    assert (await replayed(disk))[0] == leader.state
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) <= 10
    await leader.writer.close()


async def test_a_hanging_disk_degrades_the_log_and_a_fresh_segment_heals_it() -> None:
    """P05."""
    disk = HangingDisk()
    leader = Leader(
        disk, settings=EventWriterSettings(hang_limit_s=0.02, retry_delay_first_s=0.001)
    )
    disk.hangs = True
    leader.record(1)
    leader.writer.request_flush()
    status = await leader.until(is_degraded)
    assert "no answer from storage for 0.02 s" in status.reason
    disk.hangs = False
    leader.record(2)
    await leader.writer.flush()
    disk.released.set()
    await leader.writer.close()
    assert (await replayed(disk))[0] == [1, 2]


async def test_a_disk_that_hangs_for_ever_takes_no_more_than_two_calls() -> None:
    """P05."""
    disk = HangingDisk()
    leader = Leader(
        disk, settings=EventWriterSettings(hang_limit_s=0.005, retry_delay_first_s=0.001)
    )
    disk.hangs = True
    leader.record(1)
    await leader.until(lambda _: len(leader.statuses) == 2)
    with pytest.raises(EventStoreDegraded):
        await leader.writer.flush(timeout_s=0.2)
    assert len(leader.statuses) == 2
    await leader.writer.close(timeout_s=0.01)


async def test_a_bug_in_the_snapshot_is_visible_and_the_loop_goes_on() -> None:
    """P05."""
    disk = SimulatedStorage()
    calls: list[int] = []

    def snapshot() -> Sequence[JobEvent]:
        calls.append(1)
        if len(calls) < 3:
            raise ZeroDivisionError("a bug")
        return [numbered(1)]

    leader = Leader(disk, settings=PATIENT, snapshot_source=snapshot, replayed_sequence=5)
    leader.record(1)
    leader.writer.request_flush()
    status = await leader.until(is_degraded)
    assert "a bug" in status.reason
    await leader.writer.flush()
    assert is_active(leader.writer.status)
    assert (await replayed(disk))[0] == [1]
    await leader.writer.close()


async def test_back_pressure_ends_when_the_buffer_is_written() -> None:
    leader = Leader(
        SimulatedStorage(),
        settings=EventWriterSettings(flush_interval_s=3600, buffer_bytes_max=100),
    )
    leader.record(0)
    assert leader.writer.has_room()
    while leader.writer.has_room():
        leader.record(1)
        if leader.writer.status.buffered_bytes == 0:
            break  # beyond the bound everything is dropped for a snapshot
    leader.writer.request_flush()
    async with asyncio.timeout(60):
        await leader.writer.wait_for_room()
    await leader.writer.close()


async def test_a_caller_that_ignores_back_pressure_costs_a_snapshot_not_memory() -> None:
    disk = SimulatedStorage()
    leader = Leader(
        disk, settings=EventWriterSettings(flush_interval_s=3600, buffer_bytes_max=1000)
    )
    for number in range(500):
        leader.record(number)
        assert leader.writer.status.buffered_bytes <= 1000
    await leader.writer.flush()
    found, findings = await replayed(disk)
    assert found == leader.state
    assert findings.began_with_snapshot
    await leader.writer.close()


async def test_an_event_that_cannot_be_written_is_refused_at_once() -> None:
    leader = Leader(SimulatedStorage())
    event = numbered(1)
    event.vertex_reset.vertex_id = "v" * (16 * 1024 * 1024)
    with pytest.raises(EventTooLarge, match="at most 16777216"):
        leader.writer.append(event)
    assert leader.writer.last_sequence == 0
    await leader.writer.close()
    with pytest.raises(RuntimeError, match="closed"):
        leader.writer.append(numbered(1))


async def test_compaction_leaves_one_segment_with_the_present_state() -> None:
    disk = SimulatedStorage()
    leader = Leader(disk, settings=EventWriterSettings(segment_bytes_max=100))
    for number in range(20):
        leader.record(number)
        await leader.writer.flush()
    leader.state[:] = [3, 4]
    await leader.writer.compact()
    leader.record(5)
    await leader.writer.close()
    found, findings = await replayed(disk)
    assert (found, findings.segments) == ([3, 4, 5], 2)


async def test_a_log_does_not_grow_with_the_number_of_its_leaders() -> None:
    disk = SimulatedStorage()
    for epoch in range(1, 20):
        leader = await next_leader(disk, epoch)
        leader.record(epoch)
        await leader.writer.close()
    found, findings = await replayed(disk)
    assert found == list(range(1, 20))
    assert findings.segments == 1


async def test_a_deposed_leader_adds_nothing_to_its_successors_log() -> None:
    disk = SimulatedStorage()
    old = Leader(disk, 1)
    old.record(1)
    await old.writer.flush()
    new = await next_leader(disk, 2)
    new.record(2)
    await new.writer.flush()
    old.record(66)
    await old.writer.compact()
    old.record(67)
    await old.writer.close()
    new.record(3)
    await new.writer.close()
    assert (await replayed(disk))[0] == [1, 2, 3]


async def test_a_deposed_leader_is_ignored_even_where_it_had_written_nothing_before() -> None:
    disk = SimulatedStorage()
    old = Leader(disk, 1)
    new = await next_leader(disk, 2)
    new.record(2)
    await new.writer.flush()
    old.record(66)
    await old.writer.compact()
    await old.writer.close()
    new.record(3)
    await new.writer.close()
    assert (await replayed(disk))[0] == [2, 3]


async def test_what_a_dead_process_did_not_sync_is_synced_before_anybody_builds_on_it() -> None:
    disk = SimulatedStorage()
    await disk.make_directories(DIRECTORY)
    await (await disk.open_append(path())).write(segment([numbered(1), numbered(2)]))
    leader = await next_leader(disk, 2)
    leader.record(3)
    disk.fail("write", errno.EIO)
    leader.writer.request_flush()
    await leader.until(is_degraded)
    disk.power_loss()
    disk.power_on()
    assert (await replayed(disk))[0] == [1, 2]
    await leader.writer.close(timeout_s=0.01)


async def test_what_a_reader_knows_of_a_fresh_start_is_not_mixed_with_an_older_log() -> None:
    """A job that starts from its beginning, over segments that held nothing."""
    disk = SimulatedStorage()
    await put(disk, segment([])[:20])
    leader = await next_leader(disk, 1)
    leader.record(1)
    await leader.writer.close()
    assert (await replayed(disk))[0] == [1]


@pytest.mark.parametrize("unsynced", ["dropped", "zeroed", "torn"])
async def test_no_power_cut_takes_what_was_flushed_nor_invents_anything(unsynced: str) -> None:
    """P14: the power goes after every single mutation, twice in a row; the log goes on."""
    for cut in range(1, 200):
        disk = SimulatedStorage(unsynced=unsynced)  # type: ignore[arg-type]
        flushed, recorded = await live_until_the_cut(disk, 1, cut)
        if recorded is None:
            return
        disk.power_on()
        found, _ = await replayed(disk)
        assert recorded[: len(found)] == found, f"cut after {cut}"
        assert len(found) >= flushed, f"cut after {cut}"
        flushed, again = await live_until_the_cut(disk, 2, cut // 2 + 1)
        if again is not None:
            disk.power_on()
        found, _ = await replayed(disk)
        assert len(found) >= flushed, f"second cut after {cut // 2 + 1}"
    raise AssertionError("the story never came to its end")


async def live_until_the_cut(
    disk: SimulatedStorage, epoch: int, cut: int
) -> tuple[int, list[int] | None]:
    """A leader's life; the events it knows to be durable, and all it recorded if it was cut."""
    leader = await next_leader(disk, epoch, EventWriterSettings(segment_bytes_max=150))
    flushed = len(leader.state)
    disk.cut_after_mutation(cut)
    try:
        for step in range(12):
            leader.record(100 * epoch + step)
            await unless_the_power_goes(leader, leader.writer.flush(5))
            flushed = len(leader.state)
            if step == 8:
                await unless_the_power_goes(leader, leader.writer.compact(5))
    except PowerLoss:
        return flushed, leader.state
    finally:
        with contextlib.suppress(PowerLoss):
            await leader.writer.close(timeout_s=0)
    disk.power_loss()
    disk.power_on()
    return flushed, None


async def unless_the_power_goes(leader: Leader, work: Coroutine[None, None, None]) -> None:
    """Do the work; raises PowerLoss when the writer met it meanwhile."""
    flush = asyncio.ensure_future(work)
    lost = asyncio.ensure_future(leader.until(lambda status: "PowerLoss" in status.reason))
    await asyncio.wait([flush, lost], return_when=asyncio.FIRST_COMPLETED)
    was_lost = lost.done()
    for task in (flush, lost):
        task.cancel()
    await asyncio.gather(flush, lost, return_exceptions=True)
    if was_lost:
        raise PowerLoss


async def test_on_real_files_nothing_blocks_the_event_loop(tmp_path: Path) -> None:
    disk = LocalDisk()
    directory = str(tmp_path / "job" / "events")
    state: list[int] = []
    for epoch in (1, 2, 3):
        found: list[JobEventRecord] = []
        findings = await replay(disk, directory, found.append)
        assert [number_of(record) for record in found] == state
        writer = JobEventWriter(
            disk,
            LoopClock(),
            directory,
            job_id=JOB_ID,
            leader_epoch=epoch,
            snapshot_source=lambda: [numbered(number) for number in state],
            replayed_sequence=findings.last_sequence,
        )
        writer.start()
        for number in range(500):
            state.append(number)
            writer.append(numbered(number))
        await writer.flush()
        await writer.close()


class FencedDisk(SimulatedStorage):
    """An object store that takes nothing more from this process once `fenced` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.fenced = False
        self.refused = 0

    async def open_append(self, path: str) -> AppendFile:
        if self.fenced:
            self.refused += 1
            raise ObjectStoreFenced(path, "the leadership of this process is over")
        return await super().open_append(path)


async def test_a_writer_that_is_fenced_gives_up_and_closes_at_once() -> None:
    """Its log belongs to another leader: neither those who flush nor those who close it wait."""
    disk = FencedDisk()
    leader = Leader(disk, settings=replace(PATIENT, flush_timeout_s=600.0))
    disk.fenced = True
    leader.record(1)
    async with asyncio.timeout(60):
        with pytest.raises(EventStoreFenced, match="leadership"):
            await leader.writer.flush()
        with pytest.raises(EventStoreFenced):
            await leader.writer.flush()
        leader.record(2)
        await leader.writer.close(timeout_s=600.0)
    assert disk.refused == 1
    assert is_degraded(leader.writer.status)
