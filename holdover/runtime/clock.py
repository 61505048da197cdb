"""Time and chance, as services see them."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """The one source of time. Timeouts and durations use `monotonic_s` only (case P60)."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary origin of this process's host; never goes back."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch, for people to read.

        It may jump either way and is never compared between machines.
        """
        ...


class Randomness(Protocol):
    """The one source of chance."""

    def uniform(self, low: float, high: float) -> float:
        """A float drawn evenly from [low, high]."""
        ...

    def token_hex(self, n_bytes: int) -> str:
        """`2 * n_bytes` hexadecimal digits, unguessable on the real arm; used to make ids."""
        ...
