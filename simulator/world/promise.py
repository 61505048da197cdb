"""What a task waits for, settled by a callback of the loop.

A future tells its waiter by one more callback. Most of what happens in a world (a message arrives,
a disk is done) has one waiter, and happens in a callback that does nothing else: there the waiter
can as well go on at once, which saves a third of all callbacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from simulator.world.loop import RUNNING_TASKS
from simulator.world.process import CURRENT

ResultT = TypeVar("ResultT")


class Promise(asyncio.Future[ResultT]):
    """A future with `wake` beside. An error that nobody waits for is nobody's."""

    __slots__ = ()

    def set_exception(self, error: type | BaseException) -> None:
        """See `asyncio.Future`."""
        super().set_exception(error)
        self._log_traceback = False

    def wake(self, result: ResultT) -> None:
        """`set_result` as the last act of a callback of the loop: a waiter of the process whose
        callback it is goes on before this returns."""
        match self._callbacks:
            case [(callback, context)] if (
                context.get(CURRENT) is CURRENT.get() and self._loop not in RUNNING_TASKS
            ):
                self.remove_done_callback(callback)
                self.set_result(result)
                context.run(callback, self)
            case _:
                self.set_result(result)


def wake_all(promises: Sequence[Promise[None]]) -> None:
    """Settle them, as the last act of a callback; see `Promise.wake`."""
    for promise in promises:
        if not promise.done():
            promise.wake(None)
