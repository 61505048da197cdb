"""A log that grows is rewritten, and never at the cost of what it holds."""

from __future__ import annotations

from dataclasses import replace

from jobmanager.event_store import EventWriterSettings
from jobmanager.event_store.compaction import FLUSHES_MAX, LogGrowth
from simulator.world.storage import SimulatedStorage
from tests.unit.jobmanager.event_store.event_logs import (
    Leader,
    frame,
    numbered,
    numbers,
    replayed,
    segment,
)

# Nothing is flushed but on demand.
PATIENT = EventWriterSettings(flush_interval_s=3600)


async def test_a_log_that_grows_is_rewritten_as_a_snapshot() -> None:
    """The state stays small; what a leader would have to read does too."""
    disk = SimulatedStorage()
    leader = Leader(disk, settings=replace(PATIENT, compaction_bytes=2_000))
    leader.state = [0]
    most = 0
    for number in range(2_000):
        leader.state[:] = [number]
        leader.writer.append(numbered(number))
        if number % 5 == 0:
            await leader.writer.flush()
            found, findings = await replayed(disk)
            assert found[-1] == number
            most = max(most, findings.events)
    await leader.writer.close()
    assert most < 80
    assert leader.writer.status.written_bytes < 2.5 * 2_000 * len(frame(numbered(2_000), 4_000))


async def test_a_large_state_is_not_rewritten_before_the_log_has_doubled() -> None:
    disk = SimulatedStorage()
    leader = Leader(disk, settings=replace(PATIENT, compaction_bytes=100))
    for number in range(2_000):
        leader.record(number)
        if number % 10 == 0:
            await leader.writer.flush()
    await leader.writer.close()
    assert (await replayed(disk))[0] == leader.state
    written = leader.writer.status.written_bytes
    assert written < 4 * len(segment(numbers(0, 2_000))), (
        "each event is written a few times at most"
    )


async def test_segments_go_only_when_the_snapshot_that_supersedes_them_is_durable() -> None:
    """P04: at no moment would a loss of power take an event."""
    disk = SimulatedStorage()
    leader = Leader(disk, settings=replace(PATIENT, compaction_bytes=300, segment_bytes_max=200))
    for number in range(100):
        leader.record(number)
        await leader.writer.flush()
    await leader.writer.close()
    removals = [at for at, (what, _) in enumerate(disk.operations) if what == "remove"]
    assert len(removals) > 10
    for at in removals:
        before = [what for what, _ in disk.operations[:at] if what not in ("remove", "stat")]
        while before[-1] == "list_directory":
            before.pop()
        assert before[-2:] in (["sync", "sync_directory"], ["sync_directory", "sync_directory"])


async def test_ten_failovers_in_a_row_leave_no_more_to_replay_than_one() -> None:
    """P14: records are counted, and files."""
    disk = SimulatedStorage()
    counts = []
    for epoch in range(1, 12):
        state, findings = await replayed(disk)
        counts.append((findings.events, findings.segments))
        leader = Leader(disk, epoch, state, findings.last_sequence)
        if epoch == 1:
            for number in range(50):
                leader.record(number)
        await leader.writer.compact()
        await leader.writer.close()
    assert counts[1:] == [(50, 1)] * 10


def test_many_flushes_of_little_make_a_snapshot_due() -> None:
    """Each may be an object of its own in a store."""
    growth = LogGrowth(64 << 20)
    for _ in range(FLUSHES_MAX):
        assert not growth.is_due
        growth.written(100)
    growth.written(100)
    assert growth.is_due
