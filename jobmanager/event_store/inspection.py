"""An event log on a disk, looked at by people: is it sound, and what is in it.

`verify_log` says what a leader would say that replays the log now, and what else is wrong with its
files, whether it matters or not. `dump_log` shows the records file by file, also those that do not
count, and goes on behind damage. Neither changes anything, and both hold one record in memory.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from google.protobuf.message import DecodeError

from holdover.runtime import Disk
from holdover.v1.events_pb2 import JobEventRecord
from jobmanager.event_store.errors import LogUnreadable, UnknownEventType, UnsupportedLogVersion
from jobmanager.event_store.findings import LogFindings
from jobmanager.event_store.reader import replay
from jobmanager.event_store.records import (
    HEADER_BYTES_MAX,
    Defect,
    Frame,
    FrameDecoder,
    HeaderDefect,
    NewerFormat,
    SegmentHeader,
    SegmentId,
    decode_header,
)
from jobmanager.event_store.segments import DAMAGED_SUFFIX

_CHUNK_BYTES: Final = 64 * 1024
_EVENTS_NAME: Final = "events"


class Severity(Enum):
    """What a finding means for the job."""

    #: The log cannot be replayed.
    DAMAGE = "damage"
    #: The log cannot be replayed by this version; the one that wrote it can.
    NEWER = "newer version"
    #: A crash or an older leader has left it, or a newer snapshot supersedes it; nothing is lost.
    TRACE = "trace"


@dataclass(frozen=True, slots=True)
class InspectionFinding:
    """Something that is not as it should be, or worth knowing: in which file, at which byte."""

    severity: Severity
    path: str
    offset: int
    text: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.severity.value}: {self.path} at byte {self.offset}: {self.text}"


@dataclass(frozen=True, slots=True)
class VerifiedLog:
    """Attributes:
    directory: the log's.
    replayed: what replay has seen; None when the log cannot be replayed.
    findings: by file and offset, those that forbid replay first.
    """

    directory: str
    replayed: LogFindings | None
    findings: tuple[InspectionFinding, ...]

    @property
    def is_sound(self) -> bool:
        """Whether a leader can recover the job from it."""
        return self.replayed is not None


@dataclass(frozen=True, slots=True)
class DumpedSegment:
    """A segment begins. `header` is None when it cannot be read: records are searched for."""

    path: str
    bytes: int
    header: SegmentHeader | None


@dataclass(frozen=True, slots=True)
class DumpedRecord:
    """A sound record of the segment. Whether replay believes it is another matter."""

    path: str
    offset: int
    record: JobEventRecord


@dataclass(frozen=True, slots=True)
class DumpedDefect:
    """Bytes of the segment that are no record. It is damage unless a crash may have left them at
    the segment's end."""

    path: str
    offset: int
    reason: str
    is_damage: bool


DumpItem = DumpedSegment | DumpedRecord | DumpedDefect


async def find_logs(disk: Disk, directory: str) -> list[str]:
    """The directories of event logs that `directory` means: its own segments, those of the job
    whose directory it is, or of all jobs of a storage directory."""
    if await _segment_files(disk, directory):
        return [directory]
    if await disk.stat(own := f"{directory}/{_EVENTS_NAME}"):
        return [own]
    jobs = f"{directory}/jobs"
    if await disk.stat(jobs) is None:
        jobs = directory
    found = [
        f"{jobs}/{entry.name}/{_EVENTS_NAME}"
        for entry in await disk.list_directory(jobs)
        if entry.is_directory
    ]
    return [events for events in found if await disk.stat(events) is not None]


async def verify_log(disk: Disk, directory: str) -> VerifiedLog:
    """Replay the log, and look at every byte of every file of it. OSErrors pass through."""
    findings = []
    replayed: LogFindings | None = None
    try:
        replayed = await replay(disk, directory, lambda _: None)
    except LogUnreadable as error:
        is_newer = isinstance(error, UnsupportedLogVersion | UnknownEventType)
        severity = Severity.NEWER if is_newer else Severity.DAMAGE
        findings.append(InspectionFinding(severity, error.path, error.offset, error.text))
    else:
        findings += [
            InspectionFinding(Severity.TRACE, one.path, one.offset, f"{one.kind.value}: {one.text}")
            for one in replayed.findings
        ]
    known = {(one.path, one.offset) for one in findings}
    others: list[InspectionFinding] = []

    def look(item: DumpItem) -> None:
        if isinstance(item, DumpedSegment) and item.path.endswith(DAMAGED_SUFFIX):
            text = "set aside by an earlier leader"
            others.append(InspectionFinding(Severity.TRACE, item.path, 0, text))
        elif isinstance(item, DumpedDefect) and (item.path, item.offset) not in known:
            superseded = replayed is not None or item.path.endswith(DAMAGED_SUFFIX)
            severity = Severity.TRACE if superseded else Severity.DAMAGE
            others.append(InspectionFinding(severity, item.path, item.offset, item.reason))

    await dump_log(disk, directory, look)
    return VerifiedLog(directory, replayed, (*findings, *others))


async def dump_log(disk: Disk, directory: str, on_item: Callable[[DumpItem], None]) -> None:
    """Hand out what the log's files hold, in their order, those set aside last."""
    for path, size_bytes in await _segment_files(disk, directory):
        await _dump_segment(disk, path, size_bytes, on_item)


async def _segment_files(disk: Disk, directory: str) -> list[tuple[str, int]]:
    found = [
        (entry.name.endswith(DAMAGED_SUFFIX), segment_id, f"{directory}/{entry.name}", entry.bytes)
        for entry in await disk.list_directory(directory)
        if (segment_id := SegmentId.of_file_name(entry.name.removesuffix(DAMAGED_SUFFIX)))
        and not entry.is_directory
    ]
    return [(path, size_bytes) for _, _, path, size_bytes in sorted(found)]


async def _dump_segment(
    disk: Disk, path: str, size_bytes: int, on_item: Callable[[DumpItem], None]
) -> None:
    header, offset, defect = _head(path, await disk.read(path, 0, HEADER_BYTES_MAX))
    on_item(DumpedSegment(path, size_bytes, header))
    if header is not None and defect is not None:
        on_item(DumpedDefect(path, 0, defect.reason, is_damage=True))
        defect = None
    told = _Records(path, on_item)
    at: int | None = offset
    while at is not None:
        decoder = FrameDecoder(at, defect)
        while decoder.sound_after is None and (chunk := await disk.read(path, at, _CHUNK_BYTES)):
            at += len(chunk)
            for frame in decoder.feed(chunk):
                told.take(frame)
        decoder.finish()
        if decoder.defect is not None:
            found, is_damage = decoder.defect, decoder.sound_after is not None
            on_item(DumpedDefect(path, found.offset, found.reason, is_damage))
        at, defect = decoder.sound_after, None


def _head(path: str, head: bytes) -> tuple[SegmentHeader | None, int, Defect | None]:
    """The header, where the records begin (or the search for one), and what is wrong with it."""
    try:
        header, size_bytes = decode_header(head)
    except NewerFormat as newer:
        text = f"{newer}, which this version cannot read; only what looks like a record is shown"
        return None, 0, Defect(0, text)
    except HeaderDefect as error:
        return None, 0, Defect(0, str(error))
    name = posixpath.basename(path).removesuffix(DAMAGED_SUFFIX)
    if header.segment_id.file_name != name:
        text = f"the header says that this is segment {header.segment_id.file_name}"
        return header, size_bytes, Defect(0, text)
    return header, size_bytes, None


class _Records:
    """Parses the frames of one segment."""

    def __init__(self, path: str, on_item: Callable[[DumpItem], None]) -> None:
        self._path = path
        self._on_item = on_item

    def take(self, frame: Frame) -> None:
        """One more frame."""
        try:
            record = JobEventRecord.FromString(frame.payload)
        except DecodeError:
            text = "it is no JobEventRecord"
            self._on_item(DumpedDefect(self._path, frame.offset, text, is_damage=True))
            return
        self._on_item(DumpedRecord(self._path, frame.offset, record))
