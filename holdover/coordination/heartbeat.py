"""Failure detection. Pure: the caller brings the time, from a monotonic clock (case P60)."""

from __future__ import annotations

#: A threshold that no number of failures reaches.
NEVER = -1


class HeartbeatMonitor:
    """Which of many targets have been silent for too long (`heartbeat.timeout`).

    A target's deadline starts when this monitor first watches it, not at anything that was seen by
    an earlier leader or an earlier connection: silence during the gap counts against nobody (P37).
    """

    def __init__(self, timeout_s: float) -> None:
        if timeout_s <= 0:
            raise ValueError(f"heartbeat timeout must be positive, not {timeout_s} s")
        self._timeout_s = timeout_s
        self._deadline_s: dict[str, float] = {}

    def watch(self, target: str, now_s: float) -> None:
        """Begin, or begin anew, to expect heartbeats of the target."""
        self._deadline_s[target] = now_s + self._timeout_s

    def beat(self, target: str, now_s: float) -> bool:
        """Note a sign of life. False when the target is not watched (unknown, or expired)."""
        before_s = self._deadline_s.get(target)
        if before_s is None:
            return False
        deadline_s = now_s + self._timeout_s
        if deadline_s > before_s:
            self._deadline_s[target] = deadline_s
        return True

    def forget(self, target: str) -> None:
        """Expect nothing of the target any more."""
        self._deadline_s.pop(target, None)

    def start_anew(self, now_s: float) -> None:
        """Give every target a full timeout again: for an owner that was itself paused."""
        for target in self._deadline_s:
            self._deadline_s[target] = now_s + self._timeout_s

    def expired(self, now_s: float) -> list[str]:
        """The targets whose deadline has passed, in the order they were first watched.

        Each is told once and then no longer watched.
        """
        targets = [t for t, deadline_s in self._deadline_s.items() if deadline_s <= now_s]
        for target in targets:
            del self._deadline_s[target]
        return targets

    def next_deadline_s(self) -> float | None:
        """When the first target would expire, on the caller's clock; None without targets."""
        return min(self._deadline_s.values(), default=None)

    def targets(self) -> list[str]:
        """All watched targets, in the order they were first watched."""
        return list(self._deadline_s)


class RpcFailureCounter:
    """Whether calls to one peer have failed so often in a row that it counts as lost.

    `threshold` is `heartbeat.rpc-failure-threshold`; -1 leaves the verdict to
    `heartbeat.timeout`. A call that the peer answered, even with a
    refusal, is a success here.
    """

    def __init__(self, threshold: int) -> None:
        if threshold < 1 and threshold != NEVER:
            raise ValueError(
                f"heartbeat.rpc-failure-threshold must be at least 1, or {NEVER}, not {threshold}"
            )
        self._threshold = threshold
        self._failures = 0

    @property
    def failures(self) -> int:
        """Failures since the last success."""
        return self._failures

    def success(self) -> None:
        """Note a call that was answered."""
        self._failures = 0

    def failure(self) -> bool:
        """Note a call that failed; true when the peer is to be treated as lost."""
        self._failures += 1
        return self._threshold != NEVER and self._failures >= self._threshold
