"""Where the attempts of a job stage what its sinks write: directories that the JobMaster makes.

A task makes its own directory in one of them, and none above. So one that goes on after the job's
end, because its TaskManager stood still or was out of reach, finds no place, and leaves nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from holdover.runtime import Disk
from holdover.runtime.log import Log
from jobmanager.leading import LeadershipLost, Leading

_log = Log(__name__)


class Staging:
    """The staging directories of one job, under one leader."""

    def __init__(
        self,
        disk: Disk,
        directories: Sequence[str],
        leading: Leading,
        has_ended: Callable[[], Awaitable[bool]],
    ) -> None:
        """`has_ended` tells whether a leader has recorded that the job is over."""
        self._disk = disk
        self._directories = directories
        self._leading = leading
        self._has_ended = has_ended
        self._attempt: asyncio.Task[None] | None = None
        self._look: asyncio.Task[None] | None = None
        self._closed = False

    async def make(self) -> None:
        """Make what is missing; what was begun goes on when this is cancelled. Raises OSError."""
        if self._directories and not self._closed:
            if self._attempt is None or self._attempt.done():
                self._attempt = asyncio.ensure_future(self._make())
                self._attempt.add_done_callback(_note)
            await asyncio.shield(self._attempt)

    async def close(self) -> None:
        """Make no more; when this returns nothing is being made."""
        self._closed = True
        if self._attempt is not None:
            await asyncio.wait([self._attempt])

    async def _make(self) -> None:
        if self._leading.is_over():
            return
        made = False
        try:
            for directory in self._directories:
                if await self._disk.stat(directory) is None:
                    made = True
                    await self._disk.make_directories(directory)
        finally:
            if made:
                self._look = asyncio.ensure_future(self._remove_unless_leading())
                self._look.add_done_callback(_note)

    async def _remove_unless_leading(self) -> None:
        """A leader that was frozen over making them may have done so after all that its successor
        did: nobody else would look there."""
        try:
            await self._leading.certain_or_over()
        except LeadershipLost:
            if await self._has_ended():
                for directory in self._directories:
                    await self._disk.remove_tree(directory, missing_ok=True)


def _note(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.debug("staging directories", reason=str(error))
