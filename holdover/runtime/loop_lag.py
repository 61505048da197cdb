"""How late the event loop runs (case P55)."""

from __future__ import annotations

import asyncio

from holdover.runtime.log import Log

_log = Log(__name__)


class LoopLagMonitor:
    """Measures how much later than asked a timer fires, which is what every heartbeat suffers.

    `run` is a loop for a `Supervisor`. Lags of `warn_above_s` and more are logged.
    """

    def __init__(self, interval_s: float = 0.1, warn_above_s: float = 1.0) -> None:
        self._interval_s = interval_s
        self._warn_above_s = warn_above_s
        self._max_lag_s = 0.0
        self._recent_max_lag_s = 0.0

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
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + self._interval_s
            await asyncio.sleep(self._interval_s)
            self._note(max(0.0, loop.time() - due_s))

    def _note(self, lag_s: float) -> None:
        self._max_lag_s = max(self._max_lag_s, lag_s)
        self._recent_max_lag_s = max(self._recent_max_lag_s, lag_s)
        if lag_s >= self._warn_above_s:
            _log.warning("event loop was blocked or starved", lag_s=lag_s)
