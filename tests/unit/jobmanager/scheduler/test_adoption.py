"""Work that had finished without an event: a new leader adopts it from offers (behaviour 5)."""

from __future__ import annotations

from dataclasses import replace

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, job_pb2
from jobmanager.scheduler.reconciliation import ADOPTION_TIMER, WAIT_TIMER
from jobmanager.scheduler.states import ExecutionState
from tests.doubles.scheduler_world import OPTIONS, SchedulerWorld
from tests.unit.jobmanager.scheduler.job_graphs import chain
from tests.unit.jobmanager.scheduler.scenes import (
    finish,
    fire,
    graph_of,
    holder_of,
    next_leader,
    recovery_of,
    register,
    starts_of,
)


def lost_tail(world: SchedulerWorld, events: int) -> None:
    """The leader dies before the last events were durable."""
    next_leader(world, lost_events=events)


def started_without_flushes(job: job_pb2.JobGraph, *, workers: int = 3) -> SchedulerWorld:
    world = SchedulerWorld(job, workers=workers)
    world.lead()
    register(world)
    world.durable = len(world.log)
    world.flush_probability = 0.0
    return world


def test_finished_work_without_an_event_is_adopted() -> None:
    world = started_without_flushes(chain(4))
    finish(world, "s")
    finish(world, "m", [0, 1])
    lost_tail(world, 100)
    assert graph_of(world).vertices["s"].finished_count == 0
    register(world)
    world.run_to_end()
    counts = recovery_of(world).counts
    assert (counts["s"].adopted, counts["m"].adopted) == (4, 2)
    assert {starts_of(world).count(("s", i)) for i in range(4)} == {1}
    assert [starts_of(world).count(("m", i)) for i in (0, 1)] == [1, 1]
    assert world.output() == list(range(8))


def test_the_adoption_window_holds_back_what_an_offer_could_finish() -> None:
    world = started_without_flushes(chain(4))
    finish(world, "s", [0, 1])
    before = len(world.starts)
    lost_tail(world, 100)
    register(world, "tm-0", "tm-1")
    assert starts_of(world, before) == []
    assert world.timers[ADOPTION_TIMER] == OPTIONS.adoption_wait_s
    register(world, "tm-2")
    assert ADOPTION_TIMER not in world.timers
    assert sorted(starts_of(world, before)) == [("s", 2), ("s", 3)]


def test_after_the_adoption_window_nothing_is_held_back() -> None:
    world = started_without_flushes(chain(4))
    finish(world, "s", [0, 1])
    before = len(world.starts)
    late, _ = holder_of(world, "s", 0)
    lost_tail(world, 100)
    register(world, *(w for w in world.workers if w != late.worker_id))
    fire(world, ADOPTION_TIMER)
    assert ("s", 0) in starts_of(world, before)
    world.run_to_end()
    assert world.output() == list(range(8))


def test_two_attempts_of_one_subtask_are_never_both_adopted() -> None:
    world = started_without_flushes(chain(2))
    finish(world, "s")
    holder, key = holder_of(world, "s", 0)
    other = next(w for w in world.workers.values() if w is not holder)
    second = replace(key, attempt=1)
    execution = common_pb2.FinishedExecution()
    execution.CopyFrom(holder.stored[key])
    execution.attempt.CopyFrom(second.to_proto())
    other.stored[second] = execution
    other.rows[second, 0] = holder.rows[key, 0]
    lost_tail(world, 100)
    register(world, other.worker_id, holder.worker_id)
    register(world)
    assert second in other.stored
    assert key not in holder.stored
    world.run_to_end()
    assert world.output() == list(range(8))


def test_an_attempt_of_this_leader_is_told_from_one_of_the_last() -> None:
    """Behaviour 2: the epoch is part of the name; the same attempt number is another attempt."""
    world = started_without_flushes(chain(2))
    finish(world, "s", [0])
    holder, key = holder_of(world, "s", 0)
    lost_tail(world, 100)
    register(world, *(w for w in world.workers if w != holder.worker_id))
    fire(world, ADOPTION_TIMER)
    vertex = graph_of(world).vertex_at("s", 0)
    assert (vertex.attempt, vertex.epoch) == (0, 2)
    register(world, holder.worker_id)
    assert key not in holder.stored
    assert vertex.state in (ExecutionState.DEPLOYING, ExecutionState.RUNNING)


def deferred_offer() -> tuple[SchedulerWorld, str, AttemptKey]:
    """Two leaders on: a worker offers an M output whose S inputs nobody has offered yet."""
    world = started_without_flushes(chain(2))
    finish(world, "s")
    finish(world, "m", [0])
    holder, key = holder_of(world, "m", 0)
    for name in [k for k in holder.stored if k.vertex_id == "s"]:
        other = next(w for w in world.workers.values() if w is not holder)
        other.stored[name] = holder.stored.pop(name)
        other.rows[name, 0] = holder.rows.pop((name, 0))
    lost_tail(world, 100)
    world.kill_worker(holder, with_disk=False)
    register(world, holder.worker_id)
    return world, holder.worker_id, key


def test_an_offer_waits_for_the_work_that_it_had_read() -> None:
    world, worker_id, key = deferred_offer()
    assert list(recovery_of(world).deferred) == [key]
    register(world, *(w for w in world.workers if w != worker_id))
    world.run_to_end()
    assert starts_of(world).count(("m", 0)) == 1


def test_a_repeated_report_does_not_delete_what_is_still_to_be_judged() -> None:
    """A TaskManager repeats to the new leader what the old one has not acknowledged."""
    world, worker_id, key = deferred_offer()
    world.repeat_report(world.workers[worker_id], key)
    world.deliver_pending()
    register(world, *(w for w in world.workers if w != worker_id))
    world.run_to_end()
    assert starts_of(world).count(("m", 0)) == 1


def test_a_deferred_offer_is_deleted_when_what_it_had_read_does_not_come() -> None:
    world, worker_id, key = deferred_offer()
    fire(world, ADOPTION_TIMER)
    assert key not in world.workers[worker_id].stored
    assert not recovery_of(world).deferred


def test_a_deferred_offer_of_a_worker_that_is_lost_again_is_forgotten() -> None:
    """Otherwise its subtask would count as finished and its readers wait for ever."""
    world, worker_id, _ = deferred_offer()
    world.kill_worker(world.workers[worker_id])
    world.deliver_pending()
    assert not recovery_of(world).deferred
    register(world, *(w for w in world.workers if w != worker_id))
    for timer in (ADOPTION_TIMER, WAIT_TIMER):
        if timer in world.timers:
            fire(world, timer)
    finish(world, "m")
    assert starts_of(world).count(("m", 0)) == 2
