"""Storage calls that may hang for ever, for example on a network file system (case P05)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from holdover.runtime import AppendFile
from holdover.runtime.log import Log

T = TypeVar("T")

# So many calls may hang at a time before new ones wait for the end of one of them.
_HUNG_CALLS_MAX: Final = 2

_log = Log(__name__)


class StorageHung(OSError):
    """A call did not return in time."""

    def __init__(self, path: str, limit_s: float) -> None:
        super().__init__(errno.ETIMEDOUT, f"no answer from storage for {limit_s:g} s", path)


class HangGuard:
    """Gives every storage call a time limit. A call that exceeds it is left to itself."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._hung: dict[asyncio.Task[Any], str] = {}
        self._late_closes: list[asyncio.Task[Any]] = []

    async def call(
        self, path: str, operation: Coroutine[Any, Any, T], *, is_close: bool = False
    ) -> T:
        """The operation's result; its exceptions pass. Raises `StorageHung` after the limit.

        When this is cancelled the operation is too, unless it closes a file, which nobody else
        would do.
        """
        task = asyncio.ensure_future(operation)
        try:
            done, _ = await asyncio.wait([task], timeout=self._limit_s)
        except asyncio.CancelledError:
            if is_close:
                self._late_closes.append(task)
                task.add_done_callback(self._late_closes.remove)
            else:
                task.cancel()
            raise
        if not done:
            self._hung[task] = path
            task.add_done_callback(self._returned)
            raise StorageHung(path, self._limit_s)
        return task.result()

    async def room(self) -> None:
        """Wait until less than the allowed number of calls hangs."""
        while len(self._hung) >= _HUNG_CALLS_MAX:
            await asyncio.wait(list(self._hung), return_when=asyncio.FIRST_COMPLETED)

    async def close_file(self, file: AppendFile) -> None:
        """Close a handle; when a call on it hangs, later, when that call has returned."""
        for task, path in self._hung.items():
            if path == file.path:
                late_close = asyncio.ensure_future(_close_after(task, file))
                self._late_closes.append(late_close)
                late_close.add_done_callback(self._late_closes.remove)
                return
        await self.call(file.path, file.close(), is_close=True)

    def cancel(self) -> None:
        """Stop waiting for what hangs."""
        for task in [*self._hung, *self._late_closes]:
            task.cancel()

    def _returned(self, task: asyncio.Task[Any]) -> None:
        path = self._hung.pop(task)
        outcome = "cancelled" if task.cancelled() else str(task.exception() or "done")
        _log.info("a hanging storage call has returned", path=path, outcome=outcome)


async def _close_after(task: asyncio.Task[Any], file: AppendFile) -> None:
    await asyncio.wait([task])
    try:
        await file.close()
    except OSError as error:
        _log.warning("closing a file failed", path=file.path, reason=str(error))
