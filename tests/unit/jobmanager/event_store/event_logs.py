"""Logs of numbered events, made by hand or by a writer, for the tests of the event store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from holdover.runtime import Disk
from holdover.v1.events_pb2 import (
    ExecutionVertexReset,
    JobEvent,
    JobEventRecord,
    SnapshotBegin,
    SnapshotEnd,
)
from jobmanager.event_store import (
    EventStoreMode,
    EventStoreStatus,
    EventWriterSettings,
    JobEventWriter,
    LogFindings,
    replay,
)
from jobmanager.event_store.records import SegmentHeader, SegmentId, encode_frame, encode_header

DIRECTORY = "/log/events"
JOB_ID = "job-1"
# Nothing is flushed but on demand, and errors are retried at once.
PATIENT = EventWriterSettings(
    flush_interval_s=3600, retry_delay_first_s=0.001, retry_delay_max_s=0.01
)


def is_active(status: EventStoreStatus) -> bool:
    return status.mode is EventStoreMode.ACTIVE


def is_degraded(status: EventStoreStatus) -> bool:
    return status.mode is EventStoreMode.DEGRADED


class LoopClock:
    """The event loop's time."""

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return 1_700_000_000_000


def numbered(number: int) -> JobEvent:
    return JobEvent(vertex_reset=ExecutionVertexReset(vertex_id="v0", subtasks=[number]))


def number_of(record: JobEventRecord) -> int:
    return record.event.vertex_reset.subtasks[0]


def frame(event: JobEvent, sequence: int, epoch: int = 1) -> bytes:
    record = JobEventRecord(sequence=sequence, leader_epoch=epoch, wall_ms=5, event=event)
    return encode_frame(record.SerializeToString())


def segment(
    events: Sequence[JobEvent],
    *,
    epoch: int = 1,
    index: int = 0,
    first: int = 1,
    replayed: int = 0,
    durable: int = 0,
    is_snapshot: bool = False,
    job_id: str = JOB_ID,
) -> bytes:
    """The bytes of a segment; a snapshot gets its marks around `events`."""
    header = SegmentHeader(
        SegmentId(epoch, index), job_id, first, replayed, durable, is_snapshot=is_snapshot
    )
    if is_snapshot:
        count = len(events)
        events = [
            JobEvent(snapshot_begin=SnapshotBegin(records=count)),
            *events,
            JobEvent(snapshot_end=SnapshotEnd(records=count)),
        ]
    frames = [frame(event, first + at, epoch) for at, event in enumerate(events)]
    return encode_header(header) + b"".join(frames)


def numbers(start: int, end: int) -> list[JobEvent]:
    """Events `start` up to but not `end`."""
    return [numbered(number) for number in range(start, end)]


def path(epoch: int = 1, index: int = 0) -> str:
    return f"{DIRECTORY}/{SegmentId(epoch, index).file_name}"


async def put(disk: Disk, data: bytes, epoch: int = 1, index: int = 0) -> None:
    await disk.make_directories(DIRECTORY)
    await disk.publish(path(epoch, index), data)


async def replayed(disk: Disk) -> tuple[list[int], LogFindings]:
    """The numbers in the log, and what replay says of it."""
    found: list[int] = []
    findings = await replay(
        disk, DIRECTORY, lambda record: found.append(number_of(record)), job_id=JOB_ID
    )
    return found, findings


class Leader:
    """A JobMaster in miniature: its state is the list of the numbers it has recorded."""

    def __init__(
        self,
        disk: Disk,
        epoch: int = 1,
        state: Sequence[int] = (),
        replayed_sequence: int = 0,
        settings: EventWriterSettings | None = None,
        snapshot_source: Callable[[], Sequence[JobEvent]] | None = None,
    ) -> None:
        self.state = list(state)
        self.statuses: list[EventStoreStatus] = []
        self.changed = asyncio.Event()
        self.writer = JobEventWriter(
            disk,
            LoopClock(),
            DIRECTORY,
            job_id=JOB_ID,
            leader_epoch=epoch,
            snapshot_source=snapshot_source or self.snapshot,
            replayed_sequence=replayed_sequence,
            settings=settings,
            on_status=self._note,
        )
        self.writer.start()

    def snapshot(self) -> list[JobEvent]:
        return [numbered(number) for number in self.state]

    def record(self, number: int) -> None:
        self.state.append(number)
        self.writer.append(numbered(number))

    async def until(self, condition: Callable[[EventStoreStatus], bool]) -> EventStoreStatus:
        """Wait, within a bound, for a status that the condition accepts."""
        try:
            async with asyncio.timeout(60):
                while not condition(self.writer.status):
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise AssertionError(f"the status stayed {self.writer.status}") from None
        return self.writer.status

    def _note(self, status: EventStoreStatus) -> None:
        self.statuses.append(status)
        self.changed.set()


async def next_leader(
    disk: Disk, epoch: int, settings: EventWriterSettings | None = None
) -> Leader:
    """A leader that has replayed the log."""
    state, findings = await replayed(disk)
    return Leader(disk, epoch, state, findings.last_sequence, settings)
