"""A job whose output goes to shuffle services: who has made it, and where it is, are two things
(P39).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.core import SchedulerOptions
from jobmanager.scheduler.states import ExecutionState, JobState
from tests.doubles.scheduler_world import OPTIONS, SchedulerWorld, Worker
from tests.unit.jobmanager.scheduler.job_graphs import chain
from tests.unit.jobmanager.scheduler.scenes import (
    finish,
    fire,
    graph_of,
    next_leader,
    register,
    resets_of,
    stored_by,
)

EXTERNAL = replace(OPTIONS, shuffle_mode="external")
ROWS = list(range(8))


def begun(
    *, services: int = 2, workers: int = 3, options: SchedulerOptions = EXTERNAL
) -> SchedulerWorld:
    """A job of three vertices has begun; every flush is complete."""
    job = chain(6)
    world = SchedulerWorld(job, workers=workers, services=services, options=options)
    world.flush_probability = 1.0
    world.lead()
    if world.workers:
        register(world)
    return world


def kill(world: SchedulerWorld, *worker_ids: str) -> None:
    for worker_id in worker_ids:
        world.kill_worker(world.workers[worker_id])
    world.deliver_pending()


def target_of(worker: Worker, key: AttemptKey) -> str:
    return worker.running[key].deployment.shuffle_target.worker_id


def taskmanagers(world: SchedulerWorld) -> list[str]:
    return [name for name, worker in world.workers.items() if worker.load is None]


def test_output_is_spread_over_the_services_and_none_stays_with_taskmanagers() -> None:
    world = begun()
    finish(world, "s")
    there = [stored_by(world, service, "s") for service in ("ss-0", "ss-1")]
    assert sorted(there[0] + there[1]) == list(range(6))
    assert len(there[0]) == len(there[1])
    assert not any(world.workers[name].stored for name in taskmanagers(world))
    world.run_to_end()
    assert world.output() == ROWS


def test_the_loss_of_taskmanagers_loses_only_what_ran_there() -> None:
    world = begun()
    finish(world, "s")
    kill(world, *taskmanagers(world))
    assert resets_of(world) == {}
    world.run_to_end()
    assert [world.runs_of("s", subtask) for subtask in range(6)] == [1] * 6
    assert world.output() == ROWS


def test_the_loss_of_a_service_costs_what_it_held_and_what_was_written_to_it() -> None:
    world = begun()
    finish(world, "s", [0, 1, 2])
    held = stored_by(world, "ss-0", "s")
    running = [key.subtask for worker, key in world.tasks()]
    kill(world, "ss-0")
    assert resets_of(world) == {("s", "WORKER_LOST"): held}
    targets = {
        task.deployment.shuffle_target.worker_id
        for worker in world.workers.values()
        for task in worker.running.values()
    }
    assert running
    assert targets == {"ss-1"}, "who wrote to the lost one was started anew"
    world.run_to_end()
    assert world.output() == ROWS


def test_after_the_loss_of_the_leader_and_all_taskmanagers_nothing_finished_runs_again() -> None:
    """P39: the TaskManagers that come are others."""
    world = begun()
    finish(world, "s")
    for name in taskmanagers(world):
        world.kill_worker(world.workers[name])
    next_leader(world)
    world.workers["other"] = replace(world.workers["tm-0"], worker_id="other", stored={}, rows={})
    register(world, "ss-0", "ss-1", "other")
    assert graph_of(world).state is JobState.RUNNING, "all that is needed has come back"
    starts = len(world.starts)
    fire(world, "recovery-adoption")
    world.run_to_end()
    assert not [key for key in world.starts[starts:] if key.vertex_id == "s"]
    assert world.output() == ROWS


def test_a_service_that_brings_back_less_costs_what_it_lacks() -> None:
    world = begun()
    finish(world, "s")
    next_leader(world)
    lost = stored_by(world, "ss-1", "s")
    for key in list(world.workers["ss-1"].stored):
        world.workers["ss-1"].delete(key)
    register(world)
    assert resets_of(world) == {("s", "PARTITION_MISSING"): lost}
    world.run_to_end()
    assert world.output() == ROWS


def test_without_a_service_that_takes_output_the_job_waits_and_says_so() -> None:
    world = begun(services=0)
    assert world.scheduler is not None
    assert not world.tasks()
    assert "no shuffle service takes their output (0 are registered)" in world.scheduler.waiting
    assert not world.held, "slots that cannot be used are given back"
    fire(world, "slot-request")
    world.deliver_pending()
    assert world.ended is JobState.FAILED
    assert world.failure is not None
    assert "start shuffle services" in world.failure.message


def test_the_job_goes_on_once_a_full_service_has_room() -> None:
    world = begun(services=1)
    world.tell_load(world.workers["ss-0"], sig.ShuffleLoad(room_bytes=0))
    world.deliver_pending()
    while tasks := world.tasks():
        world.finish(*tasks[0])
        world.deliver_pending()
    assert world.scheduler is not None
    assert "(1 are registered)" in world.scheduler.waiting
    world.tell_load(world.workers["ss-0"], sig.ShuffleLoad(room_bytes=10))
    world.deliver_pending()
    assert world.tasks()
    assert not world.scheduler.waiting
    world.run_to_end()
    assert world.output() == ROWS


def test_sinks_run_while_the_services_are_full_for_they_make_room() -> None:
    world = begun(services=1)
    finish(world, "s")
    sink = next(v for v in graph_of(world).vertices.values() if not v.vertex.outputs)
    before = [v for v in graph_of(world).vertices if v not in ("s", sink.vertex_id)]
    for vertex_id in before:
        finish(world, vertex_id)
    world.tell_load(world.workers["ss-0"], sig.ShuffleLoad(room_bytes=0))
    world.run_to_end()
    assert world.output() == ROWS


def test_a_refused_output_goes_elsewhere_and_no_restart_is_counted() -> None:
    world = begun()
    worker, key = world.tasks()[0]
    target = worker.running.pop(key).deployment.shuffle_target.worker_id
    refused = common_pb2.Failure(kind=common_pb2.FAILURE_KIND_OUTPUT_REFUSED, message="full")
    world.deliver(
        sig.ExecutionReported(worker.worker_id, key, ExecutionState.FAILED, failure=refused)
    )
    vertex = graph_of(world).vertex_at(key.vertex_id, key.subtask)
    fire(world, f"restart/{key.vertex_id}/{key.subtask}")
    assert vertex.attempt == key.attempt + 1
    assert world.scheduler is not None
    assert world.scheduler.core.shuffle.target_of(vertex.id) not in ("", target)
    assert world.scheduler.restart_strategy.restarts == 0
    world.run_to_end()
    assert world.output() == ROWS


def refuse(world: SchedulerWorld, worker: Worker, key: AttemptKey) -> None:
    """No service takes what an attempt puts."""
    worker.running.pop(key)
    refused = common_pb2.Failure(
        kind=common_pb2.FAILURE_KIND_OUTPUT_REFUSED, message="ss-0: max-bytes would be exceeded"
    )
    world.deliver(
        sig.ExecutionReported(worker.worker_id, key, ExecutionState.FAILED, failure=refused)
    )
    world.deliver_pending()


def test_output_that_no_service_ever_takes_fails_its_job_with_the_reason() -> None:
    """P48: with room told and never given, the job would go on for ever."""
    world = begun(services=1)
    for _ in range(1000):
        for worker, key in world.tasks():
            if world.ended is None:
                refuse(world, worker, key)
        if world.ended is not None:
            break
        assert world.scheduler is not None
        assert "ss-0: max-bytes would be exceeded" in world.scheduler.waiting
        world.tell_load(world.workers["ss-0"], sig.ShuffleLoad(room_bytes=1))
        world.fire(next(iter(world.timers)))
        world.deliver_pending()
    assert world.ended is JobState.FAILED
    assert world.failure is not None
    assert "slot.request.timeout has passed" in world.failure.message
    assert "ss-0: max-bytes would be exceeded" in world.failure.message
    assert world.scheduler is not None
    assert world.scheduler.restart_strategy.restarts == 0


def test_what_was_put_at_a_lost_service_is_deleted_when_that_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its attempt is started anew elsewhere; the service was only cut off."""
    world = begun()
    _, key = next(each for each in world.tasks() if target_of(*each) == "ss-0")
    service = world.workers["ss-0"]
    service.registered = False
    world.deliver(sig.WorkerLost("ss-0", "no heartbeat"))
    world.deliver_pending()
    released: list[AttemptKey] = []
    monkeypatch.setattr(service, "delete", released.append)
    register(world, "ss-0")
    assert key in released


def test_a_late_finish_is_deleted_at_whichever_service_it_went_to() -> None:
    """Its TaskManager was lost, and has come back; the service had not been put to when it was
    told to delete."""
    world = begun()
    worker, key = world.tasks()[0]
    service = world.workers[target_of(worker, key)]
    kill(world, worker.worker_id)
    register(world, worker.worker_id)
    service.stored[key] = common_pb2.FinishedExecution(attempt=key.to_proto())
    world.deliver(
        sig.ExecutionReported(
            worker.worker_id, key, ExecutionState.FINISHED, finished=service.stored[key]
        )
    )
    assert key not in service.stored
    world.run_to_end()
    assert world.output() == ROWS


def test_who_writes_to_a_service_that_is_started_again_is_started_anew() -> None:
    """But for what it had published: that counts."""
    world = begun()
    service = world.workers["ss-0"]
    writers = [each for each in world.tasks() if target_of(*each) == "ss-0"]
    assert len(writers) > 1
    (worker, published), *others = writers
    worker.registered = False  # its report is not heard
    world.finish(worker, published)
    worker.registered = True
    world.deliver(sig.WorkerRestarted("ss-0"))
    service.seen_epoch = 0
    register(world, "ss-0")
    vertex = graph_of(world).vertex_at(published.vertex_id, published.subtask)
    assert vertex.state is ExecutionState.FINISHED
    assert vertex.stored_at == "ss-0"
    running = [key for _, key in world.tasks()]
    assert not [key for _, key in others if key in running]
    world.run_to_end()
    assert world.runs_of("s", published.subtask) == 1
    assert world.output() == ROWS


@pytest.mark.parametrize("order", [("tm", "ss"), ("ss", "tm")])
def test_what_is_finished_at_a_service_wins_over_what_a_taskmanager_calls_running(
    order: tuple[str, str],
) -> None:
    """It was published, and then the leader was lost before anybody had reported it."""
    world = begun()
    worker, key = world.tasks()[0]
    task = worker.running[key]
    worker.registered = False
    world.finish(worker, key)
    next_leader(world)
    worker.running[key] = task
    for kind in order:
        register(world, *[name for name in world.workers if name.startswith(kind)])
    vertex = graph_of(world).vertex_at(key.vertex_id, key.subtask)
    assert vertex.state is ExecutionState.FINISHED
    assert vertex.key("job") == key
    assert key not in worker.running, "it is to end"
    world.run_to_end()
    assert world.runs_of("s", key.subtask) == 1
    assert world.output() == ROWS


def test_attempts_know_whether_their_job_has_switched_recovery_off() -> None:
    """Then a service keeps their output for no other leader."""
    job = chain(6)
    for enabled in (True, False):
        options = replace(EXTERNAL, recovery_enabled=enabled)
        world = SchedulerWorld(job, services=1, options=options)
        world.lead()
        register(world)
        worker, key = world.tasks()[0]
        assert worker.running[key].deployment.recovery_disabled is not enabled


def test_what_an_attempt_published_that_does_not_count_is_deleted_at_its_service() -> None:
    """Its TaskManager is lost before it has reported."""
    world = begun()
    worker, key = world.tasks()[0]
    target = worker.running[key].deployment.shuffle_target.worker_id
    worker.registered = False  # its report is not heard
    world.finish(worker, key)
    assert key in world.workers[target].stored
    worker.registered = True
    kill(world, worker.worker_id)
    assert key not in world.workers[target].stored
    world.run_to_end()
    assert world.output() == ROWS
