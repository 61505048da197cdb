"""A job's event log at one moment, copied out of the world, and what reading a copy gives.

The copy holds the bytes that a process would read now, synced or not. It is read by the services'
own reader and applied to the services' own execution graph.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import cast

from holdover.runtime import Disk, Entry, FileStat
from holdover.v1.events_pb2 import JobEventRecord
from holdover.v1.job_pb2 import JobGraph
from jobmanager.event_store import LogUnreadable, replay
from jobmanager.event_store.records import (
    FRAME_OVERHEAD_BYTES,
    FrameDecoder,
    HeaderDefect,
    SegmentHeader,
    decode_header,
)
from jobmanager.event_store.segments import list_segments
from jobmanager.scheduler.execution_graph import ExecutionGraph, ReplayError
from jobmanager.scheduler.states import InvalidTransition
from simulator.invariants.view import WrittenLog, at_once


class Unreadable(Exception):
    """A copy cannot be replayed; the text says why."""


@dataclass(slots=True)
class CopiedLog:
    """Segments of a log by path. A disk as far as the reader of the log needs one."""

    directory: str
    segments: dict[str, bytes] = field(default_factory=dict)

    async def stat(self, path: str) -> FileStat | None:
        """See `Disk.stat`."""
        if path == self.directory:
            return FileStat(path, 0, is_directory=True)
        data = self.segments.get(path)
        return FileStat(path, len(data)) if data is not None else None

    async def list_directory(self, path: str) -> list[Entry]:
        """See `Disk.list_directory`."""
        names = sorted(posixpath.basename(segment) for segment in self.segments)
        return [Entry(name, False, len(self.segments[f"{path}/{name}"])) for name in names]

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `Disk.read`."""
        data = self.segments[path]
        return data[offset:] if length is None else data[offset : offset + length]

    @property
    def bytes(self) -> int:
        """Of all segments."""
        return sum(len(data) for data in self.segments.values())

    @property
    def last(self) -> str | None:
        """Path of the newest segment."""
        return max(self.segments, default=None)

    def without(self, path: str) -> CopiedLog:
        """The same log before one of its segments was begun."""
        return CopiedLog(self.directory, {p: d for p, d in self.segments.items() if p < path})

    def cut(self, path: str, size_bytes: int) -> CopiedLog:
        """The same log up to a byte of one segment: what follows is not there."""
        kept = {p: data for p, data in self.segments.items() if p <= path}
        return CopiedLog(self.directory, {**kept, path: kept[path][:size_bytes]})


def copy_log(disk: Disk, directory: str) -> CopiedLog:
    """Copy a log's segments from a storage."""
    copied = CopiedLog(directory)
    for segment in at_once(list_segments(disk, directory)):
        copied.segments[segment.path] = at_once(disk.read(segment.path))
    return copied


@dataclass(slots=True)
class Replayed:
    """What reading a log gave."""

    graph: ExecutionGraph
    #: By leader epoch and sequence, as they stand in the log.
    records: dict[tuple[int, int], bytes] = field(default_factory=dict)
    last_sequence: int = 0


def replay_copy(log: CopiedLog, job: JobGraph) -> Replayed:
    """Replay a copy into a fresh graph. Raises `Unreadable`."""
    replayed = Replayed(ExecutionGraph(job))

    def on_record(record: JobEventRecord) -> None:
        key = (record.leader_epoch, record.sequence)
        replayed.records[key] = record.SerializeToString(deterministic=True)
        replayed.graph.apply(record.event)

    reading = replay(cast(Disk, log), log.directory, on_record, job_id=job.job_id)
    try:
        replayed.last_sequence = at_once(reading).last_sequence
    except (LogUnreadable, ReplayError, InvalidTransition) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    return replayed


def add_unwritten(replayed: Replayed, log: WrittenLog) -> None:
    """Go on with the events that the writer still has in memory. Raises `Unreadable`."""
    decoder = FrameDecoder(0)
    for frame in decoder.feed(b"".join(log.unwritten or ())):
        record = JobEventRecord.FromString(frame.payload)
        try:
            replayed.graph.apply(record.event)
        except (ReplayError, InvalidTransition) as error:
            raise Unreadable(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """Where things lie in a segment."""

    header: SegmentHeader
    #: Offsets at which its records begin, and the end of the last sound one.
    boundaries: tuple[int, ...]
    #: Where a cut may first be: behind the snapshot that it begins with, or 0.
    snapshot_end: int


def layout_of(data: bytes) -> SegmentLayout | None:
    """The layout of a segment's sound part; None when even its header is cut off."""
    try:
        header, header_bytes = decode_header(data)
    except HeaderDefect:
        return None
    decoder = FrameDecoder(header_bytes)
    boundaries, snapshot_end = [header_bytes], 0
    for frame in decoder.feed(data[header_bytes:]):
        end = frame.offset + FRAME_OVERHEAD_BYTES + len(frame.payload)
        boundaries.append(end)
        if JobEventRecord.FromString(frame.payload).event.HasField("snapshot_end"):
            snapshot_end = end
    return SegmentLayout(header, tuple(boundaries), snapshot_end)
