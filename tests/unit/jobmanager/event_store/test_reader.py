"""Replay: what counts, what is the trace of a crash, and what is damage."""

from __future__ import annotations

import asyncio

import pytest

from holdover.v1.events_pb2 import JobEvent
from jobmanager.event_store import (
    FindingKind,
    LogDamaged,
    UnknownEventType,
    UnsupportedLogVersion,
    set_aside,
    settled,
    stream_log,
)
from jobmanager.event_store.records import SegmentId
from jobmanager.event_store.segments import list_segments, remove_segments_before
from simulator.world.storage import SimulatedStorage
from tests.unit.jobmanager.event_store.event_logs import (
    DIRECTORY,
    JOB_ID,
    frame,
    number_of,
    numbers,
    path,
    put,
    replayed,
    segment,
)


async def test_no_log_is_an_empty_log() -> None:
    found, findings = await replayed(SimulatedStorage())
    assert found == []
    assert findings.is_empty


async def test_a_torn_last_record_costs_that_record_only() -> None:
    """P01."""
    disk = SimulatedStorage()
    data, whole = segment(numbers(0, 5)), len(segment(numbers(0, 4)))
    for cut in range(whole, len(data)):
        await put(disk, data[:cut])
        found, findings = await replayed(disk)
        assert found == [0, 1, 2, 3]
        assert [finding.offset for finding in findings.findings] == [whole] * (cut > whole)


async def test_damage_before_the_end_names_file_and_offset() -> None:
    """P03."""
    disk = SimulatedStorage()
    data, at = segment(numbers(0, 5)), len(segment(numbers(0, 1)))
    for damaged in (
        data[: at + 15] + b"\xff" + data[at + 16 :],
        data[: at + 4] + (2**31 - 1).to_bytes(4, "little") + data[at + 8 :],
    ):
        await put(disk, damaged)
        with pytest.raises(LogDamaged, match=f"{path()}: at byte {at}") as error:
            await replayed(disk)
        assert error.value.offset == at


def log_of_three_leaders(size: int) -> list[tuple[int, int, bytes]]:
    """A log with a roll, changes of leader and a compaction: epoch, index, bytes of each segment.

    It holds the events 0 up to `size`, which is divisible by 6.
    """
    third, half, most = size // 3, size // 2, size * 2 // 3
    snapshot = segment(
        numbers(0, most), epoch=4, first=most + 1, replayed=most, durable=most, is_snapshot=True
    )
    after = 2 * most + 3
    tail = [frame(event, after + at, 4) for at, event in enumerate(numbers(most, size))]
    return [
        (1, 0, segment(numbers(0, third))),
        (1, 1, segment(numbers(third, half), index=1, first=third + 1, durable=third)),
        (2, 0, segment(numbers(half, most), epoch=2, first=half + 1, replayed=half)),
        (4, 0, snapshot + b"".join(tail)),
    ]


# Every byte of a small log; in a large one cuts that come to lie at every place of a frame.
@pytest.mark.parametrize(("size", "step"), [(72, 1), (420, 23)])
async def test_every_prefix_of_the_log_is_a_prefix_of_history(size: int, step: int) -> None:
    disk = SimulatedStorage()
    events_before = 0
    for epoch, index, data in log_of_three_leaders(size):
        await put(disk, b"", epoch, index)
        for cut in [*range(0, len(data), step), len(data)]:
            disk.overwrite(path(epoch, index), data[:cut])
            found, _ = await replayed(disk)
            assert found == list(range(len(found))), f"cut at {cut} of {path(epoch, index)}"
            assert len(found) in (events_before, events_before + 1), f"cut at {cut}"
            events_before = len(found)
    assert events_before == size


async def test_no_changed_byte_shortens_history_by_more_than_the_last_record() -> None:
    """Flip every byte, in a log that was compacted and in one that was not."""
    rolled = [
        (1, 0, segment(numbers(0, 4))),
        (1, 1, segment(numbers(4, 8), index=1, first=5, durable=4)),
    ]
    tail = b"".join(frame(event, 111 + at, 3) for at, event in enumerate(numbers(4, 8)))
    snapshot = segment(
        numbers(0, 4), epoch=3, first=105, replayed=104, durable=104, is_snapshot=True
    )
    for log in (rolled, [(3, 0, snapshot + tail)], [(3, 0, snapshot)]):
        disk = SimulatedStorage()
        for epoch, index, data in log:
            await put(disk, data, epoch, index)
        whole, _ = await replayed(disk)
        for epoch, index, data in log:
            for at in range(len(data)):
                disk.overwrite(
                    path(epoch, index), data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]
                )
                try:
                    found, findings = await replayed(disk)
                except LogDamaged as error:
                    assert error.path.startswith(DIRECTORY)
                    continue
                assert found == whole[:-1], f"byte {at} of {path(epoch, index)}"
                assert [one.kind for one in findings.findings] == [FindingKind.TORN_TAIL]
            disk.overwrite(path(epoch, index), data)


async def test_a_missing_segment_is_damage() -> None:
    disk = SimulatedStorage()
    await put(disk, segment(numbers(0, 3)), index=0)
    await put(disk, segment(numbers(6, 9), index=2, first=7), index=2)
    with pytest.raises(LogDamaged, match=r"begins with record 7.*end with record 3"):
        await replayed(disk)


async def test_a_log_without_its_beginning_is_damage() -> None:
    disk = SimulatedStorage()
    await put(disk, segment(numbers(3, 6), index=1, first=4), index=1)
    with pytest.raises(LogDamaged, match="a segment is missing"):
        await replayed(disk)


async def test_a_torn_tail_that_the_same_leader_wrote_past_is_damage() -> None:
    disk = SimulatedStorage()
    await put(disk, segment(numbers(0, 3))[:-1])
    await put(disk, segment(numbers(2, 5), index=1, first=3), index=1)
    with pytest.raises(LogDamaged, match="cut off, though"):
        await replayed(disk)


async def test_a_torn_tail_of_an_older_leader_is_normal() -> None:
    disk = SimulatedStorage()
    await put(disk, segment(numbers(0, 3))[:-1])
    await put(disk, segment(numbers(2, 5), epoch=2, first=3, replayed=2), epoch=2)
    found, findings = await replayed(disk)
    assert found == [0, 1, 2, 3, 4]
    assert [finding.kind for finding in findings.findings] == [FindingKind.TORN_TAIL]
    assert (findings.last_sequence, findings.last_epoch) == (5, 2)


async def test_what_an_older_leader_appends_late_is_ignored() -> None:
    """Records, segments and even snapshots of a leader that does not know it was replaced."""
    disk = SimulatedStorage()
    await put(disk, segment(numbers(0, 5)))
    await put(disk, segment(numbers(70, 80), index=1, first=6), index=1)
    late_snapshot = segment(numbers(90, 99), index=2, first=20, durable=15, is_snapshot=True)
    await put(disk, late_snapshot, index=2)
    await put(disk, late_snapshot[:-1].replace(b"-000002", b"-000003"), index=3)
    await put(disk, segment(numbers(3, 6), epoch=2, first=4, replayed=3), epoch=2)
    found, findings = await replayed(disk)
    assert found == [0, 1, 2, 3, 4, 5]
    kinds = {finding.kind for finding in findings.findings}
    assert kinds == {FindingKind.FOREIGN_RECORDS}


async def test_a_snapshot_supersedes_all_before_it_even_damage() -> None:
    disk = SimulatedStorage()
    await put(disk, b"rubbish" + segment(numbers(70, 80)))
    snapshot = segment(numbers(0, 3), epoch=2, first=40, is_snapshot=True)
    await put(disk, snapshot + frame(numbers(3, 4)[0], 45, 2), epoch=2)
    found, findings = await replayed(disk)
    assert found == [0, 1, 2, 3]
    assert findings.began_with_snapshot
    assert findings.last_sequence == 45


async def test_an_incomplete_snapshot_leaves_the_log_before_it_in_force() -> None:
    disk = SimulatedStorage()
    await put(disk, segment(numbers(0, 3)))
    snapshot = segment(numbers(0, 3), index=1, first=9, durable=3, is_snapshot=True)
    await put(disk, snapshot[:-3], index=1)
    found, findings = await replayed(disk)
    assert found == [0, 1, 2]
    assert [one.kind for one in findings.findings] == [FindingKind.INCOMPLETE_SNAPSHOT]


async def test_an_incomplete_snapshot_without_the_log_before_it_is_damage() -> None:
    disk = SimulatedStorage()
    snapshot = segment(numbers(0, 3), index=1, first=9, durable=3, is_snapshot=True)
    await put(disk, snapshot[:-3], index=1)
    with pytest.raises(LogDamaged, match="record 3 was durable"):
        await replayed(disk)


async def test_an_unknown_event_type_is_named_and_nothing_is_touched() -> None:
    """P07."""
    disk = SimulatedStorage()
    unknown = JobEvent.FromString(b"\xba\x3e\x00")  # field 999
    data = segment([*numbers(0, 2), unknown, *numbers(2, 4)])
    await put(disk, data)
    for _ in range(3):
        with pytest.raises(UnknownEventType, match="event type 999 is unknown"):
            await replayed(disk)
    assert await disk.read(path()) == data


async def test_a_newer_format_is_refused_by_name_and_nothing_is_touched() -> None:
    """P07."""
    import google_crc32c

    disk = SimulatedStorage()
    preamble = b"HOLDOVER\x07\x00\x04\x00"
    data = preamble + google_crc32c.value(preamble).to_bytes(4, "little") + b"what ever"
    await put(disk, data)
    with pytest.raises(UnsupportedLogVersion, match=r"version 7 is not supported, only up to 1"):
        await replayed(disk)
    assert await disk.read(path()) == data


async def test_a_segment_of_another_job_or_place_is_damage() -> None:
    disk = SimulatedStorage()
    await put(disk, segment(numbers(0, 1), job_id="job-2"))
    with pytest.raises(LogDamaged, match="belongs to job 'job-2'"):
        await replayed(disk)
    await put(disk, segment(numbers(0, 1), index=5))
    with pytest.raises(LogDamaged, match="says that this is segment"):
        await replayed(disk)


async def test_a_log_set_aside_is_kept_and_no_longer_replayed() -> None:
    disk = SimulatedStorage()
    data = segment(numbers(0, 3))
    await put(disk, data)
    assert await set_aside(disk, DIRECTORY) == [path() + ".damaged"]
    disk.power_loss()
    disk.power_on()
    found, _ = await replayed(disk)
    assert found == []
    assert await disk.read(path() + ".damaged") == data


async def test_reading_for_people_shows_snapshot_marks_from_a_sequence_on() -> None:
    disk = SimulatedStorage()
    await put(disk, segment(numbers(0, 2), first=10, is_snapshot=True))
    pages = stream_log(disk, DIRECTORY, job_id=JOB_ID, from_sequence=12)
    records = [record async for page in pages for record in page]
    kinds = [record.event.WhichOneof("kind") for record in records]
    assert kinds == ["vertex_reset", "snapshot_end"]


async def test_an_empty_segment_is_the_trace_of_a_crash_at_its_creation() -> None:
    """P04: the name may be durable before the content."""
    disk = SimulatedStorage()
    await put(disk, segment(numbers(0, 2)))
    await put(disk, bytes(200), index=1)
    found, findings = await replayed(disk)
    assert found == [0, 1]
    assert [one.kind for one in findings.findings] == [FindingKind.TORN_TAIL]


class CompactedMeanwhile(SimulatedStorage):
    """At the n-th read somebody rewrites the log: the segments that were listed are gone."""

    def __init__(self, at_read: int) -> None:
        super().__init__()
        self.reads = 0
        self.at_read = at_read

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        self.reads += 1
        if self.reads == self.at_read:
            index = SegmentId.of_file_name((await list_segments(self, DIRECTORY))[-1].path[-27:])
            assert index is not None
            snapshot = segment(
                numbers(0, 9), index=index.index + 1, first=20, durable=9, is_snapshot=True
            )
            await put(self, snapshot, index=index.index + 1)
            await remove_segments_before(self, DIRECTORY, SegmentId(1, index.index + 1))
        return await super().read(path, offset, length)


@pytest.mark.parametrize("at_read", range(1, 12))
async def test_a_log_that_is_compacted_while_it_is_read_is_read_anew(at_read: int) -> None:
    """A deposed leader may do it while its successor replays."""
    disk = CompactedMeanwhile(at_read)
    for index in range(3):
        events = numbers(3 * index, 3 * index + 3)
        await put(disk, segment(events, index=index, first=3 * index + 1), index=index)

    async def read() -> list[int]:
        return (await replayed(disk))[0]

    assert await settled(disk, DIRECTORY, read) == list(range(9))


async def test_a_log_that_stays_damaged_is_not_read_again_and_again() -> None:
    disk = SimulatedStorage()
    await put(disk, segment(numbers(3, 6), index=1, first=4), index=1)
    reads: list[int] = []

    async def read() -> None:
        reads.append(1)
        await replayed(disk)

    with pytest.raises(LogDamaged):
        await settled(disk, DIRECTORY, read)
    assert reads == [1]


async def test_a_long_log_is_read_some_records_at_a_time() -> None:
    """Whoever reads slowly holds the reading up, and whoever stops ends it."""
    disk = SimulatedStorage()
    await put(disk, segment(numbers(0, 20_000)))
    pages = stream_log(disk, DIRECTORY)
    first = await anext(pages)
    await asyncio.sleep(0.01)
    assert len(first) < 3_000
    rest = [number_of(record) async for page in pages for record in page]
    assert rest == list(range(len(first), 20_000))
    stopped = stream_log(disk, DIRECTORY)
    await anext(stopped)
    await stopped.aclose()


async def test_a_log_that_is_damaged_further_on_is_read_up_to_there() -> None:
    disk = SimulatedStorage()
    data = segment(numbers(0, 20_000))
    at = len(segment(numbers(0, 15_000)))
    await put(disk, data[: at + 15] + b"\xff" + data[at + 16 :])
    found: list[int] = []

    async def read() -> None:
        async for page in stream_log(disk, DIRECTORY):
            found.extend(number_of(record) for record in page)

    with pytest.raises(LogDamaged, match=f"at byte {at}"):
        await read()
    assert found == list(range(len(found)))
    assert len(found) > 10_000


async def test_a_log_that_is_compacted_while_somebody_reads_it_goes_on_with_the_snapshot() -> None:
    disk = CompactedMeanwhile(7)
    for index in range(3):
        events = numbers(3 * index, 3 * index + 3)
        await put(disk, segment(events, index=index, first=3 * index + 1), index=index)
    pages = stream_log(disk, DIRECTORY)
    sequences = [record.sequence async for page in pages for record in page]
    assert sequences == sorted(set(sequences))
    assert sequences[-11:] == list(range(20, 31))
