"""One job's view of the JobManager, as a state machine. Pure: it decides, the TaskExecutor acts.

    CONNECTED --lost, recovery enabled and something finished is held--> RETAINING
    CONNECTED --lost otherwise-----------------------------------------> RELEASED
    RETAINING --registered with a leader-------------------------------> CONNECTED
    RETAINING --registration timeout since the loss--------------------> RELEASED
    any       --the leader releases the job----------------------------> RELEASED

A worker that was restarted begins with RETAINING, for the jobs whose finished work it has found.

Source: FLIP-383, "TaskManager"; behaviour on the loss of the JobManager (cases P21, P27).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class JobLeaderState(enum.Enum):
    """Where a job stands."""

    CONNECTED = "connected"
    RETAINING = "retaining"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class FailTasks:
    """Stop every task of the job and delete what it wrote."""

    job_id: str


@dataclass(frozen=True, slots=True)
class RetainFinished:
    """Keep what is finished and look for a leader until the deadline (monotonic clock)."""

    job_id: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class ReleaseAll:
    """Delete everything of the job."""

    job_id: str
    reason: str


JobLeaderAction = FailTasks | RetainFinished | ReleaseAll


class JobLeaderConnection:
    """What becomes of one job while leaders come and go.

    Whether something finished is held is asked at the moment of each decision, never remembered:
    slots may all have been given back long before (P21).
    """

    def __init__(self, job_id: str, epoch: int) -> None:
        self.job_id = job_id
        self._epoch = epoch
        self._state = JobLeaderState.CONNECTED
        self._deadline_s: float | None = None

    @classmethod
    def found(cls, job_id: str, now_s: float, timeout_s: float) -> JobLeaderConnection:
        """A job whose finished work was found after a restart: for it the leader is lost since
        now."""
        job = cls(job_id, 0)
        job._state = JobLeaderState.RETAINING
        job._deadline_s = now_s + timeout_s
        return job

    @property
    def state(self) -> JobLeaderState:
        """The present state."""
        return self._state

    @property
    def epoch(self) -> int:
        """The epoch of the leader that the job was last connected to."""
        return self._epoch

    @property
    def deadline_s(self) -> float | None:
        """When a retained job is released (monotonic clock); None in the other states."""
        return self._deadline_s

    def lost(
        self, now_s: float, *, recovery_enabled: bool, holds_finished: bool, timeout_s: float
    ) -> tuple[JobLeaderAction, ...]:
        """The leader is lost. A second loss within the same outage changes nothing."""
        if self._state is not JobLeaderState.CONNECTED:
            return ()
        if recovery_enabled and holds_finished:
            self._state = JobLeaderState.RETAINING
            self._deadline_s = now_s + timeout_s
            return (FailTasks(self.job_id), RetainFinished(self.job_id, self._deadline_s))
        reason = "nothing finished to keep" if recovery_enabled else "recovery is disabled"
        return (FailTasks(self.job_id), *self.released(f"JobManager lost; {reason}"))

    def registered(self, epoch: int) -> None:
        """A leader has taken the registration. The timer belonged to the outage that ends here."""
        if self._state is JobLeaderState.RELEASED:
            raise ValueError(f"job {self.job_id} is released and cannot be connected again")
        self._state = JobLeaderState.CONNECTED
        self._epoch = epoch
        self._deadline_s = None

    def expired(self, now_s: float) -> tuple[JobLeaderAction, ...]:
        """The clock moved on; releases a job whose deadline has passed (P27)."""
        if self._deadline_s is None or now_s < self._deadline_s:
            return ()
        return self.released("no JobManager took the registration in time")

    def released(self, reason: str) -> tuple[JobLeaderAction, ...]:
        """The job is over here. Repeating it changes nothing."""
        if self._state is JobLeaderState.RELEASED:
            return ()
        self._state = JobLeaderState.RELEASED
        self._deadline_s = None
        return (ReleaseAll(self.job_id, reason),)
