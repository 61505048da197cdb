"""What a user weighs about a run, computed from its record. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from simulator.record import AttemptRecord, EpochRecord, JobRecord, Measures, RunRecord

SubtaskKey = tuple[str, str, int]
"""Job, vertex and number of a subtask."""


def subtask_key(attempt: AttemptRecord) -> SubtaskKey:
    """Whose attempt it is."""
    return attempt.job_id, attempt.vertex_id, attempt.subtask


def measured(record: RunRecord) -> Measures:
    """The measures of a run whose attempts are sorted by their start."""
    again, finished_again = _rerun(record.attempts)
    return Measures(
        work_rerun_s=sum(
            (record.duration_s if a.ended_s is None else a.ended_s) - a.started_s
            for a in record.attempts
            if not a.kept
        ),
        subtasks_rerun=len(again),
        finished_rerun=len(finished_again),
        recovery_s=_recovery_s(record),
        finish_s=_finish_s(record.jobs),
        partitions_held_max=max((held.partitions for held in record.held), default=0),
        bytes_retained_max=max((held.bytes for held in record.held), default=0),
    )


def rerun_subtasks(record: RunRecord) -> list[SubtaskKey]:
    """The subtasks of which more than one attempt began, in order."""
    return sorted(_rerun(record.attempts)[0])


def _rerun(attempts: Iterable[AttemptRecord]) -> tuple[set[SubtaskKey], set[SubtaskKey]]:
    """Subtasks that began again, and those among them that had finished before."""
    begun: set[SubtaskKey] = set()
    finished_s: dict[SubtaskKey, float] = {}
    again: set[SubtaskKey] = set()
    finished_again: set[SubtaskKey] = set()
    for attempt in attempts:
        key = subtask_key(attempt)
        if key in begun:
            again.add(key)
        if finished_s.get(key, math.inf) <= attempt.started_s:
            finished_again.add(key)
        begun.add(key)
        if attempt.end == "finished" and attempt.ended_s is not None:
            finished_s[key] = min(attempt.ended_s, finished_s.get(key, math.inf))
    return again, finished_again


def _recovery_s(record: RunRecord) -> float | None:
    """From a leader's death to the first attempt that a later one deployed, for jobs that were
    there at the death and had not ended; the longest.

    A leader that dies before it has deployed anything prolongs the recovery from the death before.
    """
    longest_s: float | None = None
    epochs = record.epochs
    for index, epoch in enumerate(epochs[:-1]):
        if epoch.until_s is None:
            continue
        waiting = {job.job_id for job in record.jobs if _unfinished_at(job, epoch.until_s)}
        first_s = _first_start_s(record.attempts, epochs[index + 1 :], waiting)
        if first_s is not None and (longest_s is None or first_s - epoch.until_s > longest_s):
            longest_s = first_s - epoch.until_s
    return longest_s


def _unfinished_at(job: JobRecord, at_s: float) -> bool:
    return job.submitted_s <= at_s and (job.ended_s is None or job.ended_s > at_s)


def _first_start_s(
    attempts: Iterable[AttemptRecord], later: Iterable[EpochRecord], job_ids: set[str]
) -> float | None:
    epochs = {epoch.epoch for epoch in later}
    for attempt in attempts:
        if attempt.epoch in epochs and attempt.job_id in job_ids:
            return attempt.started_s
    return None


def _finish_s(jobs: Iterable[JobRecord]) -> float | None:
    """From submission to end, the longest; None when a job has not ended."""
    durations_s = [None if job.ended_s is None else job.ended_s - job.submitted_s for job in jobs]
    known_s = [duration_s for duration_s in durations_s if duration_s is not None]
    return max(known_s) if known_s and len(known_s) == len(durations_s) else None
