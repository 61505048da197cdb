"""Failures of tasks and workers while one leader leads (behaviour 6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdover.ids import partition_name
from holdover.v1 import common_pb2, job_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.core import SLOT_TIMER
from jobmanager.scheduler.failures import RESTART_TIMER
from jobmanager.scheduler.states import ExecutionState, JobState
from tests.doubles.scheduler_world import OPTIONS, SchedulerWorld, Worker
from tests.unit.jobmanager.scheduler.job_graphs import chain, join
from tests.unit.jobmanager.scheduler.scenes import (
    finish,
    fire,
    graph_of,
    holder_of,
    lose_output,
    next_leader,
    register,
    resets_of,
    started,
    starts_of,
)


def failure(kind: common_pb2.FailureKind.ValueType, *lost: str) -> common_pb2.Failure:
    return common_pb2.Failure(kind=kind, message="it raised", lost_partitions=lost)


def report(world: SchedulerWorld, worker: Worker, key: object, failed: common_pb2.Failure) -> None:
    """The TaskManager reports that a task failed like this."""
    running = next(k for k in worker.running if k == key)
    del worker.running[running]
    world.deliver(
        sig.ExecutionReported(worker.worker_id, running, ExecutionState.FAILED, failure=failed)
    )


def restarts(world: SchedulerWorld) -> int:
    assert world.scheduler is not None
    return world.scheduler.restart_strategy.restarts


def test_a_failed_task_runs_again_after_the_delay_and_alone() -> None:
    world = started(chain(2))
    worker, key = world.tasks()[0]
    report(world, worker, key, failure(common_pb2.FAILURE_KIND_TASK))
    timer = f"{RESTART_TIMER}{key.vertex_id}/{key.subtask}"
    assert world.timers[timer] == 1
    assert graph_of(world).vertex_at("s", key.subtask).state is ExecutionState.CREATED
    fire(world, timer)
    assert starts_of(world)[2:] == [("s", key.subtask)]
    assert world.starts[-1].attempt == 1
    assert restarts(world) == 1


@pytest.mark.parametrize(("vertex_id", "again"), [("m", []), ("k", [act.MakeStaging()])])
def test_when_what_writes_files_fails_there_is_a_directory_for_them_the_next_time(
    vertex_id: str, again: list[act.MakeStaging]
) -> None:
    """Somebody may have deleted it: a leader that was frozen over its end of the job, or a user."""
    world = started(chain(2))
    finish(world, "s")
    if vertex_id == "k":
        finish(world, "m")
    worker, key = next(task for task in world.tasks() if task[1].vertex_id == vertex_id)
    failed = failure(common_pb2.FAILURE_KIND_TASK)
    signal = sig.ExecutionReported(worker.worker_id, key, ExecutionState.FAILED, failure=failed)
    assert world.scheduler is not None
    decision = world.scheduler.handle(signal)
    assert [a for a in decision.actions if isinstance(a, act.MakeStaging)] == again


def test_a_job_failure_fails_the_job_at_once_and_cancels_the_rest() -> None:
    world = started(chain(3))
    worker, key = world.tasks()[0]
    report(world, worker, key, failure(common_pb2.FAILURE_KIND_JOB))
    world.deliver_pending()
    assert world.ended is JobState.FAILED
    assert world.failure is not None
    assert world.failure.message == "it raised"
    assert (restarts(world), world.tasks()) == (0, [])


def test_the_last_restart_fails_the_job_and_says_so() -> None:
    world = started(chain(1))
    assert world.scheduler is not None
    world.scheduler.restart_strategy.attempts_max = 2
    for _ in range(3):
        world.fail(*world.tasks()[0])
        world.deliver_pending()
        if world.ended is None:
            fire(world, f"{RESTART_TIMER}s/0")
    assert world.ended is JobState.FAILED
    assert world.failure is not None
    assert world.failure.message == (
        "raised (subtask s/0; the job has used all 2 restarts it may have)"
    )


@pytest.mark.parametrize(
    "kind", [common_pb2.FAILURE_KIND_TASKMANAGER_LOST, common_pb2.FAILURE_KIND_CANCELED]
)
def test_what_is_no_fault_of_the_task_costs_no_restart(
    kind: common_pb2.FailureKind.ValueType,
) -> None:
    world = started(chain(1))
    worker, key = world.tasks()[0]
    report(world, worker, key, failure(kind))
    world.deliver_pending()
    assert (restarts(world), starts_of(world)) == (0, [("s", 0), ("s", 0)])


def test_a_refused_deployment_is_tried_again_after_a_pause_and_costs_no_restart() -> None:
    world = started(chain(1))
    _, key = world.tasks()[0]
    world.workers["tm-0"].running.clear()
    world.deliver(sig.DeploymentRefused(key, "busy"))
    assert restarts(world) == 0
    fire(world, f"{RESTART_TIMER}s/0")
    assert starts_of(world) == [("s", 0), ("s", 0)]


def test_many_reports_of_one_lost_partition_reset_its_producer_once() -> None:
    """P34: exactly the producers of the two lost files run again, once; each reader at most once
    more.
    """
    world = started(chain(4))
    finish(world, "s")
    before = len(world.starts)
    lose_output(world, "s", [1, 2])
    world.run_to_end()
    runs = starts_of(world, before)
    assert [run for run in runs if run[0] == "s"] == [("s", 1), ("s", 2)]
    assert all(runs.count(("m", i)) <= 2 for i in range(4))
    assert restarts(world) == 1
    assert world.output() == list(range(8))


def test_a_report_about_an_older_attempts_partition_resets_nothing() -> None:
    world = started(chain(2))
    finish(world, "s")
    _, old = holder_of(world, "s", 0)
    name = partition_name(old._replace(attempt=7), 0)
    worker, key = world.tasks()[0]
    report(world, worker, key, failure(common_pb2.FAILURE_KIND_PARTITION_LOST, name))
    world.deliver_pending()
    assert (resets_of(world), restarts(world)) == ({}, 0)
    assert key.subtask in [k.subtask for _, k in world.tasks()]


@pytest.mark.parametrize("name", ["", "job/s", "job/s-0-x-0-1", "other/s-0-0-0-1", "job/q-0-0-0-1"])
def test_a_name_that_is_no_partition_of_this_job_resets_nothing(name: str) -> None:
    world = started(chain(2))
    finish(world, "s")
    worker, key = world.tasks()[0]
    report(world, worker, key, failure(common_pb2.FAILURE_KIND_PARTITION_LOST, name))
    world.run_to_end()
    assert resets_of(world) == {}


def test_a_lost_worker_is_lost_in_one_step() -> None:
    """P16: everything that it held and ran, at once, and nothing else."""
    world = started(chain(4), workers=4)
    finish(world, "s")
    lost = world.workers["tm-1"]
    held = sorted(k.subtask for k in lost.stored)
    assert held
    world.kill_worker(lost)
    log, before = len(world.log), len(world.starts)
    world.deliver(world.pending.pop(0))
    assert resets_of(world, log) == {("s", "WORKER_LOST"): held}
    world.run_to_end()
    assert sorted(run for run in starts_of(world, before) if run[0] == "s") == [
        ("s", subtask) for subtask in held
    ]
    assert restarts(world) == 0
    assert world.output() == list(range(8))


def test_losing_output_that_nobody_needs_resets_nothing() -> None:
    """P17."""
    world = started(chain(4), options=replace(OPTIONS, release_during_execution=False))
    finish(world, "s")
    finish(world, "m")
    holders = [holder_of(world, "m", i)[0] for i in range(4)]
    idle = next((w for w in world.workers.values() if w not in holders), None)
    world.log.clear()
    if idle is not None:
        world.kill_worker(idle)
        world.deliver_pending()
        assert resets_of(world) == {}
    for i in range(4):
        graph_of(world).set_available(graph_of(world).vertex_at("s", i), False)
    world.run_to_end()
    assert {run for run in starts_of(world) if starts_of(world).count(run) > 1} == set()


@pytest.mark.parametrize("state", [ExecutionState.FINISHED, ExecutionState.FAILED])
def test_a_late_report_of_a_replaced_attempt_changes_nothing(state: ExecutionState) -> None:
    """P15: its worker was thought dead; attempt 1 runs elsewhere."""
    world = started(chain(4), workers=4)
    worker, key = world.tasks()[0]
    world.deliver(sig.WorkerLost(worker.worker_id, "silent"))
    world.deliver_pending()
    vertex = graph_of(world).vertex_at(key.vertex_id, key.subtask)
    assert vertex.attempt == 1
    before, log = vertex.state, len(world.log)
    done = common_pb2.FinishedExecution(attempt=key.to_proto())
    worker.stored[key] = done
    failed = failure(common_pb2.FAILURE_KIND_TASK)
    world.deliver(sig.ExecutionReported(worker.worker_id, key, state, done, failed))
    assert (vertex.attempt, vertex.state, world.log[log:]) == (1, before, [])
    assert restarts(world) == 0
    assert (key in worker.stored) is (state is ExecutionState.FAILED), "its output is deleted"


def test_a_report_that_comes_twice_deletes_nothing() -> None:
    world = started(chain(2))
    worker, key = world.tasks()[0]
    world.finish(worker, key)
    world.deliver(world.pending[0])
    world.deliver_pending()
    assert key in worker.stored


def indeterminate_job() -> job_pb2.JobGraph:
    job = chain(3)
    job.vertices[1].operators[0].determinism = job_pb2.DETERMINISM_INDETERMINATE
    return job


def test_readers_of_an_indeterminate_producer_that_reruns_run_again() -> None:
    """Behaviour 5.6: a finished sink subtask, and one that is just reading."""
    world = started(indeterminate_job(), workers=4)
    finish(world, "s")
    finish(world, "m")
    finish(world, "k", [0])
    lost, _ = holder_of(world, "m", 1)
    log = len(world.log)
    world.kill_worker(lost)
    world.deliver(world.pending.pop(0))
    resets = resets_of(world, log)
    assert 0 in resets["k", "INDETERMINATE_PRODUCER"]
    assert 1 in resets["m", "WORKER_LOST"]
    assert not [k for _, k in world.tasks() if k.vertex_id == "k"]
    world.run_to_end()
    assert world.output() == list(range(8))


def test_a_cancelled_readers_finished_output_is_not_taken_from_an_inventory() -> None:
    """It has read rows of an attempt that does not count any more."""
    world = started(indeterminate_job(), workers=4)
    finish(world, "s")
    finish(world, "m")
    graph = graph_of(world)
    reader, key = next((w, k) for w, k in world.tasks() if k.vertex_id == "k")
    others = [w for w in world.workers.values() if w is not reader]
    lost = next(w for w in others if any(k.vertex_id == "m" for k in w.stored))
    task = reader.running[key]
    world.kill_worker(lost)
    world.deliver(world.pending.pop(0))
    assert graph.vertex_at("k", key.subtask).state is ExecutionState.CANCELING
    done = world._store(reader, key, world.job.vertices[2], [1, 2, 3], task)
    world.pending.clear()
    world.register(reader)
    world.deliver_pending()
    assert done.staged_files
    assert key not in reader.stored
    world.run_to_end()
    assert world.output() == list(range(8))


def test_staged_files_that_are_gone_are_written_again() -> None:
    world = started(chain(2))
    for vertex_id in "sm":
        finish(world, vertex_id)
    worker, key = world.tasks()[0]
    world.finish(worker, key)
    del world.staged[worker.stored[key].staged_files[0].staged_path]
    before = len(world.starts)
    world.run_to_end()
    assert starts_of(world, before).count(("k", key.subtask)) == 1
    assert starts_of(world, before).count(("k", 1 - key.subtask)) == 0
    assert resets_of(world)["k", "STAGED_FILES_LOST"] == [key.subtask]
    assert world.output() == list(range(8))


def test_partitions_are_released_when_all_their_consumers_have_finished() -> None:
    world = started(join(2))
    for vertex_id in ("s1", "s2"):
        finish(world, vertex_id)
    finish(world, "j", [0])
    sources = [(v, i) for v, i in (("s1", 0), ("s1", 1), ("s2", 0))]
    assert all(holder_of(world, *s)[1] in holder_of(world, *s)[0].stored for s in sources)
    finish(world, "j", [1])
    assert not any(holder_of(world, *s)[1] in holder_of(world, *s)[0].stored for s in sources)
    assert all(k in w.stored for w, k in (holder_of(world, "j", i) for i in range(2)))


def test_partitions_are_kept_to_the_end_where_they_are_not_to_be_released() -> None:
    world = started(chain(2), options=replace(OPTIONS, release_during_execution=False))
    for vertex_id in "smk":
        finish(world, vertex_id)
    assert all(k in w.stored for w, k in (holder_of(world, "s", i) for i in range(2)))


def test_a_released_input_is_made_again_when_its_reader_is_lost() -> None:
    world = started(chain(2))
    finish(world, "s")
    finish(world, "m")
    lost, key = holder_of(world, "m", 0)
    log = len(world.log)
    world.kill_worker(lost)
    world.deliver(world.pending.pop(0))
    resets = resets_of(world, log)
    assert key.subtask in resets["m", "WORKER_LOST"]
    assert resets["s", "UPSTREAM_CLOSURE"] == [0, 1]
    world.run_to_end()
    assert world.output() == list(range(8))


# Slots


def test_a_job_without_any_worker_waits_and_fails_after_its_time_with_the_reason() -> None:
    """P48."""
    world = started(chain(2))
    for worker in world.workers.values():
        world.kill_worker(worker)
    world.deliver_pending()
    assert world.scheduler is not None
    assert "2 subtasks are ready and no slot is free (0 TaskManagers" in world.scheduler.waiting
    assert world.timers[SLOT_TIMER] == 300
    world.fire(SLOT_TIMER)
    assert world.ended is JobState.FAILED
    assert world.failure is not None
    assert "slot.request.timeout has passed; waiting for resources" in world.failure.message


def test_a_worker_that_appears_in_time_resumes_the_job() -> None:
    """P48."""
    world = SchedulerWorld(chain(2))
    world.lead()
    world.deliver_pending()
    assert SLOT_TIMER in world.timers
    register(world, "tm-0")
    assert SLOT_TIMER not in world.timers
    assert world.scheduler is not None
    assert world.scheduler.waiting == ""
    world.run_to_end()
    assert world.ended is JobState.FINISHED


def test_a_recovered_job_without_workers_waits_with_the_same_limit() -> None:
    world = started(chain(2))
    finish(world, "s", [0])
    next_leader(world)
    for timer in ("recovery-adoption", "recovery-wait"):
        world.fire(timer)
    assert world.timers[SLOT_TIMER] == 300


def test_slots_that_other_jobs_wait_for_are_returned_as_tasks_end() -> None:
    world = started(chain(6))
    world.deliver(sig.SlotsReclaimed(2))
    assert len(world.held) == 6
    finish(world, "s", [0, 1, 2])
    assert world.scheduler is not None
    assert world.scheduler.core.reclaim == 0
    world.run_to_end()
    assert world.ended is JobState.FINISHED


def test_a_forward_reader_runs_where_its_input_is() -> None:
    world = started(chain(4, forward=True))
    finish(world, "s")
    for worker, key in world.tasks():
        assert holder_of(world, "s", key.subtask)[0] is worker
