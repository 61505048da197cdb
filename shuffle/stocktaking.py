"""What a worker finds of itself after its own restart: finished attempts, and rubbish.

An attempt is found when its record, its indexes and the sizes of its data files are what they were
when it finished; anything less, and all of it is deleted. Contents of data files are not read: each
block is verified by whoever reads it, and a disk full of partitions would take minutes.

The process before this one may have been killed at any instant, or the machine may have lost its
power: what is left is judged by what it is, never by its age.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from holdover.ids import AttemptKey, partition_name
from holdover.runtime import Clock, Disk, Entry
from holdover.runtime.log import Log
from holdover.v1.common_pb2 import FinishedExecution
from shuffle.finished_record import (
    GROUP_BYTES_MAX,
    GROUP_SUFFIX,
    RECORD_BYTES_MAX,
    RECORD_SUFFIX,
    RecordDamaged,
    decode_group,
    decode_record,
    files_of,
    index_is,
)
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX, JOB_PATTERN

#: Files that are read, and things that are deleted, at one time.
_AT_ONCE_MAX = 16
#: How often a long stock-taking says how far it is.
_PROGRESS_INTERVAL_S = 5.0

ItemT = TypeVar("ItemT")

_log = Log(__name__)


@dataclass(slots=True)
class Stock:
    """What is there. `bytes` is the size of the data files of what was found."""

    found: dict[AttemptKey, FinishedExecution] = field(default_factory=dict)
    bytes: int = 0
    #: Finished attempts of which something is missing or damaged.
    damaged: int = 0
    #: Files and directories that were deleted.
    deleted: int = 0


async def take_stock(disk: Disk, clock: Clock, shuffle_directory: str) -> Stock:
    """Find the finished attempts in a shuffle directory, and delete everything else in it.

    What cannot be deleted is logged and left; it is never offered. Raises `OSError` when the
    directory itself cannot be listed. Only whoever owns the directory may call this.
    """
    taking = _Stocktaking(disk, clock, shuffle_directory)
    await taking.run()
    return taking.stock


class _Stocktaking:
    """One stock-taking on its way."""

    def __init__(self, disk: Disk, clock: Clock, shuffle_directory: str) -> None:
        self._disk = disk
        self._clock = clock
        self._root = shuffle_directory
        self._told_s = clock.monotonic_s()
        self._records = self._looked_at = 0
        self.stock = Stock()

    async def run(self) -> None:
        for entry in await self._disk.list_directory(self._root):
            if entry.is_directory and JOB_PATTERN.fullmatch(entry.name):
                await self._take_job(entry.name)
            else:
                await self._delete([entry], self._root)
        if self._records or self.stock.deleted:
            _log.info(
                "looked through what the process before has left",
                directory=self._root,
                found=len(self.stock.found),
                found_bytes=self.stock.bytes,
                damaged=self.stock.damaged,
                deleted=self.stock.deleted,
            )

    async def _take_job(self, job_id: str) -> None:
        directory = posixpath.join(self._root, job_id)
        entries = {entry.name: entry for entry in await self._disk.list_directory(directory)}
        records = [name for name in entries if name.endswith(RECORD_SUFFIX)]
        self._records += len(records)
        kept: dict[str, None] = {}
        for some in _slices(records):
            looks = [self._look_at(job_id, name, entries) for name in some]
            for whole in await asyncio.gather(*looks):
                if whole is not None:
                    kept.update(dict.fromkeys(posixpath.basename(f) for f in files_of(*whole)))
                    self._find(*whole)
            self._tell_progress(len(some))
        for name in entries:
            if name.endswith(GROUP_SUFFIX) and await self._take_group(job_id, entries[name]):
                kept[name] = None
        if not kept:
            await self._remove(directory, is_directory=True)
            return
        await self._delete([e for e in entries.values() if e.name not in kept], directory)

    async def _take_group(self, job_id: str, entry: Entry) -> bool:
        """Whether there is a finished attempt in a group of such that have left no files."""
        path = posixpath.join(self._root, job_id, entry.name)
        whole: list[tuple[AttemptKey, FinishedExecution]] = []
        damage: Exception | None
        try:
            if entry.bytes > GROUP_BYTES_MAX:
                raise RecordDamaged(f"it has {entry.bytes} bytes")
            whole, damage = decode_group(await self._disk.read(path), job_id)
        except (RecordDamaged, OSError) as error:
            damage = error
        self._records += len(whole)
        for key, execution in whole:
            self._find(key, execution)
        if damage is not None:
            self.stock.damaged += 1
            _log.warning("a record is cut off", job_id=job_id, group=entry.name, error=damage)
        self._tell_progress(len(whole))
        return bool(whole)

    def _find(self, key: AttemptKey, execution: FinishedExecution) -> None:
        self.stock.found[key] = execution
        self.stock.bytes += sum(partition.data_bytes for partition in execution.partitions)

    async def _look_at(
        self, job_id: str, name: str, entries: Mapping[str, Entry]
    ) -> tuple[AttemptKey, FinishedExecution] | None:
        """The attempt that a record is of, if all of it is there."""
        try:
            if entries[name].bytes > RECORD_BYTES_MAX:
                raise RecordDamaged(f"it has {entries[name].bytes} bytes")
            path = posixpath.join(self._root, job_id, name)
            key, execution = decode_record(await self._disk.read(path), f"{job_id}/{name}")
            check_sizes(key, execution, entries)
            for partition in execution.partitions:
                base = posixpath.join(self._root, partition_name(key, partition.output))
                if not index_is(await self._disk.read(base + INDEX_SUFFIX), partition.index_crc32c):
                    raise RecordDamaged(f"the index of output {partition.output} is damaged")
        except (RecordDamaged, OSError) as error:
            self.stock.damaged += 1
            _log.warning("a finished attempt is not whole", job_id=job_id, record=name, error=error)
            return None
        return key, execution

    def _tell_progress(self, looked_at: int) -> None:
        self._looked_at += looked_at
        now_s = self._clock.monotonic_s()
        if now_s - self._told_s > _PROGRESS_INTERVAL_S:
            self._told_s = now_s
            found = len(self.stock.found)
            _log.info("verifying what is finished", looked_at=self._looked_at, found=found)

    async def _delete(self, entries: Iterable[Entry], directory: str) -> None:
        for some in _slices(list(entries)):
            removals = [
                self._remove(posixpath.join(directory, e.name), is_directory=e.is_directory)
                for e in some
            ]
            await asyncio.gather(*removals)

    async def _remove(self, path: str, *, is_directory: bool) -> None:
        try:
            if is_directory:
                await self._disk.remove_tree(path, missing_ok=True)
            else:
                await self._disk.remove(path, missing_ok=True)
        except OSError as error:
            _log.warning("cannot delete a leftover", path=path, error=error)
            return
        self.stock.deleted += 1


def check_sizes(
    key: AttemptKey, execution: FinishedExecution, entries: Mapping[str, Entry]
) -> None:
    """Raise `RecordDamaged` unless the files of an attempt are in its job's directory, whose
    `entries` these are by name, each data file as large as it was."""
    for partition in execution.partitions:
        stem = posixpath.basename(partition_name(key, partition.output))
        index, data = entries.get(stem + INDEX_SUFFIX), entries.get(stem + DATA_SUFFIX)
        if index is None or data is None:
            raise RecordDamaged(f"files of output {partition.output} are missing")
        if data.bytes != partition.data_bytes:
            raise RecordDamaged(
                f"the data of output {partition.output} has {data.bytes} bytes,"
                f" not {partition.data_bytes}"
            )


def _slices(items: list[ItemT]) -> Iterable[list[ItemT]]:
    return (items[start : start + _AT_ONCE_MAX] for start in range(0, len(items), _AT_ONCE_MAX))
