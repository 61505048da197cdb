"""Replay of a job's event log (behaviour: docs/event-log.md; cases P01, P03, P07).

Two passes. The first looks at the headers, and at snapshots from the newest back to the first
complete one, which is where history begins. The second hands out the records from there, chunk by
chunk, and checks every byte on the way.

A defect with nothing sound behind it, at the end of what a leader has written, is the trace of a
crash and becomes a finding. Any other raises `LogDamaged`: history is never silently shortened.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from holdover.runtime import Disk
from holdover.v1.events_pb2 import JobEventRecord
from jobmanager.event_store.errors import (
    LogDamaged,
    LogUnreadable,
    UnknownEventType,
    UnsupportedLogVersion,
)
from jobmanager.event_store.findings import FindingKind, LogFinding, LogFindings
from jobmanager.event_store.records import (
    FORMAT_VERSION,
    HEADER_BYTES_MAX,
    Defect,
    Frame,
    FrameDecoder,
    HeaderDefect,
    NewerFormat,
    SegmentHeader,
    decode_header,
)
from jobmanager.event_store.segments import SegmentFile, list_segments

T = TypeVar("T")
OnRecord = Callable[[JobEventRecord], None]

# Small enough that decoding one chunk does not hold up the event loop.
_CHUNK_BYTES: Final = 64 * 1024
# One that tells of a thousand subtasks, for example.
_LARGE_RECORD_BYTES: Final = 1536
_READ_TRIES: Final = 10
_MARKERS: Final = frozenset({"snapshot_begin", "snapshot_end"})


async def replay(
    disk: Disk,
    directory: str,
    on_record: OnRecord,
    *,
    job_id: str | None = None,
    with_markers: bool = False,
    after_chunk: Callable[[], Awaitable[None]] | None = None,
    pause: Callable[[], Awaitable[None]] | None = None,
) -> LogFindings:
    """Hand out every record that counts, oldest first, to `on_record`; return what was seen.

    `after_chunk` is awaited after each 64 KiB or so of records: back pressure. `pause` is awaited
    after each record that tells of very many subtasks.

    A missing or empty directory is an empty log. The marks around a snapshot are handed out only
    `with_markers`. When `job_id` is given, a segment of another job is damage.

    Raises `LogDamaged`, `UnknownEventType` or `UnsupportedLogVersion`, naming file and offset;
    records before that place were handed out already and must be thrown away. OSErrors pass
    through, and so does what `on_record` raises.
    """
    segments = [await _look_at(disk, file, job_id) for file in await list_segments(disk, directory)]
    start = await _place_history_begins(disk, segments)
    pass_two = _Replay(
        disk,
        on_record,
        with_markers,
        begins_with_snapshot=start is not None,
        after_chunk=after_chunk,
        pause=pause,
    )
    await pass_two.run(segments[start or 0 :])
    return pass_two.findings(len(segments))


async def stream_log(
    disk: Disk, directory: str, *, job_id: str | None = None, from_sequence: int = 0
) -> AsyncGenerator[list[JobEventRecord], None]:
    """The records from `from_sequence` on, snapshot marks included, for people to look at: some at
    a time, so that memory does not depend on the log's length.

    The log may be written, and compacted, meanwhile: then it goes on with what follows the last
    record that was handed out. Raises as `replay`.
    """
    pages: asyncio.Queue[list[JobEventRecord] | Exception | None] = asyncio.Queue(maxsize=1)
    page: list[JobEventRecord] = []
    handed_out = from_sequence - 1

    def keep(record: JobEventRecord) -> None:
        if record.sequence > handed_out:
            page.append(record)

    async def hand_out() -> None:
        nonlocal page, handed_out
        if page:
            handed_out = page[-1].sequence
            full, page = page, []
            await pages.put(full)

    async def read() -> None:
        page.clear()
        await replay(disk, directory, keep, job_id=job_id, with_markers=True, after_chunk=hand_out)

    async def read_to_the_end() -> None:
        end: Exception | None = None
        try:
            await settled(disk, directory, read)
        except Exception as error:  # noqa: BLE001  whatever it is, it is raised where pages are read
            end = error
        await pages.put(end)

    reading = asyncio.ensure_future(read_to_the_end())
    try:
        while isinstance(full := await pages.get(), list):
            yield full
        if full is not None:
            raise full
    finally:
        reading.cancel()


async def settled(disk: Disk, directory: str, read: Callable[[], Awaitable[T]]) -> T:
    """The outcome of reading the log, which may be compacted meanwhile: by its leader, or by one
    that was deposed and does not know it yet.

    What `read` raises counts only if the log still has the segments that it had before; otherwise
    it reads anew, a few times at most.
    """
    for attempt in range(1, _READ_TRIES + 1):
        before = await list_segments(disk, directory)
        try:
            return await read()
        except (FileNotFoundError, LogDamaged):
            after = await list_segments(disk, directory)
            same = [file.path for file in before] == [file.path for file in after]
            if same or attempt == _READ_TRIES:
                raise
    raise AssertionError("not reached")


@dataclass(frozen=True, slots=True)
class _Segment:
    """A segment after the first look.

    It contributes nothing when there is a `trace`, and `error` is raised if replay gets to it,
    which it does not when a later snapshot supersedes the segment.
    """

    file: SegmentFile
    header: SegmentHeader | None
    header_bytes: int
    trace: LogFinding | None = None
    error: LogUnreadable | None = None

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def epoch(self) -> int:
        return self.file.segment_id.leader_epoch


async def _look_at(disk: Disk, file: SegmentFile, job_id: str | None) -> _Segment:
    """Read a segment's header."""
    head = await disk.read(file.path, 0, HEADER_BYTES_MAX)
    try:
        header, size = decode_header(head)
    except NewerFormat as newer:
        unsupported = UnsupportedLogVersion(file.path, newer.version, FORMAT_VERSION)
        return _Segment(file, None, 0, error=unsupported)
    except HeaderDefect as defect:
        decoder = FrameDecoder(0, Defect(0, str(defect)))
        await _feed(disk, file.path, 0, decoder, lambda _: None)
        try:
            return _Segment(file, None, 0, trace=_torn_or_damaged(file.path, decoder))
        except LogDamaged as damage:
            return _Segment(file, None, 0, error=damage)
    reason = None
    if header.segment_id != file.segment_id:
        reason = f"the header says that this is segment {header.segment_id.file_name}"
    elif job_id is not None and header.job_id != job_id:
        reason = f"the segment belongs to job {header.job_id!r}"
    if reason is not None:
        return _Segment(file, None, 0, error=LogDamaged(file.path, 0, reason))
    return _Segment(file, header, size)


async def _place_history_begins(disk: Disk, segments: list[_Segment]) -> int | None:
    """Position of the newest complete snapshot, None without one.

    Marks snapshots void that are incomplete, or that an older leader wrote too late.
    """
    for at in range(len(segments) - 1, -1, -1):
        segment = segments[at]
        if segment.header is None or not segment.header.is_snapshot:
            continue
        cut = _cut(segments[at + 1 :], segment.epoch)
        if cut is not None and segment.header.first_sequence > cut:
            segments[at] = replace(segment, trace=_foreign(segment.path, 0))
            continue
        trace = await _incomplete_snapshot(disk, segment)
        if trace is None:
            return at
        segments[at] = replace(segment, trace=trace)
    return None


async def _incomplete_snapshot(disk: Disk, segment: _Segment) -> LogFinding | None:
    """Why the segment's snapshot does not count; None when it is complete."""
    frames = 0
    expected: int | None = None
    is_complete = False

    def count(frame: Frame) -> None:
        nonlocal frames, expected, is_complete
        if frames == 0:
            record, kind = _parsed(segment, frame)
            if kind != "snapshot_begin":
                raise LogDamaged(segment.path, frame.offset, "the snapshot has no beginning")
            expected = record.event.snapshot_begin.records
        elif expected is not None and frames == expected + 1:
            record, _ = _parsed(segment, frame)
            if record.event.snapshot_end.records != expected:
                raise LogDamaged(segment.path, frame.offset, "the snapshot does not end here")
            is_complete = True
        frames += 1

    decoder = FrameDecoder(segment.header_bytes)
    await _feed(disk, segment.path, segment.header_bytes, decoder, count)
    if is_complete:
        return None
    offset = decoder.defect.offset if decoder.defect else segment.file.bytes
    if decoder.defect is not None:
        _torn_or_damaged(segment.path, decoder)
    return LogFinding(
        FindingKind.INCOMPLETE_SNAPSHOT,
        segment.path,
        offset,
        f"it ends after {frames} records; the log before it counts",
    )


async def _feed(
    disk: Disk,
    path: str,
    offset: int,
    decoder: FrameDecoder,
    on_frame: Callable[[Frame], None],
    after_chunk: Callable[[], Awaitable[None]] | None = None,
    pause: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run a segment's bytes from `offset` to its end through the decoder."""
    while chunk := await disk.read(path, offset, _CHUNK_BYTES):
        offset += len(chunk)
        for frame in decoder.feed(chunk):
            on_frame(frame)
            if pause is not None and len(frame.payload) >= _LARGE_RECORD_BYTES:
                await pause()
        if after_chunk is not None:
            await after_chunk()
    decoder.finish()


def _torn_or_damaged(path: str, decoder: FrameDecoder) -> LogFinding:
    """The finding for a defect that nothing sound follows; raises `LogDamaged` otherwise."""
    defect = decoder.defect
    assert defect is not None
    if decoder.sound_after is not None:
        raise LogDamaged(
            path,
            defect.offset,
            f"{defect.reason}, though a sound record follows at byte {decoder.sound_after}",
        )
    return LogFinding(FindingKind.TORN_TAIL, path, defect.offset, defect.reason)


def _parsed(segment: _Segment, frame: Frame) -> tuple[JobEventRecord, str]:
    """The record and the kind of its event."""
    try:
        record = JobEventRecord.FromString(frame.payload)
    except DecodeError:
        raise LogDamaged(segment.path, frame.offset, "the record is no JobEventRecord") from None
    if record.leader_epoch != segment.epoch:
        raise LogDamaged(
            segment.path, frame.offset, f"the record is of leader epoch {record.leader_epoch}"
        )
    kind: str | None = record.event.WhichOneof("kind")
    if kind is None:
        unknown = UnknownFieldSet(record.event)
        numbers = [str(unknown[at].field_number) for at in range(len(unknown))]
        raise UnknownEventType(
            segment.path,
            frame.offset,
            f"the event type {', '.join(numbers) or 'of the record'} is unknown to this version",
        )
    return record, kind


@dataclass(slots=True)
class _Replay:
    """The second pass."""

    disk: Disk
    on_record: OnRecord
    with_markers: bool
    begins_with_snapshot: bool
    after_chunk: Callable[[], Awaitable[None]] | None = None
    pause: Callable[[], Awaitable[None]] | None = None
    last_sequence: int = 0
    last_epoch: int = 0
    last_wall_ms: int = 0
    events: int = 0
    traces: list[LogFinding] = field(default_factory=list)

    def findings(self, segments: int) -> LogFindings:
        return LogFindings(
            self.last_sequence,
            self.last_epoch,
            self.last_wall_ms,
            self.events,
            segments,
            self.begins_with_snapshot,
            tuple(self.traces),
        )

    async def run(self, segments: list[_Segment]) -> None:
        """Replay segments, of which the first one begins history."""
        torn: LogFinding | None = None
        epoch = 0
        for at, segment in enumerate(segments):
            if segment.epoch != epoch:
                epoch, torn = segment.epoch, None
            cut = _cut(segments[at + 1 :], segment.epoch)
            if self._is_foreign(segment, cut):
                self.traces.append(_foreign(segment.path, 0))
                continue
            if segment.error is not None:
                raise segment.error
            if segment.trace is not None:
                self._check_nothing_was_durable(segment, segment.trace)
                self.traces.append(segment.trace)
                torn = torn or segment.trace
                continue
            assert segment.header is not None
            if torn is not None:
                raise LogDamaged(
                    torn.path, torn.offset, f"{torn.text}, though {segment.path} follows"
                )
            self._check_continues(segment.path, segment.header, is_first=at == 0)
            torn = await self._replay_segment(segment, cut)

    def _is_foreign(self, segment: _Segment, cut: int | None) -> bool:
        """Whether the whole segment was written after a newer leader had replayed the log."""
        if cut is None or self.last_sequence < cut:
            return False
        if segment.header is None:
            return segment.error is not None
        return segment.header.first_sequence > cut

    def _check_nothing_was_durable(self, segment: _Segment, trace: LogFinding) -> None:
        """An incomplete snapshot never replaced anything, so all before it must be there."""
        durable = segment.header.durable_sequence if segment.header is not None else 0
        if self.last_sequence < durable:
            raise LogDamaged(
                segment.path,
                trace.offset,
                f"{trace.text}, but that ends with record {self.last_sequence} and record"
                f" {durable} was durable",
            )

    def _check_continues(self, path: str, header: SegmentHeader, *, is_first: bool) -> None:
        """Whether the segment continues what was replayed, without a hole or an overlap."""
        if is_first and self.begins_with_snapshot:
            self.last_sequence = header.first_sequence - 1
        elif header.first_sequence != self.last_sequence + 1:
            raise LogDamaged(
                path,
                0,
                f"it begins with record {header.first_sequence}, but the segments before it end"
                f" with record {self.last_sequence}: a segment is missing or was cut",
            )

    async def _replay_segment(self, segment: _Segment, cut: int | None) -> LogFinding | None:
        """Hand out the segment's records up to sequence `cut`; return its torn tail, if any."""
        foreign = 0

        def take(frame: Frame) -> None:
            nonlocal foreign
            if cut is not None and self.last_sequence >= cut:
                if foreign == 0:
                    self.traces.append(_foreign(segment.path, frame.offset))
                foreign += 1
                return
            self._take(segment, frame)

        decoder = FrameDecoder(segment.header_bytes)
        start = segment.header_bytes
        await _feed(self.disk, segment.path, start, decoder, take, self.after_chunk, self.pause)
        if decoder.defect is None:
            return None
        if cut is not None and self.last_sequence >= cut and decoder.sound_after is not None:
            if foreign == 0:
                self.traces.append(_foreign(segment.path, decoder.defect.offset))
            return None
        torn = _torn_or_damaged(segment.path, decoder)
        self.traces.append(torn)
        return torn

    def _take(self, segment: _Segment, frame: Frame) -> None:
        record, kind = _parsed(segment, frame)
        if record.sequence != self.last_sequence + 1:
            raise LogDamaged(
                segment.path,
                frame.offset,
                f"record {record.sequence} follows record {self.last_sequence}",
            )
        self.last_sequence = record.sequence
        self.last_epoch = record.leader_epoch
        self.last_wall_ms = record.wall_ms
        is_marker = kind in _MARKERS
        if not is_marker:
            self.events += 1
        if self.with_markers or not is_marker:
            self.on_record(record)


def _foreign(path: str, offset: int) -> LogFinding:
    text = "appended after a newer leader had replayed the log; ignored"
    return LogFinding(FindingKind.FOREIGN_RECORDS, path, offset, text)


def _cut(later: list[_Segment], epoch: int) -> int | None:
    """The last sequence of `epoch` that counts: what the next leaders had replayed at most."""
    replayed = [
        segment.header.replayed_sequence
        for segment in later
        if segment.epoch > epoch and segment.header is not None and segment.trace is None
    ]
    return min(replayed) if replayed else None
