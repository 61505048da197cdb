"""Which registrations are served now, and when the others are to come again (P28).

Thousands of TaskManagers come to a new leader at once. Were all served side by side, each would
take as long as all of them together, longer than its caller waits, and the work for those that have
given up would be in the way of those that try again. So a few are served at a time, in the order in
which they have come, and whoever would wait for long is told a time of its own to come again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdover.runtime import Clock

#: Registrations that are served side by side: enough that one which waits for its TaskManager does
#: not leave the leader idle.
AT_ONCE_MAX = 8
#: Expected to take longer than this, a registration is put off.
WAIT_MAX_S = 0.5
#: So many are never put off, however long each takes.
NEVER_PUT_OFF = 4
#: For so much longer than a registration takes each of those that are put off gets the leader to
#: itself: what a TaskManager sends next, its tasks and all else take their share.
SPACING = 2.0
RETRY_AFTER_MAX_S = 10.0
#: A TaskManager that is slow to send what it holds is in nobody's way after this.
PATIENCE_S = 1.0
_INTERVAL_FIRST_S = 0.01
_INTERVAL_MIN_S = 0.000_5
_INTERVAL_MAX_S = 1.0
_NEWEST_COUNTS = 0.1


class ComeAgain(Exception):
    """Too many register; `retry_after_s` is when this one is to try again."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"many TaskManagers register: try again in {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class RegistrationLoad:
    """How many registrations wait or are served, and how long each takes. Pure."""

    def __init__(self) -> None:
        self.inside = 0
        #: Between the ends of two registrations while others wait, seconds.
        self.interval_s = _INTERVAL_FIRST_S
        self._ended_s: float | None = None
        self._last_place_s = 0.0

    def enter(self, now_s: float) -> None:
        """One more has come. Raises ComeAgain."""
        wait_s = self.inside * self.interval_s
        if self.inside >= NEVER_PUT_OFF and wait_s > WAIT_MAX_S:
            place_s = max(now_s + wait_s, self._last_place_s + SPACING * self.interval_s)
            self._last_place_s = min(place_s, now_s + RETRY_AFTER_MAX_S)
            raise ComeAgain(self._last_place_s - now_s)
        self.inside += 1

    def leave(self, now_s: float, *, served: bool) -> None:
        """One has been served, or has given up."""
        self.inside -= 1
        if not served:
            return
        if self._ended_s is not None:
            took_s = min(max(now_s - self._ended_s, _INTERVAL_MIN_S), _INTERVAL_MAX_S)
            self.interval_s += _NEWEST_COUNTS * (took_s - self.interval_s)
        self._ended_s = now_s if self.inside else None

    def spread_s(self, workers: int) -> float:
        """How far so many workers must spread their registrations to be served as they come."""
        wait_s = workers * self.interval_s
        return min(SPACING * wait_s, RETRY_AFTER_MAX_S) if wait_s > WAIT_MAX_S else 0.0


class RegistrationAdmission:
    """The line of registrations at one JobManager."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.load = RegistrationLoad()
        self._free = asyncio.Semaphore(AT_ONCE_MAX)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for one's turn, and be served within. Raises ComeAgain."""
        self.load.enter(self._clock.monotonic_s())
        served = False
        try:
            await self._free.acquire()
            place = _Place(self._free)
            patience = asyncio.get_running_loop().call_later(PATIENCE_S, place.leave)
            try:
                yield
                served = True
            finally:
                patience.cancel()
                place.leave()
        finally:
            self.load.leave(self._clock.monotonic_s(), served=served)


class _Place:
    """One of those that are served; it is left once."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._left = False

    def leave(self) -> None:
        if not self._left:
            self._left = True
            self._free.release()
