"""What the JobManager is told of an attempt."""

from __future__ import annotations

from holdover.ids import AttemptKey
from holdover.v1.common_pb2 import (
    EXECUTION_STATE_CANCELED,
    EXECUTION_STATE_FAILED,
    EXECUTION_STATE_FINISHED,
    EXECUTION_STATE_RUNNING,
    FAILURE_KIND_CANCELED,
    Failure,
    FinishedExecution,
)
from holdover.v1.taskmanager_pb2 import ExecutionReport
from taskmanager.attempt_runs import CancelReason


def running_report(key: AttemptKey) -> ExecutionReport:
    """A process has the attempt."""
    return ExecutionReport(attempt=key.to_proto(), state=EXECUTION_STATE_RUNNING)


def finished_report(execution: FinishedExecution) -> ExecutionReport:
    """It finished, and this is what it left behind."""
    return ExecutionReport(
        attempt=execution.attempt, state=EXECUTION_STATE_FINISHED, finished=execution
    )


def end_report(
    key: AttemptKey,
    cancel_reason: CancelReason | None,
    failure: Failure | None,
    *,
    offered_as_running: bool,
) -> ExecutionReport | None:
    """It ended without a result; None when nobody wants to know, because its job was released.

    A leader that was told at the registration that the attempt runs waits for its end all the same.
    """
    attempt = key.to_proto()
    if cancel_reason is None:
        failure = failure or Failure(message="the task ended without a result")
        return ExecutionReport(attempt=attempt, state=EXECUTION_STATE_FAILED, failure=failure)
    if cancel_reason is CancelReason.RELEASED and not offered_as_running:
        return None
    if cancel_reason in (CancelReason.RELEASED, CancelReason.JOBMANAGER_LOST):
        failure = Failure(
            kind=FAILURE_KIND_CANCELED, message=f"stopped because {cancel_reason.value}"
        )
        return ExecutionReport(attempt=attempt, state=EXECUTION_STATE_FAILED, failure=failure)
    return ExecutionReport(attempt=attempt, state=EXECUTION_STATE_CANCELED)
