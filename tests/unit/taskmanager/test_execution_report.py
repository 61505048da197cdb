"""What a JobManager hears of an attempt's end."""

from __future__ import annotations

import pytest

from holdover.v1.common_pb2 import EXECUTION_STATE_FAILED
from taskmanager.attempt_runs import CancelReason
from taskmanager.execution_report import end_report
from tests.doubles.taskmanager_world import attempt


def test_nobody_hears_of_an_attempt_whose_job_was_released() -> None:
    report = end_report(attempt("v"), CancelReason.RELEASED, None, offered_as_running=False)
    assert report is None


@pytest.mark.parametrize("reason", [CancelReason.RELEASED, CancelReason.JOBMANAGER_LOST])
def test_a_leader_that_was_told_of_an_attempt_hears_of_its_end(reason: CancelReason) -> None:
    """It was being stopped when the TaskManager registered with the leader that it had lost."""
    report = end_report(attempt("v"), reason, None, offered_as_running=True)
    assert report is not None
    assert report.state == EXECUTION_STATE_FAILED
    assert reason.value in report.failure.message
