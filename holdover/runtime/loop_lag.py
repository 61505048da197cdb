"""How late the event loop runs (case P55)."""

from __future__ import annotations

import asyncio
import math

from holdover.runtime.log import Log

_log = Log(__name__)


class LoopLagMonitor:
    """Measures how much later than asked a timer fires, which is what every heartbeat suffers.

    `run` is a loop for a `Supervisor`. Lags of `warn_above_s` and more are logged. A lag is seen
    too short by up to `interval_s`, which is what is paid for looking less often: whoever wants to
    be told of every lag of a second warns at a second less the interval.
    """

    def __init__(self, interval_s: float = 0.1, warn_above_s: float = 1.0) -> None:
        self._interval_s = interval_s
        self._warn_above_s = warn_above_s
        self._max_lag_s = 0.0
        self._recent_max_lag_s = 0.0
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def max_lag_s(self) -> float:
        """The largest lag since the start."""
        return self._max_lag_s

    def take_recent_max_lag_s(self) -> float:
        """The largest lag since this was last called."""
        recent = self._recent_max_lag_s
        self._recent_max_lag_s = 0.0
        return recent

    async def run(self) -> None:
        """Measure until cancelled."""
        self._due_s = math.inf  # nothing is late yet
        self._fired(asyncio.get_running_loop())
        try:
            await asyncio.Event().wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _fired(self, loop: asyncio.AbstractEventLoop) -> None:
        """A bare timer, not a task that sleeps: it is the most frequent thing an idle process
        does.
        """
        now_s = loop.time()
        if now_s > self._due_s:
            self._note(now_s - self._due_s)
        self._due_s = now_s + self._interval_s
        self._timer = loop.call_at(self._due_s, self._fired, loop)

    def _note(self, lag_s: float) -> None:
        self._max_lag_s = max(self._max_lag_s, lag_s)
        self._recent_max_lag_s = max(self._recent_max_lag_s, lag_s)
        if lag_s >= self._warn_above_s:
            _log.warning("event loop was blocked or starved", lag_s=lag_s)
