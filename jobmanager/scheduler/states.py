"""States of jobs and executions, and which state may follow which.

The tables are the single source of truth: the graph refuses every other transition, the
documentation's diagrams are drawn from them, and a test walks them.
"""

from __future__ import annotations

from enum import IntEnum

from holdover.v1 import common_pb2


class JobState(IntEnum):
    """State of a job; the numbers are those of the wire."""

    CREATED = common_pb2.JOB_STATE_CREATED
    RUNNING = common_pb2.JOB_STATE_RUNNING
    RECONCILING = common_pb2.JOB_STATE_RECONCILING
    FAILING = common_pb2.JOB_STATE_FAILING
    CANCELLING = common_pb2.JOB_STATE_CANCELLING
    FINISHED = common_pb2.JOB_STATE_FINISHED
    FAILED = common_pb2.JOB_STATE_FAILED
    CANCELED = common_pb2.JOB_STATE_CANCELED
    PARKED = common_pb2.JOB_STATE_PARKED


class ExecutionState(IntEnum):
    """State of the current attempt of a subtask; the numbers are those of the wire."""

    CREATED = common_pb2.EXECUTION_STATE_CREATED
    SCHEDULED = common_pb2.EXECUTION_STATE_SCHEDULED
    DEPLOYING = common_pb2.EXECUTION_STATE_DEPLOYING
    RUNNING = common_pb2.EXECUTION_STATE_RUNNING
    FINISHED = common_pb2.EXECUTION_STATE_FINISHED
    CANCELING = common_pb2.EXECUTION_STATE_CANCELING
    CANCELED = common_pb2.EXECUTION_STATE_CANCELED
    FAILED = common_pb2.EXECUTION_STATE_FAILED


JOB_TRANSITIONS: dict[JobState, tuple[JobState, ...]] = {
    JobState.CREATED: (
        JobState.RUNNING,
        JobState.RECONCILING,
        JobState.CANCELLING,
        JobState.FAILING,
    ),
    # A job that ran under the leader before is seen RECONCILING by the next one.
    JobState.RUNNING: (
        JobState.RECONCILING,
        JobState.FAILING,
        JobState.CANCELLING,
        JobState.FINISHED,
    ),
    JobState.RECONCILING: (
        JobState.RECONCILING,
        JobState.RUNNING,
        JobState.FAILING,
        JobState.CANCELLING,
    ),
    JobState.FAILING: (JobState.FAILING, JobState.FAILED),
    JobState.CANCELLING: (JobState.CANCELLING, JobState.CANCELED),
    JobState.FINISHED: (),
    JobState.FAILED: (),
    JobState.CANCELED: (),
    JobState.PARKED: (),
}

EXECUTION_TRANSITIONS: dict[ExecutionState, tuple[ExecutionState, ...]] = {
    ExecutionState.CREATED: (ExecutionState.SCHEDULED, ExecutionState.FINISHED),
    ExecutionState.SCHEDULED: (
        ExecutionState.CREATED,
        ExecutionState.DEPLOYING,
        ExecutionState.FINISHED,
    ),
    ExecutionState.DEPLOYING: (
        ExecutionState.RUNNING,
        ExecutionState.FINISHED,
        ExecutionState.FAILED,
        ExecutionState.CANCELING,
    ),
    ExecutionState.RUNNING: (
        ExecutionState.FINISHED,
        ExecutionState.FAILED,
        ExecutionState.CANCELING,
    ),
    # A reset takes a finished or ended subtask back to CREATED, with a new attempt.
    ExecutionState.FINISHED: (ExecutionState.CREATED,),
    ExecutionState.CANCELING: (ExecutionState.CANCELED,),
    ExecutionState.CANCELED: (ExecutionState.CREATED,),
    ExecutionState.FAILED: (ExecutionState.CREATED,),
}

ACTIVE_EXECUTION_STATES = (
    ExecutionState.DEPLOYING,
    ExecutionState.RUNNING,
    ExecutionState.CANCELING,
)
"""States in which an attempt may occupy a slot of a TaskManager."""

TERMINAL_JOB_STATES = (JobState.FINISHED, JobState.FAILED, JobState.CANCELED)
"""States in which nothing of the job runs again."""


class InvalidTransition(Exception):
    """A state was about to follow one it may not follow: a bug in the scheduler, never a user's
    mistake.
    """


def check_job_transition(before: JobState, after: JobState) -> None:
    """Raise InvalidTransition unless `after` may follow `before`."""
    if after not in JOB_TRANSITIONS[before]:
        raise InvalidTransition(f"job {before.name} -> {after.name}")
