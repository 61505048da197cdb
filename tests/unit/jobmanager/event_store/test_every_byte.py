"""A real job's log, cut at every byte and with every byte changed.

The job's source finishes and is reset again and again: some 2,000 events whose state stays small.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from holdover.runtime import AppendFile
from holdover.v1.events_pb2 import JobEvent, JobEventRecord, JobStateChanged
from jobmanager.event_store import (
    EventWriterSettings,
    FindingKind,
    JobEventWriter,
    LogDamaged,
    LogFindings,
    replay,
)
from jobmanager.event_store.records import FrameDecoder, decode_header
from jobmanager.recovery import replay_job
from jobmanager.scheduler.execution_graph import ExecutionGraph
from simulator.world.storage import SimulatedStorage
from tests.unit.jobmanager.event_store.event_logs import DIRECTORY, LoopClock, path, segment
from tests.unit.jobmanager.test_large_jobs import history, wide

JOB_ID = "job"
SUBTASKS = 6
ROUNDS = 285
FRAME_HEAD = struct.Struct("<4sII")

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run what never waits, such as all that a storage in memory does, without an event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits")


def boundaries(data: bytes, start: int) -> list[int]:
    """Where each record ends, `start` first, by the lengths that stand there."""
    ends = [start]
    while ends[-1] < len(data):
        _, length, _ = FRAME_HEAD.unpack_from(data, ends[-1])
        ends.append(ends[-1] + FRAME_HEAD.size + length)
    return ends


def header_bytes(data: bytes) -> int:
    return decode_header(data)[1]


def state_of(graph: ExecutionGraph, changes: Sequence[JobStateChanged]) -> bytes:
    """All that is durable of a job's state."""
    return b"\n".join(event.SerializeToString() for event in graph.snapshot_events(changes))


class ExpectedStates:
    """What the state must be after each number of events: they are applied one by one."""

    def __init__(self, events: Sequence[JobEvent]) -> None:
        graph = ExecutionGraph(wide(SUBTASKS))
        changes: list[JobStateChanged] = []
        self._states = [state_of(graph, changes)]
        for event in events:
            graph.apply(event)
            if event.HasField("job_state_changed"):
                changes.append(JobStateChanged(state=event.job_state_changed.state, **SEEN_BY))
            self._states.append(state_of(graph, changes))

    def after(self, events: int) -> bytes:
        return self._states[events]


SEEN_BY = {"leader_epoch": 1, "wall_ms": LoopClock().wall_ms()}


def recovered(disk: SimulatedStorage) -> tuple[bytes, LogFindings]:
    """The state that a new leader reads from the log, and what it says of it."""
    replayed = at_once(replay_job(disk, DIRECTORY, wide(SUBTASKS)))
    return state_of(replayed.graph, replayed.history), replayed.findings


def test_a_log_of_two_thousand_events_is_cut_at_every_byte() -> None:
    """P01: a cut is read as the whole records before it. Replay hands the decoder a file chunk by
    chunk, so the records before a cut are decoded once, and each cut goes on from there."""
    events = history(SUBTASKS, ROUNDS)
    assert len(events) > 1_990
    data = segment(events, job_id=JOB_ID)
    start = header_bytes(data)
    ends = boundaries(data, start)
    whole = [frame.payload for frame in FrameDecoder(start).feed(data[start:])]
    assert [JobEventRecord.FromString(payload).event for payload in whole] == events
    for number, (begin, end) in enumerate(itertools.pairwise(ends)):
        for cut in range(begin, end):
            decoder = FrameDecoder(begin)
            assert list(decoder.feed(data[begin:cut])) == []
            decoder.finish()
            assert decoder.sound_after is None
            assert (decoder.defect is None) == (cut == begin), f"cut at {cut} in record {number}"
            assert decoder.defect is None or decoder.defect.offset == begin
        [found] = FrameDecoder(begin).feed(data[begin:end])
        assert found.payload == whole[number]


def test_what_is_recovered_from_a_cut_log_is_the_replay_of_its_prefix() -> None:
    """P01: recovery itself, on cuts that come to lie at every place of a record."""
    events = history(SUBTASKS, ROUNDS)
    expected = ExpectedStates([seen_by_the_first_leader(event) for event in events])
    data = segment([seen_by_the_first_leader(event) for event in events], job_id=JOB_ID)
    ends = boundaries(data, header_bytes(data))
    disk = SimulatedStorage()
    at_once(disk.make_directories(DIRECTORY))
    at_once(disk.publish(path(), b""))
    for cut in [*range(header_bytes(data)), *range(header_bytes(data), len(data), 2_503)]:
        disk.overwrite(path(), data[:cut])
        state, findings = recovered(disk)
        count = sum(end <= cut for end in ends[1:])
        assert state == expected.after(count), f"cut at {cut}"
        torn = cut not in ends
        assert [one.kind for one in findings.findings] == [FindingKind.TORN_TAIL] * torn


def seen_by_the_first_leader(event: JobEvent) -> JobEvent:
    """Changes of the job's state say when they were seen, as a snapshot repeats them."""
    if not event.HasField("job_state_changed"):
        return event
    state = event.job_state_changed.state
    return JobEvent(job_state_changed=JobStateChanged(state=state, **SEEN_BY))


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes that were appended to a file; None when the file was removed."""

    path: str
    data: bytes | None


class RecordingStorage(SimulatedStorage):
    """Keeps what happens to the log's files, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Written] = []

    async def open_append(self, path: str) -> AppendFile:
        file = await super().open_append(path)
        write = file.write

        async def kept(data: bytes) -> None:
            await write(data)
            self.steps.append(Written(path, data))

        file.write = kept  # type: ignore[method-assign]
        return file

    async def remove(self, path: str, missing_ok: bool = False) -> None:
        await super().remove(path, missing_ok)
        self.steps.append(Written(path, None))


async def lived(events: Sequence[JobEvent]) -> list[Written]:
    """What a leader does to the storage that records the events, and compacts all the time."""
    disk = RecordingStorage()
    graph = ExecutionGraph(wide(SUBTASKS))
    changes: list[JobStateChanged] = []
    writer = JobEventWriter(
        disk,
        LoopClock(),
        DIRECTORY,
        job_id=JOB_ID,
        leader_epoch=1,
        snapshot_source=lambda: graph.snapshot_events(changes),
        settings=EventWriterSettings(segment_bytes_max=700, compaction_bytes=1_500),
    )
    writer.start()
    for number, event in enumerate(events):
        graph.apply(event)
        if event.HasField("job_state_changed"):
            changes.append(event.job_state_changed)
        writer.append(event)
        if number % 7 == 0:
            await writer.flush()
    await writer.flush()
    await writer.close()
    return disk.steps


def cuts(before: int, data: bytes) -> Iterator[int]:
    """Lengths of a file to which `data` is being appended: at both sides of every end of a record,
    and in the middle of every record."""
    ends = boundaries(data, 0 if before else header_bytes(data))
    yield from (before, before + ends[0] // 2)
    for begin, end in itertools.pairwise(ends):
        yield from (before + begin, before + (begin + end) // 2, before + end - 1)
    yield before + len(data)


def test_every_moment_of_a_log_that_is_compacted_again_and_again_is_a_prefix() -> None:
    """P01, P14: 2,000 events, rolled and compacted; whatever of the last write is on the disk, what
    is recovered is the state after some event, never an earlier one than the moment before."""
    events = [seen_by_the_first_leader(event) for event in history(SUBTASKS, ROUNDS)]
    expected = ExpectedStates(events)
    steps = asyncio.run(lived(events))
    assert sum(step.data is None for step in steps) > 50, "it was compacted"
    disk = SimulatedStorage()
    at_once(disk.make_directories(DIRECTORY))
    files: dict[str, bytes] = {}
    known = 0
    for step in steps:
        if step.data is None:
            at_once(disk.remove(step.path))
            assert recovered(disk)[0] == expected.after(known), f"{step.path} was removed"
            continue
        if step.path not in files:
            at_once(disk.publish(step.path, b""))
        before = files.get(step.path, b"")
        files[step.path] = before + step.data
        for cut in cuts(len(before), step.data):
            disk.overwrite(step.path, files[step.path][:cut])
            state, _ = recovered(disk)
            reached = next(
                (
                    at
                    for at in range(known, min(known + 60, len(events) + 1))
                    if state == expected.after(at)
                ),
                None,
            )
            assert reached is not None, f"{step.path} cut at {cut}: no state after event {known}"
            known = reached
    assert known == len(events)


def test_no_changed_byte_of_a_log_of_two_hundred_events_goes_unnoticed() -> None:
    """P03: the outcome is damage that names the file, or a torn tail where the byte is in the last
    record; the state is then that before this record."""
    events = history(SUBTASKS, 29)
    assert len(events) >= 200
    data = segment(events, job_id=JOB_ID)
    last = boundaries(data, header_bytes(data))[-2]
    disk = SimulatedStorage()
    at_once(disk.make_directories(DIRECTORY))
    at_once(disk.publish(path(), data))
    whole: list[JobEventRecord] = []
    at_once(replay(disk, DIRECTORY, whole.append, job_id=JOB_ID))
    assert len(whole) == len(events)
    damaged = bytearray(data)
    for at in range(len(data)):
        damaged[at] ^= 1 << at % 8
        disk.overwrite(path(), bytes(damaged))
        damaged[at] = data[at]
        found: list[JobEventRecord] = []
        try:
            findings = at_once(replay(disk, DIRECTORY, found.append, job_id=JOB_ID))
        except LogDamaged as damage:
            assert damage.path == path()
            assert damage.offset <= at < last
        else:
            assert at >= last, f"byte {at} went unnoticed"
            assert found == whole[:-1]
            assert [(one.kind, one.offset) for one in findings.findings] == [
                (FindingKind.TORN_TAIL, last)
            ]
