"""The segment files in a log's directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdover.runtime import Disk
from jobmanager.event_store.records import SegmentId

# Appended to the name of a segment that replay must not see any more.
DAMAGED_SUFFIX: Final = ".damaged"


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment file as it was found."""

    segment_id: SegmentId
    path: str
    bytes: int


async def list_segments(disk: Disk, directory: str) -> list[SegmentFile]:
    """The log's segments in order; none when the directory does not exist."""
    if await disk.stat(directory) is None:
        return []
    found = []
    for entry in await disk.list_directory(directory):
        segment_id = SegmentId.of_file_name(entry.name)
        if segment_id is not None and not entry.is_directory:
            found.append(SegmentFile(segment_id, f"{directory}/{entry.name}", entry.bytes))
    return sorted(found, key=lambda segment: segment.segment_id)


async def next_index(disk: Disk, directory: str, leader_epoch: int) -> int:
    """The first index that this epoch has not used, segments set aside included."""
    used = -1
    for entry in await disk.list_directory(directory):
        segment_id = SegmentId.of_file_name(entry.name.removesuffix(DAMAGED_SUFFIX))
        if segment_id is not None and segment_id.leader_epoch == leader_epoch:
            used = max(used, segment_id.index)
    return used + 1


async def sync_segments(disk: Disk, directory: str) -> int:
    """Make durable what other leaders have written; return the number of segments.

    A leader that died may not have synced its tail, though every process can read it. Who builds
    on it must be sure that a power loss does not take it away.
    """
    segments = await list_segments(disk, directory)
    for segment in segments:
        file = await disk.open_append(segment.path)
        try:
            await file.sync()
        finally:
            await file.close()
    if segments:
        await disk.sync_directory(directory)
    return len(segments)


async def remove_segments_before(disk: Disk, directory: str, segment_id: SegmentId) -> None:
    """Remove what a durable snapshot at the head of `segment_id` supersedes, oldest first.

    Segments of newer leaders come after it in the order and are never touched.
    """
    superseded = [
        segment
        for segment in await list_segments(disk, directory)
        if segment.segment_id < segment_id
    ]
    for segment in superseded:
        await disk.remove(segment.path, missing_ok=True)
    if superseded:
        await disk.sync_directory(directory)


async def set_aside(disk: Disk, directory: str) -> list[str]:
    """Rename all segments, so that replay finds an empty log; return their new paths.

    Nothing is deleted. Oldest first, each durably: a crash in between leaves a log without its
    beginning, which is damaged as well, and never one that looks shorter but sound.
    """
    renamed = []
    for segment in await list_segments(disk, directory):
        target = segment.path + DAMAGED_SUFFIX
        await disk.rename(segment.path, target)
        await disk.sync_directory(directory)
        renamed.append(target)
    return renamed
