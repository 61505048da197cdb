"""What people are told about an event log."""

from __future__ import annotations

from jobmanager.event_store.inspection import (
    DumpedDefect,
    DumpedRecord,
    DumpedSegment,
    DumpItem,
    Severity,
    VerifiedLog,
    dump_log,
    find_logs,
    verify_log,
)
from simulator.world.storage import SimulatedStorage
from tests.unit.jobmanager.event_store.event_logs import (
    DIRECTORY,
    frame,
    number_of,
    numbers,
    path,
    put,
    segment,
)


async def verified(disk: SimulatedStorage) -> VerifiedLog:
    """The verdict, which must not change anything."""
    files = {entry.name: entry.bytes for entry in await disk.list_directory(DIRECTORY)}
    log = await verify_log(disk, DIRECTORY)
    assert files == {entry.name: entry.bytes for entry in await disk.list_directory(DIRECTORY)}
    return log


async def dumped(disk: SimulatedStorage) -> list[DumpItem]:
    items: list[DumpItem] = []
    await dump_log(disk, DIRECTORY, items.append)
    return items


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


async def test_a_sound_log_has_no_findings() -> None:
    disk = SimulatedStorage()
    await put(disk, segment(numbers(0, 5)))
    log = await verified(disk)
    assert (log.is_sound, log.findings) == (True, ())
    assert log.replayed is not None
    assert log.replayed.events == 5


async def test_every_damaged_place_is_named_and_records_behind_it_are_shown() -> None:
    """P03: three of six records are damaged, in two files."""
    disk = SimulatedStorage()
    data = segment(numbers(0, 4))
    second, fourth = len(segment(numbers(0, 1))), len(segment(numbers(0, 3)))
    await put(disk, flipped(flipped(data, second + 14), fourth + 14))
    other = segment(numbers(4, 6), index=1, first=5)
    await put(disk, flipped(other, len(other) - 1), index=1)
    log = await verified(disk)
    assert not log.is_sound
    last = len(segment(numbers(4, 5), index=1, first=5))
    assert [(one.severity, one.path, one.offset) for one in log.findings] == [
        (Severity.DAMAGE, path(), second),
        (Severity.DAMAGE, path(), fourth),
        (Severity.DAMAGE, path(index=1), last),
    ]
    items = await dumped(disk)
    records = [number_of(item.record) for item in items if isinstance(item, DumpedRecord)]
    assert records == [0, 2, 4]
    assert [item.is_damage for item in items if isinstance(item, DumpedDefect)] == [
        True,
        False,
        False,
    ]


async def test_a_crash_leaves_traces_which_are_no_damage() -> None:
    disk = SimulatedStorage()
    await put(disk, segment(numbers(0, 3))[:-2])
    log = await verified(disk)
    assert log.is_sound
    [trace] = log.findings
    assert (trace.severity, trace.offset) == (Severity.TRACE, len(segment(numbers(0, 2))))
    assert "torn tail" in str(trace)


async def test_damage_that_a_snapshot_supersedes_is_told_as_harmless() -> None:
    disk = SimulatedStorage()
    data = segment(numbers(0, 3))
    await put(disk, flipped(data, 70))
    await put(disk, segment(numbers(0, 3), epoch=2, first=9, is_snapshot=True), epoch=2)
    log = await verified(disk)
    assert log.is_sound
    assert [one.severity for one in log.findings] == [Severity.TRACE]


async def test_a_header_that_cannot_be_read_does_not_hide_the_records() -> None:
    disk = SimulatedStorage()
    await put(disk, flipped(segment(numbers(0, 3)), 3))
    log = await verified(disk)
    assert [(one.severity, one.offset) for one in log.findings] == [(Severity.DAMAGE, 0)]
    items = await dumped(disk)
    assert items[0] == DumpedSegment(path(), len(segment(numbers(0, 3))), None)
    assert [number_of(i.record) for i in items if isinstance(i, DumpedRecord)] == [0, 1, 2]


async def test_an_event_of_a_newer_version_is_no_damage_and_no_success() -> None:
    """P07."""
    from holdover.v1.events_pb2 import JobEvent

    disk = SimulatedStorage()
    await put(disk, segment([*numbers(0, 2), JobEvent.FromString(b"\xba\x3e\x00")]))
    log = await verified(disk)
    assert not log.is_sound
    [finding] = log.findings
    assert finding.severity is Severity.NEWER
    assert "event type 999" in finding.text


async def test_segments_set_aside_are_shown_last() -> None:
    disk = SimulatedStorage()
    await put(disk, segment(numbers(0, 2)))
    await disk.rename(path(), path() + ".damaged")
    await put(disk, segment(numbers(5, 6), epoch=2), epoch=2)
    log = await verified(disk)
    assert log.is_sound
    assert [(one.path, one.text) for one in log.findings] == [
        (path() + ".damaged", "set aside by an earlier leader")
    ]
    records = [number_of(i.record) for i in await dumped(disk) if isinstance(i, DumpedRecord)]
    assert records == [5, 0, 1]


async def test_a_directory_means_its_log_its_jobs_log_or_all_logs_of_a_storage() -> None:
    disk = SimulatedStorage()
    for job in ("a", "b"):
        await disk.make_directories(f"/storage/jobs/{job}/events")
        await disk.publish(f"/storage/jobs/{job}/events/{path()[-27:]}", segment(numbers(0, 1)))
    await disk.make_directories("/storage/jobs/none")
    logs = ["/storage/jobs/a/events", "/storage/jobs/b/events"]
    assert await find_logs(disk, "/storage") == logs
    assert await find_logs(disk, "/storage/jobs") == logs
    assert await find_logs(disk, "/storage/jobs/a") == logs[:1]
    assert await find_logs(disk, logs[1]) == logs[1:]
    assert await find_logs(disk, "/storage/jobs/none") == []


async def test_a_log_of_many_records_is_read_chunk_by_chunk() -> None:
    disk = SimulatedStorage()
    data = segment(numbers(0, 4000))
    at = len(segment(numbers(0, 2000)))
    await put(disk, data[:at] + bytes(100_000) + frame(numbers(7, 8)[0], 2001))
    items = await dumped(disk)
    assert sum(isinstance(item, DumpedRecord) for item in items) == 2001
    [defect] = [item for item in items if isinstance(item, DumpedDefect)]
    assert (defect.offset, defect.is_damage) == (at, True)
