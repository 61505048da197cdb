"""Reports wait until they are acknowledged, and coalesce meanwhile."""

from __future__ import annotations

from holdover.ids import AttemptKey
from holdover.v1.common_pb2 import Failure, FinishedExecution
from holdover.v1.taskmanager_pb2 import ExecutionReport
from taskmanager.execution_report import end_report, finished_report, running_report
from taskmanager.report_queue import ReportQueue


def attempt(subtask: int, epoch: int = 1) -> AttemptKey:
    return AttemptKey("job-a", "v0", subtask, attempt=0, epoch=epoch)


def finished(key: AttemptKey) -> ExecutionReport:
    return finished_report(FinishedExecution(attempt=key.to_proto()))


def failed(key: AttemptKey) -> ExecutionReport:
    report = end_report(key, None, Failure(message="boom"), offered_as_running=False)
    assert report is not None
    return report


def queue_of(*reports: tuple[AttemptKey, ExecutionReport], reports_max: int = 10) -> ReportQueue:
    queue = ReportQueue(reports_max)
    for key, report in reports:
        queue.add(key, report)
    return queue


def test_an_end_replaces_a_running_report_that_was_not_sent_and_never_the_reverse() -> None:
    key = attempt(0)
    queue = queue_of((key, running_report(key)))
    urgent = [queue.urgent]
    queue.add(key, finished(key))
    queue.add(key, running_report(key))
    assert [*urgent, queue.urgent] == [False, True]
    assert [report for _, report in queue.take(10, 1_000)] == [finished(key)]


def test_what_is_taken_stays_until_it_is_acknowledged() -> None:
    queue = queue_of((attempt(0), finished(attempt(0))))
    taken = queue.take(10, 1_000)
    assert queue.take(10, 1_000) == taken
    queue.acknowledge(taken)
    assert len(queue) == 0
    assert not queue.urgent


def test_an_end_that_came_while_running_was_being_sent_is_sent_next() -> None:
    key = attempt(0)
    queue = queue_of((key, running_report(key)))
    taken = queue.take(10, 1_000)
    queue.add(key, failed(key))
    queue.acknowledge(taken)
    assert [report for _, report in queue.take(10, 1_000)] == [failed(key)]


def test_a_call_carries_a_bounded_number_of_reports_and_bytes_but_at_least_one() -> None:
    keys = [attempt(subtask) for subtask in range(1, 6)]
    queue = queue_of(*((key, finished(key)) for key in keys))
    size = finished(keys[0]).ByteSize()
    assert len(queue.take(2, 1_000_000)) == 2
    assert len(queue.take(5, 3 * size + 5)) == 3
    assert len(queue.take(5, 1)) == 1


def test_dropping_spares_finished_attempts_when_asked_to() -> None:
    old, new = attempt(0, epoch=1), attempt(1, epoch=2)
    lost = attempt(2, epoch=1)
    queue = queue_of((old, finished(old)), (new, running_report(new)), (lost, failed(lost)))
    queue.drop(lambda key: key.epoch < 2, keep_finished=True)
    assert [key for key, _ in queue.take(10, 1_000)] == [old, new]
    queue.drop(lambda key: key.job_id == "job-a")
    assert len(queue) == 0
    assert not queue.urgent


def test_a_full_queue_says_so() -> None:
    queue = queue_of((attempt(0), finished(attempt(0))), reports_max=1)
    assert queue.full
