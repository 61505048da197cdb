"""Output that shuffle services do not take: how long its subtask waits before it runs again, and
when that has been tried for long enough.

Nobody is to blame for a refusal, so it counts as no restart. But a job whose output nobody ever
takes must not go on for ever (P48).
"""

from __future__ import annotations

from dataclasses import dataclass

from jobmanager.scheduler.vertices import SubtaskId

PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0


@dataclass(slots=True)
class _Refused:
    """What one subtask has met since it last finished."""

    pause_s: float
    waited_s: float
    reason: str


class OutputRefusals:
    """The refusals of one job's output under one leader."""

    def __init__(self, waited_s_max: float) -> None:
        """A subtask waits `waited_s_max` in all, as a job waits for slots."""
        self._waited_s_max = waited_s_max
        self._refused: dict[SubtaskId, _Refused] = {}

    def refused(self, subtask: SubtaskId, reason: str) -> float | None:
        """The output of a subtask's attempt was refused. How long the next one is to wait, seconds;
        None when the subtask has waited for as long as it may."""
        before = self._refused.get(subtask)
        pause_s = PAUSE_FIRST_S if before is None else min(2 * before.pause_s, PAUSE_MAX_S)
        waited_s = pause_s if before is None else before.waited_s + pause_s
        if waited_s > self._waited_s_max:
            return None
        self._refused[subtask] = _Refused(pause_s, waited_s, reason)
        return pause_s

    def taken(self, subtask: SubtaskId) -> None:
        """The subtask has finished."""
        self._refused.pop(subtask, None)

    @property
    def last_reason(self) -> str:
        """Why output was refused that has not been taken since; empty when there is none."""
        return next(reversed(self._refused.values())).reason if self._refused else ""

    @property
    def waiting(self) -> str:
        """Whose output waits for a shuffle service, and why; empty when nobody's does."""
        if not self._refused:
            return ""
        return (
            f"waiting for shuffle services: the output of {len(self._refused)} subtasks was"
            f" refused; {self.last_reason}"
        )
