"""Time and chance of one process in the world."""

from __future__ import annotations

import random

from simulator.world.process import Process

#: What wall clocks show when a world begins: 2030-01-01, the same in every run.
WALL_ORIGIN_MS = 1_893_456_000_000


class HostClock:
    """The clocks of a process's host. See `Clock`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`."""
        process = self._process
        host, now_s = process.host, process.loop.now_s
        return now_s if host.clock_is_worlds else host.local_s(now_s)

    def wall_ms(self) -> int:
        """See `Clock.wall_ms`."""
        return WALL_ORIGIN_MS + round(self.monotonic_s() * 1000) + self._process.host.wall_offset_ms


class SeededRandomness:
    """Chance that the seed decides. See `Randomness`."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def uniform(self, low: float, high: float) -> float:
        """See `Randomness.uniform`."""
        return self._source.uniform(low, high)

    def token_hex(self, n_bytes: int) -> str:
        """See `Randomness.token_hex`."""
        return self._source.randbytes(n_bytes).hex()
