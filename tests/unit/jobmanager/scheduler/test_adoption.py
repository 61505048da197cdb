"""Work that had finished without an event: a new leader adopts it from offers (behaviour 5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, job_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.deployment import InputDigests
from jobmanager.scheduler.failover import RestartStrategy
from jobmanager.scheduler.reconciliation import ADOPTION_TIMER, WAIT_TIMER
from jobmanager.scheduler.scheduler import Scheduler
from jobmanager.scheduler.states import ExecutionState
from tests.doubles.scheduler_world import OPTIONS, SchedulerWorld
from tests.unit.jobmanager.scheduler.job_graphs import chain, dealt_out
from tests.unit.jobmanager.scheduler.scenes import (
    copied_as_second,
    finish,
    finished,
    fire,
    graph_of,
    holder_of,
    initialized,
    next_leader,
    recovery_of,
    register,
    replayed,
    reset,
    started,
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


def test_what_took_its_shape_after_the_last_durable_event_is_adopted_with_its_producer() -> None:
    """One worker offers both; the shape follows from what the producer has left behind."""
    options = replace(OPTIONS, release_during_execution=False)
    world = started(chain(2, adaptive=True), workers=1, options=options)
    begun = len(world.log)
    finish(world, "s")
    finish(world, "m")
    before = len(world.starts)
    world.durable = begun  # a power loss: what was flushed at once is gone as well
    lost_tail(world, 100)
    assert not graph_of(world).vertices["m"].initialized
    register(world)
    world.run_to_end()
    assert {vertex_id for vertex_id, _ in starts_of(world, before)} == {"k"}
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
    second = copied_as_second(holder, key, other)
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


@pytest.mark.parametrize("m_runs_again", [True, False])
def test_only_what_has_read_the_rows_that_count_is_adopted(m_runs_again: bool) -> None:
    """Behaviour 5.6: M deals its rows out otherwise each time. K/0 has finished, unlogged, at the
    worker that comes last; M/1 is lost in between, and runs again under this leader, or is not.
    """
    graph = replayed(
        dealt_out(2),
        [
            initialized("s", 2, splits=2),
            initialized("m", 2, inputs=1),
            initialized("k", 2, inputs=1),
            *(finished("s", i, splits=[i], worker_id="tm-s") for i in range(2)),
            *(finished("m", i, worker_id=f"tm-{i}") for i in range(2)),
        ],
    )
    reader = AttemptKey("job", "k", 0, 0, 1)
    offer = common_pb2.FinishedExecution(
        attempt=reader.to_proto(), inputs_digest=InputDigests(graph).of(graph.vertex_at("k", 0))
    )
    scheduler = Scheduler(graph, 2, OPTIONS, RestartStrategy(attempts_max=9, delay_s=0))

    def offered_by(worker_id: str, *more: common_pb2.FinishedExecution) -> sig.WorkerRegistered:
        there = [v.finished for v in graph.at_worker(worker_id) if v.finished is not None]
        return sig.WorkerRegistered(worker_id, "host:1", refreshed=False, finished=[*there, *more])

    scheduler.handle(sig.RecoveryStarted(("tm-s", "tm-0", "tm-1")))
    scheduler.handle(offered_by("tm-s"))
    scheduler.handle(offered_by("tm-1"))
    scheduler.handle(sig.TimerFired(ADOPTION_TIMER))
    if m_runs_again:
        scheduler.handle(sig.WorkerLost("tm-1", "killed"))
        scheduler.handle(sig.SlotsGranted((sig.SlotId("tm-s", 0),)))
        again = graph.vertex_at("m", 1)
        assert (again.state, again.attempt) == (ExecutionState.DEPLOYING, 1)
        done = finished("m", 1, attempt=1, epoch=2).vertex_finished.execution
        key = again.key("job")
        scheduler.handle(sig.ExecutionReported("tm-s", key, ExecutionState.FINISHED, done))
    assert recovery_open(scheduler), "tm-0 is awaited"
    [rejected] = [
        action.keys
        for action in scheduler.handle(offered_by("tm-0", offer)).actions
        if isinstance(action, act.RejectOffers)
    ]
    assert rejected == ((reader,) if m_runs_again else ())
    adopted = graph.vertex_at("k", 0).state is ExecutionState.FINISHED
    assert adopted is not m_runs_again


def test_a_producer_that_is_to_run_again_counts_as_another_one() -> None:
    """From its reset on, and not only when its next attempt has finished."""
    graph = replayed(
        dealt_out(2),
        [
            initialized("s", 2),
            initialized("m", 2, inputs=1),
            initialized("k", 2, inputs=1),
            *(finished(vertex_id, i) for vertex_id in ("s", "m") for i in range(2)),
        ],
    )
    digests, reader = InputDigests(graph), graph.vertex_at("k", 0)
    before = digests.of(reader)
    graph.apply(reset("m", 1))
    assert digests.of(reader) not in (0, before)
    assert digests.of(graph.vertex_at("m", 0)) == 0, "what it reads is the same every time"


def recovery_open(scheduler: Scheduler) -> bool:
    return scheduler.reconciliation is not None and scheduler.reconciliation.open


def test_an_attempt_number_is_used_once_though_an_older_attempt_is_adopted() -> None:
    """Behaviour 2: two attempts failed under this leader, then an earlier leader's turns up."""
    world = started_without_flushes(chain(2))
    finish(world, "s", [0])
    holder, key = holder_of(world, "s", 0)
    lost_tail(world, 100)
    register(world, *(w for w in world.workers if w != holder.worker_id))
    fire(world, ADOPTION_TIMER)
    for attempt in range(2):
        worker, running = next((w, k) for w, k in world.tasks() if k.subtask == 0)
        assert (running.attempt, running.epoch) == (attempt, 2)
        world.fail(worker, running)
        world.deliver_pending()
        if attempt == 0:
            fire(world, "restart/s/0")
    graph, vertex = graph_of(world), graph_of(world).vertex_at("s", 0)
    world.deliver(sig.WorkerLost("nobody", "to take a step"))
    graph.apply(finished("s", 0, epoch=1, worker_id=holder.worker_id))
    graph.apply(reset("s", 0))
    assert (key.attempt, vertex.attempt) == (0, 2)


def test_a_second_offer_of_unlogged_work_after_the_wait_changes_nothing() -> None:
    """Only during a recovery is work without an event taken from an earlier leader."""
    world = started_without_flushes(chain(2))
    finish(world, "s", [0])
    holder, key = holder_of(world, "s", 0)
    execution = holder.stored.pop(key)
    lost_tail(world, 100)
    register(world)
    assert not recovery_of(world).open
    holder.stored[key] = execution
    register(world, holder.worker_id)
    assert key not in holder.stored
    world.run_to_end()
    assert starts_of(world).count(("s", 0)) == 2
    assert world.output() == list(range(8))


def test_nobody_reads_again_the_splits_of_an_adopted_source() -> None:
    world = started_without_flushes(chain(2))
    worker, key = next((w, k) for w, k in world.tasks() if k.subtask == 0)
    for _ in range(3):
        world.draw_split(worker, key)
    finish(world, "s", [1])
    read = list(graph_of(world).vertex_at("s", 1).splits)
    lost_tail(world, 100)
    register(world)
    finish(world, "s")
    assert list(graph_of(world).vertex_at("s", 1).splits) == read
    assert sorted([*graph_of(world).vertex_at("s", 0).splits, *read]) == list(range(8))


def test_the_staged_files_of_an_adopted_sink_are_committed() -> None:
    world = started_without_flushes(chain(2))
    for vertex_id in ("s", "m"):
        finish(world, vertex_id)
    finish(world, "k", [0])
    _, key = holder_of(world, "k", 0)
    lost_tail(world, 100)
    register(world)
    world.run_to_end()
    assert starts_of(world).count(("k", 0)) == 1
    assert world.committed is not None
    assert any(f"k-0-{key.attempt}-1" in file.staged_path for file in world.committed)
    assert world.output() == list(range(8))
