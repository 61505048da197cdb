"""What a watcher has been told, so that every state is told once. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdover.v1.common_pb2 import JobState
from holdover.v1.jobmanager_pb2 import JobStateEntry, JobStatus

#: States after which nothing of a job changes any more.
TERMINAL_STATES = (
    JobState.JOB_STATE_FINISHED,
    JobState.JOB_STATE_FAILED,
    JobState.JOB_STATE_CANCELED,
)


def is_terminal(status: JobStatus) -> bool:
    """Whether the job has ended."""
    return status.state in TERMINAL_STATES


def state_name(state: JobState.ValueType) -> str:
    """The state as users know it: `RUNNING`."""
    return JobState.Name(state).removeprefix("JOB_STATE_")


class StateFeed:
    """Turns the statuses that arrive into those that a watcher sees.

    Each status that a watcher sees has one more state in its history than the one before, or the
    same states and newer figures. States that happened while nobody was connected come out one by
    one, from the history that each status carries. Where a new leader's history lacks a state
    that was told already (it was not durable when its leader died), it stays told.
    """

    def __init__(self) -> None:
        self._told: list[JobStateEntry] = []
        self._last: JobStatus | None = None

    def statuses(self, arrived: JobStatus) -> list[JobStatus]:
        """What the watcher sees next; nothing when `arrived` says nothing new."""
        fresh = _not_told(self._told, arrived.history)
        statuses: list[JobStatus] = []
        for entry in fresh:
            self._told.append(entry)
            missed = self._with_history(arrived)
            missed.state = entry.state
            statuses.append(missed)
        # The last one stands for the status itself.
        present = self._with_history(arrived)
        if statuses:
            statuses[-1] = present
        elif present != self._last:
            statuses.append(present)
        self._last = present
        return statuses

    def _with_history(self, arrived: JobStatus) -> JobStatus:
        status = JobStatus()
        status.CopyFrom(arrived)
        del status.history[:]
        status.history.extend(self._told)
        return status


def _not_told(
    told: Sequence[JobStateEntry], history: Sequence[JobStateEntry]
) -> list[JobStateEntry]:
    """The entries of `history` beyond those in `told`, in order; equal entries are counted."""
    remaining = Counter(_key(entry) for entry in told)
    fresh: list[JobStateEntry] = []
    for entry in history:
        key = _key(entry)
        if remaining[key]:
            remaining[key] -= 1
        else:
            fresh.append(entry)
    return fresh


def _key(entry: JobStateEntry) -> tuple[int, int, int]:
    return entry.state, entry.leader_epoch, entry.wall_ms
