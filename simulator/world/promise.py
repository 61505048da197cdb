"""What a task waits for, settled by a callback of the loop.

A future tells its waiter by one more callback. Most of what happens in a world (a message arrives,
a disk is done) has one waiter, and happens in a callback that does nothing else: there the waiter
can as well go on at once, which saves a third of all callbacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar

from simulator.world.loop import RUNNING_TASKS, VirtualLoop
from simulator.world.process import CURRENT

ResultT = TypeVar("ResultT")

Callback = Callable[[Any], object]


class Promise(Generic[ResultT]):
    """An awaitable as `asyncio.Future` is one, with `wake` beside."""

    __slots__ = (
        "_asyncio_future_blocking",
        "_callbacks",
        "_cancelled",
        "_error",
        "_loop",
        "_result",
        "_settled",
    )

    def __init__(self, loop: VirtualLoop) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._settled = False
        self._cancelled = False
        self._result: ResultT | None = None
        self._error: BaseException | None = None
        self._callbacks: list[tuple[Callback, Context]] | None = None

    def get_loop(self) -> VirtualLoop:
        """See `asyncio.Future`."""
        return self._loop

    def done(self) -> bool:
        """See `asyncio.Future`."""
        return self._settled

    def cancelled(self) -> bool:
        """See `asyncio.Future`."""
        return self._cancelled

    def cancel(self, msg: object = None) -> bool:
        """See `asyncio.Future`."""
        if self._settled:
            return False
        self._settled = self._cancelled = True
        self._tell_all()
        return True

    def exception(self) -> BaseException | None:
        """See `asyncio.Future`."""
        if self._cancelled:
            raise asyncio.CancelledError
        return self._error

    def result(self) -> ResultT:
        """See `asyncio.Future`."""
        if self._cancelled:
            raise asyncio.CancelledError
        if self._error is not None:
            try:
                raise self._error
            finally:
                # An error that keeps its promise, which keeps it, is kept until a collection.
                del self
        if not self._settled:
            raise asyncio.InvalidStateError("Result is not set.")
        return self._result  # type: ignore[return-value]

    def add_done_callback(self, callback: Callback, *, context: Context | None = None) -> None:
        """See `asyncio.Future`."""
        entry = (callback, context if context is not None else copy_context())
        if self._settled:
            self._loop.call_soon(callback, self, context=entry[1])
        elif self._callbacks is None:
            self._callbacks = [entry]
        else:
            self._callbacks.append(entry)

    def remove_done_callback(self, callback: Callback) -> int:
        """See `asyncio.Future`."""
        before = self._callbacks or []
        self._callbacks = [entry for entry in before if entry[0] != callback]
        return len(before) - len(self._callbacks)

    def set_exception(self, error: BaseException) -> None:
        """See `asyncio.Future`."""
        self._settled, self._error = True, error
        self._tell_all()

    def set_result(self, result: ResultT) -> None:
        """See `asyncio.Future`."""
        self._settled, self._result = True, result
        self._tell_all()

    def wake(self, result: ResultT) -> None:
        """`set_result` as the last act of a callback of the loop: a waiter of the process whose
        callback it is goes on before this returns."""
        self._settled, self._result = True, result
        callbacks = self._callbacks
        if callbacks is None:
            return
        if len(callbacks) == 1:
            callback, context = callbacks[0]
            if context.get(CURRENT) is CURRENT.get() and self._loop not in RUNNING_TASKS:
                self._callbacks = None
                context.run(callback, self)
                return
        self._tell_all()

    def _tell_all(self) -> None:
        callbacks, self._callbacks = self._callbacks, None
        for callback, context in callbacks or ():
            self._loop.call_soon(callback, self, context=context)

    def __await__(self) -> Generator[Any, None, ResultT]:
        if not self._settled:
            self._asyncio_future_blocking = True
            yield self
        if self._settled and self._error is None and not self._cancelled:
            return self._result  # type: ignore[return-value]
        try:
            return self.result()
        finally:
            del self


def wake_all(promises: Sequence[Promise[None]]) -> None:
    """Settle them, as the last act of a callback; see `Promise.wake`."""
    for promise in promises:
        if not promise.done():
            promise.wake(None)
