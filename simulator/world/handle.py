"""What a loop gives for a callback that it is to run."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.world.process import Process


class ReadyHandle:
    """A callback that runs once. The interface of `asyncio.TimerHandle`, as far as it is used.

    Filled by who makes it: there are dozens for each attempt of a task, and an `__init__` costs
    as much again.
    """

    __slots__ = ("_args", "_callback", "_context", "_when", "process")
    process: Process
    #: None when it was cancelled.
    _callback: Callable[..., object] | None
    _args: tuple[Any, ...]
    _context: contextvars.Context
    #: The world's time at which a timer is due; 0 marks a handle that is no timer, or not any more.
    _when: float

    def cancel(self) -> None:
        """It will not run."""
        if self._callback is not None:
            self._callback = None
            self._args = ()
            if self._when:
                self.process.loop.timer_cancelled()

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._callback is None

    def when(self) -> float:
        """When a timer is due, in seconds of its process's clock."""
        return self.process.host.local_s(self._when)

    def failed(self, error: BaseException) -> None:
        """What it raised when it ran goes to the loop's handler."""
        if isinstance(error, SystemExit | KeyboardInterrupt):
            raise error
        self._context.run(
            self.process.loop.call_exception_handler,
            {"message": f"exception in callback {self._callback!r}", "exception": error},
        )
