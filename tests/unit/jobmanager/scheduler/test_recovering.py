"""A new leader: what it awaits, adopts, rejects and resets (behaviour 5; FLIP-383)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, job_pb2
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.parallelism import AdaptiveParallelism
from jobmanager.scheduler.reconciliation import ADOPTION_TIMER, WAIT_TIMER
from jobmanager.scheduler.states import JobState
from tests.doubles.scheduler_world import OPTIONS, SchedulerWorld
from tests.unit.jobmanager.scheduler.job_graphs import HASH, chain, connect, sink, source, stage
from tests.unit.jobmanager.scheduler.scenes import (
    finish,
    fire,
    graph_of,
    holder_of,
    lose_output,
    next_leader,
    recovery_of,
    register,
    resets_of,
    started,
    starts_of,
    stored_by,
)

UNRELEASED = replace(OPTIONS, release_during_execution=False)
STRICT = replace(OPTIONS, schedule_while_waiting=False)


def state_of(world: SchedulerWorld) -> JobState:
    return graph_of(world).state


# The wait


def test_nothing_is_awaited_where_nothing_had_finished() -> None:
    """P19 (a)."""
    world = started(chain(4))
    next_leader(world)
    assert state_of(world) is JobState.RUNNING
    assert WAIT_TIMER not in world.timers
    register(world)
    assert [v for v, _ in starts_of(world)] == ["s"] * 8


def test_the_wait_ends_when_the_last_reserved_partition_is_there() -> None:
    """P19 (b)."""
    world = started(chain(6))
    finish(world, "s")
    next_leader(world)
    register(world, "tm-0", "tm-1")
    assert (state_of(world), world.waits_for_workers) == (JobState.RECONCILING, True)
    register(world, "tm-2")
    assert (state_of(world), world.waits_for_workers) == (JobState.RUNNING, False)
    assert recovery_of(world).ended_early
    world.run_to_end()
    assert {starts_of(world).count(("s", i)) for i in range(6)} == {1}


def test_the_wait_ends_after_exactly_its_time_where_one_never_returns() -> None:
    """P19 (c)."""
    world = started(chain(6))
    finish(world, "s")
    gone = stored_by(world, "tm-2", "s")
    next_leader(world)
    register(world, "tm-0", "tm-1")
    assert world.timers[WAIT_TIMER] == OPTIONS.recovery_wait_s
    fire(world, WAIT_TIMER)
    assert state_of(world) is JobState.RUNNING
    assert not recovery_of(world).ended_early
    assert resets_of(world) == {("s", "PARTITION_MISSING"): gone}


def test_one_leader_and_one_worker_gone_cost_one_wave_of_exactly_its_partitions() -> None:
    """P16."""
    world = started(chain(8), slots=3)
    finish(world, "s")
    gone = stored_by(world, "tm-1", "s")
    next_leader(world)
    world.kill_worker(world.workers["tm-1"])
    register(world, "tm-0", "tm-2")
    before = len(world.starts)
    fire(world, WAIT_TIMER)
    assert starts_of(world, before) == [("s", subtask) for subtask in gone]
    world.run_to_end()
    assert [run for run in starts_of(world, before) if run[0] == "s"] == [
        ("s", subtask) for subtask in gone
    ]
    assert world.scheduler is not None
    assert world.scheduler.restart_strategy.restarts == 0
    assert world.output() == list(range(8))


def test_while_something_of_a_vertex_is_missing_its_inputs_are_not_deleted() -> None:
    """All of m is finished when the last worker brings what nobody had heard of; but one of m is
    known to be gone, and reads s once more."""
    world = started(chain(4))
    finish(world, "s")
    finish(world, "m", [0, 1, 2])
    [(holder, key)] = [task for task in world.tasks() if task[1].vertex_id == "m"]
    world.finish(holder, key)
    lose_output(world, "m", [0])
    next_leader(world)
    register(world, *(worker for worker in world.workers if worker != holder.worker_id))
    register(world, holder.worker_id)
    assert recovery_of(world).counts["m"].adopted == 1
    assert resets_of(world) == {("m", "PARTITION_MISSING"): [0]}
    world.run_to_end()
    assert {starts_of(world).count(("s", i)) for i in range(4)} == {1}
    assert all(key.vertex_id != "s" for worker in world.workers.values() for key in worker.stored)
    assert world.output() == list(range(8))


def test_what_a_vertex_has_read_is_deleted_when_all_of_it_is_found() -> None:
    """When the wait ends, and not only with the job."""
    world = started(chain(4))
    finish(world, "s")
    finish(world, "m", [0, 1, 2])
    [(holder, key)] = [task for task in world.tasks() if task[1].vertex_id == "m"]
    world.finish(holder, key)
    next_leader(world)
    register(world)
    assert recovery_of(world).counts["m"].adopted == 1
    assert all(key.vertex_id != "s" for worker in world.workers.values() for key in worker.stored)


def test_the_reset_is_closed_upstream_before_anything_is_deployed() -> None:
    """P12: M finished, all S outputs gone, one M output lost with the leader."""
    world = started(chain(4), options=UNRELEASED)
    finish(world, "s")
    finish(world, "m")
    lose_output(world, "s")
    lose_output(world, "m", [2])
    before = len(world.starts)
    next_leader(world)
    register(world)
    assert recovery_of(world).ended_early
    resets = resets_of(world)
    assert resets == {("m", "PARTITION_MISSING"): [2], ("s", "UPSTREAM_CLOSURE"): [0, 1, 2, 3]}
    assert {v for v, _ in starts_of(world, before)} == {"s"}
    world.run_to_end()
    runs = starts_of(world, before)
    assert sorted(run for run in runs if run[0] != "k") == [
        ("m", 2),
        *(("s", i) for i in range(4)),
    ]
    assert world.output() == list(range(8))


def test_output_that_all_readers_have_finished_with_is_not_awaited() -> None:
    """P17: S and M finished; all S outputs are lost, all M outputs are kept."""
    world = started(chain(4))
    finish(world, "s")
    finish(world, "m")
    before = len(world.starts)
    next_leader(world)
    register(world)
    world.run_to_end()
    assert resets_of(world) == {}
    assert {v for v, _ in starts_of(world, before)} == {"k"}


def with_all_inputs_kept() -> SchedulerWorld:
    """Six S outputs on all workers, and the one M output that has read them on one of these."""
    vertices = [source("s", 6), stage("m", 1), sink("k", 1)]
    job = job_pb2.JobGraph(job_id="job", vertices=vertices)
    connect(job, "s", "m", HASH, 1)
    connect(job, "m", "k", HASH, 1)
    world = started(job, options=UNRELEASED)
    finish(world, "s")
    finish(world, "m")
    return world


def test_inputs_of_what_is_missing_are_awaited_though_nobody_had_needed_them() -> None:
    """M/0 is known to be gone; some of its inputs are at a worker that has not come back yet."""
    world = with_all_inputs_kept()
    last = next(w for w in world.workers if not stored_by(world, w, "m"))
    inputs = stored_by(world, last, "s")
    assert inputs
    lose_output(world, "m", [0])
    next_leader(world)
    register(world, *(w for w in world.workers if w != last))
    assert state_of(world) is JobState.RECONCILING
    assert list(recovery_of(world).awaited) == [("s", i) for i in inputs]
    register(world, last)
    assert state_of(world) is JobState.RUNNING
    assert resets_of(world) == {("m", "PARTITION_MISSING"): [0]}
    world.run_to_end()
    assert world.output() == list(range(8))


def test_a_worker_lost_during_the_wait_is_not_awaited_again() -> None:
    world = started(chain(6))
    finish(world, "s")
    held = stored_by(world, "tm-0", "s")
    next_leader(world)
    register(world, "tm-0")
    world.kill_worker(world.workers["tm-0"])
    world.deliver_pending()
    register(world, "tm-1", "tm-2")
    assert state_of(world) is JobState.RUNNING
    assert resets_of(world) == {("s", "WORKER_LOST"): held}
    assert recovery_of(world).counts["s"].resets != {}


def test_a_second_leader_that_dies_in_its_recovery_costs_nothing() -> None:
    """P14."""
    world = started(chain(4))
    finish(world, "s")
    for _ in range(3):
        next_leader(world)
        register(world, "tm-0")
    register(world)
    world.run_to_end()
    assert {starts_of(world).count(("s", i)) for i in range(4)} == {1}
    assert world.output() == list(range(8))


# While waiting


def test_what_is_ready_does_not_wait() -> None:
    world = started(chain(6, forward=True))
    finish(world, "s")
    there = sorted([*stored_by(world, "tm-0", "s"), *stored_by(world, "tm-1", "s")])
    before = len(world.starts)
    next_leader(world)
    register(world, "tm-0", "tm-1")
    assert starts_of(world, before) == [], "an offer could still finish them"
    fire(world, ADOPTION_TIMER)
    assert state_of(world) is JobState.RECONCILING
    assert sorted(starts_of(world, before)) == [("m", subtask) for subtask in there]


def test_in_the_strict_order_everything_waits() -> None:
    """FLIP-383's order: `schedule-while-waiting` false."""
    world = started(chain(6, forward=True), options=STRICT)
    finish(world, "s")
    before = len(world.starts)
    next_leader(world)
    register(world, "tm-0", "tm-1")
    fire(world, ADOPTION_TIMER)
    assert starts_of(world, before) == []
    register(world, "tm-2")
    assert sorted(starts_of(world, before)) == [("m", i) for i in range(6)]


# Registrations


@pytest.mark.parametrize("during", [True, False])
def test_registering_twice_changes_nothing(during: bool) -> None:
    """P22, and what Flink gets wrong: the second report comes after the wait and is no late one."""
    world = started(chain(6))
    finish(world, "s")
    held = stored_by(world, "tm-1", "s")
    next_leader(world)
    if during:
        register(world, "tm-1", "tm-1")
    register(world)
    slots = len(world.held)
    register(world, "tm-1")
    assert stored_by(world, "tm-1", "s") == held
    assert (resets_of(world), len(world.held)) == ({}, slots)
    world.run_to_end()
    assert {starts_of(world).count(("s", i)) for i in range(6)} == {1}


def test_a_new_process_under_the_same_name_has_lost_what_the_old_one_held_at_once() -> None:
    """P22: not after the wait."""
    world = started(chain(6))
    finish(world, "s")
    held = stored_by(world, "tm-1", "s")
    next_leader(world)
    world.kill_worker(world.workers["tm-1"])
    register(world)
    assert recovery_of(world).ended_early
    assert resets_of(world) == {("s", "PARTITION_MISSING"): held}


def test_a_new_process_in_the_midst_of_a_job_has_lost_tasks_and_partitions() -> None:
    world = started(chain(6))
    finish(world, "s", [0, 1])
    worker, _ = holder_of(world, "s", 0)
    running = [k.subtask for k in worker.running]
    held = stored_by(world, worker.worker_id, "s")
    for key in list(worker.stored):
        worker.delete(key)
    worker.running.clear()
    worker.seen_epoch = 0
    register(world, worker.worker_id)
    assert resets_of(world) == {("s", "PARTITION_MISSING"): held}
    again = [run for run in set(starts_of(world)) if starts_of(world).count(run) == 2]
    assert {("s", i) for i in (*running, *held)} == set(again)


@pytest.mark.parametrize("rerun_over", [True, False])
def test_a_late_worker_is_refused_and_welcome_as_a_new_one(rerun_over: bool) -> None:
    """P25: (a) its producers run again, (b) they have."""
    world = started(chain(6))
    finish(world, "s")
    gone = stored_by(world, "tm-2", "s")
    next_leader(world)
    register(world, "tm-0", "tm-1")
    fire(world, WAIT_TIMER)
    if rerun_over:
        finish(world, "s")
    running = [key for _, key in world.tasks()]
    register(world, "tm-2")
    assert stored_by(world, "tm-2", "s") == []
    assert recovery_of(world).offers["tm-2"].late
    assert set(running) <= {key for _, key in world.tasks()}
    world.run_to_end()
    assert {starts_of(world).count(("s", i)) for i in gone} == {2}
    assert any(k.epoch == 2 for k in world.workers["tm-2"].stored), "its slots get tasks"
    assert world.output() == list(range(8))


def test_a_late_worker_is_refused_what_nobody_had_awaited_too() -> None:
    """P25: whatever it holds from before; nothing runs again for it."""
    world = with_all_inputs_kept()
    last = next(w for w in world.workers if not stored_by(world, w, "m"))
    next_leader(world)
    register(world, *(w for w in world.workers if w != last))
    fire(world, ADOPTION_TIMER)
    register(world, last)
    assert recovery_of(world).offers[last].late
    assert stored_by(world, last, "s") == []
    world.run_to_end()
    assert resets_of(world) == {}
    assert world.output() == list(range(8))


def test_a_late_worker_keeps_what_it_makes_afterwards() -> None:
    world = started(chain(6))
    finish(world, "s")
    next_leader(world)
    register(world, "tm-0", "tm-1")
    fire(world, WAIT_TIMER)
    register(world, "tm-2")
    finish(world, "s")
    held = stored_by(world, "tm-2", "s")
    register(world, "tm-2")
    assert stored_by(world, "tm-2", "s") == held


# The rest of an inventory


def test_what_is_offered_of_another_job_or_vertex_is_rejected() -> None:
    world = started(chain(2))
    finish(world, "s")
    next_leader(world)
    stranger = AttemptKey("job", "q", 0, 0, 1)
    worker = world.workers["tm-0"]
    worker.stored[stranger] = common_pb2.FinishedExecution(attempt=stranger.to_proto())
    register(world)
    assert stranger not in worker.stored


def test_running_attempts_of_the_last_leader_are_cancelled() -> None:
    """Behaviour 5.2: what was running is to be run again."""
    world = started(chain(2))
    worker, key = world.tasks()[0]
    task = worker.running[key]
    next_leader(world)
    worker.running[key] = task
    register(world)
    assert key not in worker.running
    world.run_to_end()
    assert world.output() == list(range(8))


def test_recovery_switched_off_awaits_nobody() -> None:
    """P18: the shell replays nothing and names no worker."""
    world = started(chain(2))
    finish(world, "s")
    world.lose_leader()
    world.log.clear()
    world.known_workers = ()
    world.lead()
    assert state_of(world) is JobState.RUNNING
    assert ADOPTION_TIMER not in world.timers
    world.run_to_end()
    assert world.output() == list(range(8))


def test_signals_of_timers_that_mean_nothing_any_more_change_nothing() -> None:
    world = started(chain(2))
    for name in (WAIT_TIMER, ADOPTION_TIMER, "cancellation", "slot-request"):
        world.deliver(sig.TimerFired(name))
    world.run_to_end()
    assert world.ended is JobState.FINISHED


# The plan


def test_an_adaptive_vertex_keeps_the_parallelism_that_was_decided() -> None:
    """Behaviour 5: whatever the next process is configured with, and whatever must run again."""
    world = started(chain(4, adaptive=True))
    finish(world, "s")
    world.deliver_pending()
    before = graph_of(world).vertices["m"]
    assert before.parallelism > 1
    world.options = replace(OPTIONS, adaptive=AdaptiveParallelism(1, 1, 1 << 40))
    lose_output(world, "s", [1])
    next_leader(world)
    register(world)
    after = graph_of(world).vertices["m"]
    assert (after.parallelism, after.input_bounds) == (before.parallelism, before.input_bounds)
    world.run_to_end()
    assert graph_of(world).vertices["m"].parallelism == before.parallelism
    assert world.output() == list(range(8))


def test_optional_partitions_are_kept_but_nobody_is_awaited_for_them() -> None:
    """Behaviour 5.3: all of their readers have finished, and releasing is switched off."""
    world = started(chain(4), options=UNRELEASED)
    finish(world, "s")
    finish(world, "m")
    finish(world, "k", [0, 1])
    held = {w: stored_by(world, w, "s") for w in world.workers}
    next_leader(world)
    register(world)
    assert resets_of(world) == {}
    assert {w: stored_by(world, w, "s") for w in world.workers} == held, "optional, and kept"
    world.run_to_end()
    assert world.output() == list(range(8))


@pytest.mark.parametrize("deaths", [1, 2, 5])
def test_leaders_that_die_at_every_step_of_a_recovery_lose_nothing(deaths: int) -> None:
    """P14: after each registration, the end of the wait, and the first deployments."""
    world = started(chain(6, forward=True))
    finish(world, "s")
    for death in range(deaths):
        next_leader(world)
        if death % 3 > 0:
            register(world, "tm-0")
        if death % 3 > 1:
            register(world)
    next_leader(world)
    register(world)
    world.run_to_end()
    assert {starts_of(world).count(("s", i)) for i in range(6)} == {1}
    assert resets_of(world) == {}
    assert world.output() == list(range(8))
