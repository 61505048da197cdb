"""The record of a run, built from log events and ends of processes."""

from __future__ import annotations

import pytest

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, jobmanager_pb2
from simulator.measures import rerun_subtasks
from simulator.record import RunRecord
from simulator.recorder import RunRecorder


@pytest.fixture
def recorder() -> RunRecorder:
    return RunRecorder("test", "simulated", 7)


def key(subtask: int, attempt: int = 0, epoch: int = 1, vertex: str = "v0") -> AttemptKey:
    return AttemptKey("job", vertex, subtask, attempt, epoch)


def lead(recorder: RunRecorder, epoch: int, from_s: float, ready_s: float) -> None:
    recorder.log_line(from_s, f"jm-{epoch}", "leadership won", {"epoch": epoch})
    recorder.log_line(ready_s, f"jm-{epoch}", "jobmanager leads", {"epoch": str(epoch)})


def test_epoch_ends_with_its_process(recorder: RunRecorder) -> None:
    lead(recorder, 1, 0.5, 0.6)
    recorder.jobmanager_ended(3.0, "jm-1")
    lead(recorder, 2, 4.0, 4.5)
    first, second = recorder.finish(10.0).epochs
    assert (first.from_s, first.ready_s, first.until_s) == (0.5, 0.6, 3.0)
    assert (second.jobmanager, second.until_s) == ("jm-2", None)


def test_leader_that_a_fault_has_silenced_ended_with_the_fault(recorder: RunRecorder) -> None:
    lead(recorder, 1, 0.0, 0.0)
    recorder.fault(2.0, "pause", ["jm-1"])
    lead(recorder, 2, 5.0, 5.0)
    assert recorder.finish(10.0).epochs[0].until_s == 2.0


def test_leader_of_unknown_end_ended_when_the_next_was_elected(recorder: RunRecorder) -> None:
    lead(recorder, 1, 0.0, 0.0)
    lead(recorder, 2, 5.0, 5.0)
    assert recorder.finish(10.0).epochs[0].until_s == 5.0


def test_wait_for_workers_is_kept_per_epoch(recorder: RunRecorder) -> None:
    lead(recorder, 2, 1.0, 1.0)
    state = {"job": "job", "epoch": 2}
    recorder.log_line(1.0, "jm-2", "job state", {**state, "state": "RECONCILING"})
    recorder.log_line(3.5, "jm-2", "job state", {**state, "state": "RUNNING"})
    record = recorder.finish(10.0)
    assert record.epochs[0].reconciling == [("job", 1.0, 3.5)]
    assert record.jobs[0].state == "RUNNING"


def test_death_of_the_leader_ends_its_wait(recorder: RunRecorder) -> None:
    lead(recorder, 2, 1.0, 1.0)
    recorder.log_line(1.0, "jm-2", "job state", {"job": "job", "epoch": 2, "state": "RECONCILING"})
    recorder.jobmanager_ended(2.0, "jm-2")
    assert recorder.finish(10.0).epochs[0].reconciling == [("job", 1.0, 2.0)]


def test_a_leader_that_was_frozen_did_not_wait_when_it_woke_after_its_successor(
    recorder: RunRecorder,
) -> None:
    lead(recorder, 1, 0.0, 0.0)
    recorder.fault(1.0, "pause", ["jm-1"])
    lead(recorder, 2, 5.0, 5.0)
    state = {"job": "job", "epoch": 1, "state": "RECONCILING"}
    recorder.log_line(7.0, "jm-1", "job state", state)
    assert recorder.finish(10.0).epochs[0].reconciling == []


def test_connections_and_lives_of_a_worker(recorder: RunRecorder) -> None:
    recorder.worker_started(0.0, "tm-0", rack="r1", slots=4)
    recorder.log_line(1.0, "tm-0", "registered", {"leader_epoch": "1"})
    recorder.log_line(3.0, "tm-0", "connection to the JobManager ended", {"reason": "x"})
    recorder.log_line(4.0, "tm-0", "registered", {"leader_epoch": "2"})
    recorder.worker_ended(6.0, "tm-0")
    recorder.worker_started(7.0, "tm-0")
    (worker,) = recorder.finish(10.0).workers
    assert (worker.rack, worker.slots) == ("r1", 4)
    assert worker.lives == [(0.0, 6.0), (7.0, None)]
    assert worker.connections == [(1, 1.0, 3.0), (2, 4.0, 6.0)]


def test_of_a_subtask_that_finished_twice_the_last_is_kept(recorder: RunRecorder) -> None:
    recorder.attempt_started(0.0, "tm-0", key(0))
    recorder.attempt_ended(2.0, key(0), "finished", 100)
    recorder.attempt_started(5.0, "tm-1", key(0, 1, 2))
    recorder.attempt_ended(8.0, key(0, 1, 2), "finished", 100)
    record = recorder.finish(10.0)
    assert [attempt.kept for attempt in record.attempts] == [False, True]
    assert record.measures.work_rerun_s == 2.0
    assert (record.measures.subtasks_rerun, record.measures.finished_rerun) == (1, 1)
    assert rerun_subtasks(record) == [("job", "v0", 0)]


def test_finished_after_the_next_attempt_began_is_not_a_rerun_of_finished_work(
    recorder: RunRecorder,
) -> None:
    recorder.attempt_started(0.0, "tm-0", key(0))
    recorder.attempt_started(5.0, "tm-1", key(0, 1, 2))
    recorder.attempt_ended(6.0, key(0), "finished")
    recorder.attempt_ended(8.0, key(0, 1, 2), "finished")
    measures = recorder.finish(10.0).measures
    assert (measures.subtasks_rerun, measures.finished_rerun) == (1, 0)


def test_attempt_whose_end_nobody_saw_is_lost_with_its_worker(recorder: RunRecorder) -> None:
    recorder.worker_started(0.0, "tm-0")
    recorder.attempt_started(1.0, "tm-0", key(0))
    recorder.worker_ended(4.0, "tm-0")
    (attempt,) = recorder.finish(10.0).attempts
    assert (attempt.end, attempt.ended_s, attempt.kept) == ("lost", 4.0, False)


def test_attempt_whose_end_nobody_saw_was_stopped_when_its_worker_lost_the_leader(
    recorder: RunRecorder,
) -> None:
    recorder.attempt_started(1.0, "tm-0", key(0))
    recorder.log_line(3.0, "tm-0", "JobManager lost", {"reason": "silence"})
    recorder.log_line(9.0, "jm-1", "job ended", {"job": "job", "state": "JOB_STATE_FINISHED"})
    (attempt,) = recorder.finish(10.0).attempts
    assert (attempt.end, attempt.ended_s) == ("canceled", 3.0)


def test_attempts_of_unknown_slot_share_the_lowest_free_ones(recorder: RunRecorder) -> None:
    for subtask, (from_s, until_s) in enumerate([(0.0, 2.0), (1.0, 5.0), (2.0, 3.0)]):
        recorder.attempt_started(from_s, "tm-0", key(subtask))
        recorder.attempt_ended(until_s, key(subtask), "finished")
    assert [attempt.slot for attempt in recorder.finish(10.0).attempts] == [0, 1, 0]


def recovered(recorder: RunRecorder, first_start_s: float) -> RunRecord:
    recorder.job_submitted(0.0, "job", "a job")
    lead(recorder, 1, 0.0, 0.0)
    recorder.attempt_started(1.0, "tm-0", key(0))
    recorder.jobmanager_ended(3.0, "jm-1")
    lead(recorder, 2, 4.0, 4.0)
    recorder.jobmanager_ended(4.5, "jm-2")
    lead(recorder, 3, 5.0, 5.0)
    recorder.attempt_started(first_start_s, "tm-0", key(0, 1, 3))
    recorder.log_line(20.0, "jm-3", "job ended", {"job": "job", "state": "JOB_STATE_FINISHED"})
    return recorder.finish(21.0)


def test_recovery_lasts_until_a_later_leader_deploys(recorder: RunRecorder) -> None:
    assert recovered(recorder, 7.5).measures.recovery_s == 4.5


def test_job_that_came_later_is_no_recovery(recorder: RunRecorder) -> None:
    lead(recorder, 1, 0.0, 0.0)
    recorder.jobmanager_ended(3.0, "jm-1")
    lead(recorder, 2, 4.0, 4.0)
    recorder.job_submitted(8.0, "job", "a job")
    recorder.attempt_started(9.0, "tm-0", key(0, 0, 2))
    assert recorder.finish(21.0).measures.recovery_s is None


def test_time_to_finish_is_from_submission_to_end(recorder: RunRecorder) -> None:
    record = recovered(recorder, 7.5)
    assert record.measures.finish_s == 20.0
    assert (record.jobs[0].name, record.jobs[0].state) == ("a job", "FINISHED")


def test_no_time_to_finish_while_a_job_runs(recorder: RunRecorder) -> None:
    recorder.job_submitted(0.0, "other", "never ends")
    assert recovered(recorder, 7.5).measures.finish_s is None


def test_status_of_a_job_brings_its_vertices_and_reports(recorder: RunRecorder) -> None:
    status = jobmanager_pb2.JobStatus(
        job_id="job",
        name="a job",
        state=common_pb2.JOB_STATE_FAILED,
        failure=common_pb2.Failure(message="it broke"),
        vertices=[jobmanager_pb2.VertexStatus(vertex_id="v0", name="map", parallelism=3)],
    )
    recorder.job(status, [jobmanager_pb2.RecoveryReport(leader_epoch=2)])
    (job,) = recorder.finish(1.0).jobs
    assert (job.state, job.failure) == ("FAILED", "it broke")
    assert [(v.vertex_id, v.name, v.parallelism) for v in job.vertices] == [("v0", "map", 3)]
    assert job.recoveries == [{"leader_epoch": "2"}]


def test_what_is_held_is_told_once_until_it_changes(recorder: RunRecorder) -> None:
    for at_s, partitions in [(1.0, 2), (2.0, 2), (3.0, 1)]:
        recorder.held(at_s, partitions, 10 * partitions)
    record = recorder.finish(4.0)
    assert [(held.at_s, held.bytes) for held in record.held] == [(1.0, 20), (3.0, 10)]
    assert (record.measures.partitions_held_max, record.measures.bytes_retained_max) == (2, 20)


def test_faults_are_healed_once(recorder: RunRecorder) -> None:
    number = recorder.fault(1.0, "cut", ["jm-1", "tm-0"], "both ways")
    recorder.healed(2.0, number)
    recorder.healed(3.0, number)
    assert recorder.finish(4.0).faults[0].until_s == 2.0


def test_record_survives_json(recorder: RunRecorder) -> None:
    record = recovered(recorder, 7.5)
    assert RunRecord.from_json(record.to_json()) == record
