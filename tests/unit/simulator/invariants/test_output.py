"""What a job's output may be, and when it may be seen."""

from __future__ import annotations

from holdover.v1 import common_pb2
from simulator.invariants.output import RESTARTS_EXHAUSTED, OutputIsComplete, row_difference
from tests.unit.jobmanager.scheduler.job_graphs import chain
from tests.unit.simulator.invariants.known_cluster import KnownCluster


def finished_cluster(committed: list[int]) -> KnownCluster:
    """CHAIN(2) has ended with these rows; it makes 1, 2 and 3."""
    cluster = KnownCluster(expected=[1, 2, 3], committed=committed)
    cluster.submit(chain(2))
    cluster.put("/out/_SUCCESS")
    cluster.archive(common_pb2.JOB_STATE_FINISHED)
    return cluster


def test_the_rows_of_a_run_without_faults_are_right() -> None:
    """Nothing is lost and nothing is there twice."""
    cluster = finished_cluster([1, 2, 3])
    invariant = cluster.checked(OutputIsComplete)
    invariant.check()
    assert cluster.findings == []
    assert invariant.at_end() == []


def test_a_lost_row_and_one_that_is_there_twice_are_named() -> None:
    """Both at once do not make it right."""
    cluster = finished_cluster([1, 1, 3])
    cluster.checked(OutputIsComplete).check()
    assert "lost [2], and has beyond them [1]" in cluster.findings[0]


def test_rows_of_two_attempts_of_an_indeterminate_subtask_are_found() -> None:
    """Behaviour 5.6: each identity is there once, and yet no single run has written this."""
    cluster = finished_cluster([1, 2, 3])
    cluster.mixed = [("m", 1)]
    cluster.checked(OutputIsComplete).check()
    assert "several attempts of m[1]" in cluster.findings[0]


def test_output_that_is_damaged_after_the_end_is_found() -> None:
    """What has ended stays as it is."""
    cluster = finished_cluster([1, 2, 3])
    invariant = cluster.checked(OutputIsComplete)
    invariant.check()
    cluster.committed = [1, 2]
    assert "lost [3]" in invariant.at_end()[0]


def test_a_finished_job_without_its_success_mark_is_found() -> None:
    """Readers wait for the mark."""
    cluster = KnownCluster()
    cluster.submit(chain(2))
    cluster.archive(common_pb2.JOB_STATE_FINISHED)
    cluster.checked(OutputIsComplete).check()
    assert "without /out/_SUCCESS" in cluster.findings[0]


def test_a_file_of_an_unfinished_job_must_not_be_visible() -> None:
    """Staged files are not visible."""
    cluster = KnownCluster()
    cluster.submit(chain(2))
    invariant = cluster.checked(OutputIsComplete)
    cluster.put("/out/.staging-job/k-0-0-1/part-0")
    invariant.check()
    assert cluster.findings == []
    cluster.put("/out/part-0")
    invariant.check()
    assert "/out/part-0 is visible" in cluster.findings[0]


def test_a_job_fails_only_for_what_its_scenario_can_cause() -> None:
    """The same message is right in one scenario and wrong in another."""
    for allowed, findings in (((RESTARTS_EXHAUSTED,), 0), ((), 1)):
        cluster = KnownCluster()
        cluster.submit(chain(2), failures_allowed=allowed)
        message = "boom (subtask m/0; the job has used all 3 restarts it may have)"
        cluster.archive(common_pb2.JOB_STATE_FAILED, failure=message)
        cluster.checked(OutputIsComplete).check()
        assert len(cluster.findings) == findings, cluster.findings


def test_a_job_is_cancelled_only_when_somebody_asked() -> None:
    """Cancellation is a client's."""
    cluster = KnownCluster()
    cluster.submit(chain(2))
    cluster.archive(common_pb2.JOB_STATE_CANCELED)
    cluster.checked(OutputIsComplete).check()
    assert "nobody asked" in cluster.findings[0]


def test_many_wrong_rows_are_told_in_one_line() -> None:
    """A text that nobody reads is worth nothing."""
    text = row_difference(range(1000), range(500))
    assert "lost [500, 501, 502, 503, 504, and 495 more]" in text
    assert row_difference([1], [1]) == ""
