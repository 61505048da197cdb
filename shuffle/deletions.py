"""Partition files to delete, off the path of whoever decided it."""

from __future__ import annotations

import asyncio
import posixpath
from collections import deque
from collections.abc import Iterable

from holdover.runtime import Disk
from holdover.runtime.log import Log

#: What a finished partition consists of. The index goes first: without it the partition does not
#: exist.
_FINISHED = (".index", ".data")
#: What an attempt may have left that did not finish.
_SUFFIXES = (*_FINISHED, ".index.part", ".data.part")

_log = Log(__name__)


async def delete_partition(disk: Disk, shuffle_directory: str, name: str) -> None:
    """Delete the files of a partition, finished or not; absent ones are fine. Raises `OSError`."""
    await _delete(disk, shuffle_directory, name, _SUFFIXES)


async def _delete(disk: Disk, shuffle_directory: str, name: str, suffixes: Iterable[str]) -> None:
    for suffix in suffixes:
        await disk.remove(posixpath.join(shuffle_directory, name) + suffix, missing_ok=True)


class Deletions:
    """Finished partitions that are served no longer. Never more than were held."""

    def __init__(self, disk: Disk, shuffle_directory: str) -> None:
        self._disk = disk
        self._shuffle_directory = shuffle_directory
        self._names: deque[str] = deque()
        self._added = asyncio.Event()

    def __len__(self) -> int:
        return len(self._names)

    def add(self, names: Iterable[str]) -> None:
        """Delete these soon, in this order."""
        self._names.extend(names)
        self._added.set()

    async def run(self) -> None:
        """Delete, for ever; a loop for a `Supervisor`. What cannot be deleted is logged and left to
        the sweep of the next start."""
        while True:
            await self._added.wait()
            self._added.clear()
            while self._names:
                name = self._names.popleft()
                try:
                    await _delete(self._disk, self._shuffle_directory, name, _FINISHED)
                except OSError as error:
                    _log.error("cannot delete a partition", partition=name, error=error)
