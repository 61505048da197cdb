"""When a worker tries to register next. Pure: the caller draws, and brings what it has seen."""

from __future__ import annotations

from collections.abc import Callable

#: A pause is drawn from this part of the back-off up to the whole, so that nobody marches in step.
_JITTER_FROM = 0.5
#: A leader that is busy gives everybody a time of its own; the whole may be so much longer.
_LATER_TO = 1.1

Draw = Callable[[float, float], float]
"""A random number between two others."""


class RegistrationPace:
    """One worker's pace: quick when a leader has just appeared, slower with every failure (P51),
    and as the leader wants it where too many come at once (P28).
    """

    def __init__(self, backoff_first_s: float, backoff_max_s: float) -> None:
        self._backoff_first_s = backoff_first_s
        self._backoff_max_s = backoff_max_s
        self._backoff_s = backoff_first_s
        self._retry_after_s = 0.0
        self._spread_s = 0.0
        self._epoch_spread = 0

    def start_anew(self) -> None:
        """Somebody who can be registered with is about to be ready."""
        self._backoff_s = self._backoff_first_s

    @property
    def put_off(self) -> bool:
        """Whether the last attempt has failed only because the leader is busy."""
        return self._retry_after_s > 0

    def put_off_for(self, retry_after_s: float) -> None:
        """The leader lives, and wants the next attempt so much later; 0: it has said nothing."""
        self._retry_after_s = retry_after_s

    def registered(self, epoch: int, spread_s: float) -> None:
        """The leader of this epoch was registered with; it says how far its workers are to spread
        their attempts at the next one.
        """
        self._epoch_spread = max(epoch, self._epoch_spread)
        self._spread_s = spread_s

    def pause_s(self, draw: Draw) -> float:
        """How long to wait after attempts that have failed."""
        if self._retry_after_s:
            later_s, self._retry_after_s = self._retry_after_s, 0.0
            self.start_anew()
            return draw(later_s, _LATER_TO * later_s)
        pause_s = draw(_JITTER_FROM * self._backoff_s, self._backoff_s)
        self._backoff_s = min(self._backoff_s * 2, self._backoff_max_s)
        return pause_s

    def spread_s(self, epoch_seen: int, draw: Draw) -> float:
        """How long to wait before the first attempt at a leader that all have just heard of."""
        if epoch_seen <= self._epoch_spread or self._spread_s <= 0:
            return 0.0
        self._epoch_spread = epoch_seen
        return draw(0.0, self._spread_s)
