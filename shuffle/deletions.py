"""Files of finished and unfinished attempts to delete, off the path of whoever decided it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from holdover.ids import AttemptKey, partition_name
from holdover.runtime import Disk
from holdover.runtime.log import Log
from shuffle.finished_record import record_name
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX, PART_SUFFIX

_log = Log(__name__)

#: Once so many files are together, they are deleted before more are taken.
_FILES_PER_CALL = 256


async def delete_attempt(disk: Disk, shuffle_directory: str, key: AttemptKey, outputs: int) -> None:
    """Delete all that an attempt may have written to the shuffle directory, finished or not.

    `outputs` is how many data sets its vertex has. Absent files are fine. Raises `OSError`.
    """
    # The record goes first, then the indexes: without them nothing is offered, whatever is left.
    files = [record_name(key)]
    for output in range(outputs):
        name = partition_name(key, output)
        files += [name + INDEX_SUFFIX, name + DATA_SUFFIX]
    paths = [
        f"{shuffle_directory}/{file}{suffix}" for file in files for suffix in ("", PART_SUFFIX)
    ]
    failures = await disk.remove_all(paths)
    if failures:
        raise failures[0]


class Deletions:
    """Attempts that are held no longer, each by its files. Never more than were held."""

    def __init__(self, disk: Disk, shuffle_directory: str) -> None:
        self._disk = disk
        self._shuffle_directory = shuffle_directory
        self._attempts: deque[list[str]] = deque()
        self._added = asyncio.Event()

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, attempts: Iterable[list[str]]) -> None:
        """Delete these files soon, in this order; each is relative to the shuffle directory."""
        self._attempts.extend(attempts)
        self._added.set()

    async def run(self) -> None:
        """Delete, for ever; a loop for a `Supervisor`. What cannot be deleted is logged and left to
        the end of its job, or to the next start."""
        while True:
            await self._added.wait()
            self._added.clear()
            while self._attempts:
                for failure in await self._disk.remove_all(self._take_some()):
                    _log.error("cannot delete a file of a partition", error=failure)

    def _take_some(self) -> list[str]:
        """Paths of the attempts that have waited longest."""
        paths: list[str] = []
        while self._attempts and len(paths) < _FILES_PER_CALL:
            files = self._attempts.popleft()
            paths += [f"{self._shuffle_directory}/{file}" for file in files]
        return paths
