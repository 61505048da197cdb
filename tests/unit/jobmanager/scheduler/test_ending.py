"""How a job ends: cancelled or failed in any state, or finished with its output published once."""

from __future__ import annotations

import pytest

from holdover.v1 import common_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.ending import CANCEL_TIMER
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.failover import RestartStrategy
from jobmanager.scheduler.reconciliation import WAIT_TIMER
from jobmanager.scheduler.scheduler import Scheduler
from jobmanager.scheduler.states import ExecutionState, JobState
from tests.doubles.scheduler_world import OPTIONS, SchedulerWorld
from tests.unit.jobmanager.scheduler.job_graphs import chain, source, stage
from tests.unit.jobmanager.scheduler.scenes import (
    finish,
    fire,
    graph_of,
    holder_of,
    next_leader,
    register,
    resets_of,
    started,
    starts_of,
)


def cancel(world: SchedulerWorld) -> None:
    world.deliver(sig.CancelRequested())


def to_running(world: SchedulerWorld) -> None:
    finish(world, "s", [0])


def to_reconciling(world: SchedulerWorld) -> None:
    finish(world, "s", [0])
    next_leader(world)
    assert graph_of(world).state is JobState.RECONCILING


def to_recovered(world: SchedulerWorld) -> None:
    to_reconciling(world)
    register(world)


def to_waiting_for_a_restart(world: SchedulerWorld) -> None:
    world.fail(*world.tasks()[0])
    world.deliver_pending()


def to_without_workers(world: SchedulerWorld) -> None:
    for worker in world.workers.values():
        world.kill_worker(worker)
    world.deliver_pending()


STATES = [
    to_running,
    to_reconciling,
    to_recovered,
    to_waiting_for_a_restart,
    to_without_workers,
]


@pytest.mark.parametrize("come_to", STATES)
def test_a_cancel_works_in_every_state(come_to: object) -> None:
    """P47: nothing starts after it, and everything that ran is stopped."""
    world = started(chain(3))
    assert callable(come_to)
    come_to(world)
    before = len(world.starts)
    cancel(world)
    world.deliver_pending()
    assert world.ended is JobState.CANCELED
    assert starts_of(world, before) == []
    assert world.tasks() == []
    assert WAIT_TIMER not in world.timers
    assert world.wanted == 0


@pytest.mark.parametrize("come_to", STATES)
def test_a_failure_of_the_job_works_in_every_state(come_to: object) -> None:
    world = started(chain(3))
    assert callable(come_to)
    come_to(world)
    world.deliver(sig.SplitEnumerationFailed("s", "the glob matches nothing"))
    world.deliver_pending()
    assert world.ended is JobState.FAILED
    assert world.failure is not None
    assert world.failure.message == "the glob matches nothing"


def test_a_job_is_cancelled_before_it_has_begun() -> None:
    graph = ExecutionGraph(chain(2))
    scheduler = Scheduler(graph, 1, OPTIONS, RestartStrategy(1, 1))
    decision = scheduler.handle(sig.CancelRequested())
    assert scheduler.ended is JobState.CANCELED
    assert [a for a in decision.actions if isinstance(a, act.EndJob)]
    assert scheduler.handle(sig.JobStarted()).events == []


@pytest.mark.parametrize("lost_events", [0, 1])
def test_a_durable_cancel_is_finished_by_the_next_leader(lost_events: int) -> None:
    """P47: whichever of its events were durable, if the request was."""
    world = started(chain(3))
    finish(world, "s", [0])
    world.durable = len(world.log)
    cancel(world)
    before = len(world.starts)
    next_leader(world, lost_events=lost_events)
    register(world)
    assert world.ended is JobState.CANCELED
    assert starts_of(world, before) == []


def test_a_durable_failure_is_finished_by_the_next_leader() -> None:
    world = started(chain(3))
    finish(world, "s", [0])
    world.deliver(sig.SplitEnumerationFailed("s", "why"))
    next_leader(world)
    assert world.ended is JobState.FAILED
    assert world.failure is not None
    assert world.failure.message == "why"


def test_a_cancel_after_a_failure_changes_no_end() -> None:
    world = started(chain(3))
    world.deliver(sig.SplitEnumerationFailed("s", "why"))
    cancel(world)
    cancel(world)
    world.deliver_pending()
    assert world.ended is JobState.FAILED
    requests = [e for e in world.log if e.HasField("cancel_requested")]
    assert len(requests) == 1


@pytest.mark.parametrize("lost", [True, False])
def test_of_a_job_that_is_being_cancelled_nothing_is_lost_any_more(lost: bool) -> None:
    """Neither what a lost worker held, nor what one that registers again offers in vain."""
    world = started(chain(3))
    finish(world, "s", [0])
    holder, _ = holder_of(world, "s", 0)
    cancel(world)
    if lost:
        world.kill_worker(holder)
    else:
        world.register(holder)
    world.deliver(world.pending.pop())
    assert graph_of(world).state is JobState.CANCELLING
    assert resets_of(world) == {}
    world.deliver_pending()
    assert world.ended is JobState.CANCELED


def test_a_failure_after_a_cancel_changes_no_end() -> None:
    world = started(chain(3))
    cancel(world)
    world.deliver(sig.SplitEnumerationFailed("s", "why"))
    world.deliver_pending()
    assert (world.ended, world.failure) == (JobState.CANCELED, None)


def test_the_end_waits_for_the_attempts_but_not_for_ever() -> None:
    world = started(chain(3))
    cancel(world)
    world.pending.clear()  # no TaskManager answers
    assert (world.ended, world.timers[CANCEL_TIMER]) == (None, OPTIONS.cancellation_timeout_s)
    states = {v.state for v in graph_of(world).all_subtasks()}
    assert ExecutionState.CANCELING in states
    fire(world, CANCEL_TIMER)
    assert world.ended is JobState.CANCELED


def test_an_attempt_that_finishes_while_it_is_cancelled_counts_for_nothing() -> None:
    world = started(chain(3))
    worker, key = world.tasks()[0]
    cancel(world)
    world.pending.clear()
    done = common_pb2.FinishedExecution(attempt=key.to_proto())
    worker.stored[key] = done
    finished = len(world.log)
    world.deliver(
        sig.ExecutionReported(worker.worker_id, key, ExecutionState.FINISHED, finished=done)
    )
    assert world.log[finished:] == []
    assert key not in worker.stored


def test_nothing_is_decided_after_the_end() -> None:
    world = started(chain(2))
    world.run_to_end()
    assert world.scheduler is not None
    slot = sig.SlotId("tm-0", 0)
    granted = world.scheduler.handle(sig.SlotsGranted((slot,)))
    assert granted.actions == [act.ReturnSlots((slot,))]
    for signal in (sig.CancelRequested(), sig.WorkerLost("tm-0", "x"), sig.CommitFinished()):
        decision = world.scheduler.handle(signal)
        assert (decision.events, decision.actions) == ([], [])


# The output


def to_the_commit(world: SchedulerWorld) -> None:
    """All work is done; the commit is recorded, and nobody has said that it is finished."""
    for vertex_id in "sm":
        finish(world, vertex_id)
    while world.committed is None:
        if world.pending:
            world.deliver(world.pending.pop(0))
        else:
            world.finish(*world.tasks()[0])
    assert graph_of(world).commit is not None
    assert world.ended is None


def test_all_files_are_published_in_one_commit_after_all_work() -> None:
    world = started(chain(2))
    to_the_commit(world)
    assert world.committed is not None
    assert len(world.committed) == 2
    world.deliver_pending()
    assert world.ended is JobState.FINISHED


def test_a_commit_is_finished_by_the_next_leader_without_any_worker() -> None:
    """Behaviour 1: never done twice; the world asserts that the files are the same ones."""
    world = started(chain(2))
    to_the_commit(world)
    before = len(world.starts)
    next_leader(world)
    world.deliver_pending()
    assert world.ended is JobState.FINISHED
    assert starts_of(world, before) == []
    assert world.output() == list(range(8))


def test_a_job_that_is_being_published_is_not_cancelled_any_more() -> None:
    world = started(chain(2))
    to_the_commit(world)
    cancel(world)
    assert not graph_of(world).cancel_requested
    world.deliver_pending()
    assert world.ended is JobState.FINISHED


def test_losing_every_worker_does_not_matter_to_a_commit() -> None:
    world = started(chain(2))
    to_the_commit(world)
    for worker in world.workers.values():
        world.pending.append(sig.WorkerLost(worker.worker_id, "gone"))
    finished = world.pending.pop(0)
    world.deliver_pending()
    assert graph_of(world).all_finished
    world.deliver(finished)
    assert world.ended is JobState.FINISHED


def test_a_commit_that_cannot_be_completed_fails_the_job() -> None:
    world = started(chain(2))
    to_the_commit(world)
    world.pending.clear()
    world.deliver(sig.CommitFailed("a staged file is gone"))
    assert world.ended is JobState.FAILED
    assert world.failure is not None
    assert world.failure.message == "a staged file is gone"


def test_a_check_of_staged_files_that_a_loss_overtakes_begins_no_commit() -> None:
    world = started(chain(2))
    for vertex_id in "sm":
        finish(world, vertex_id)
    while not isinstance(world.pending[0] if world.pending else None, sig.StagedFilesChecked):
        if world.pending:
            world.deliver(world.pending.pop(0))
        else:
            world.finish(*world.tasks()[0])
    cancel(world)
    world.deliver_pending()
    assert world.ended is JobState.CANCELED
    assert world.committed is None


def test_a_job_without_sinks_ends_when_all_its_work_is_done() -> None:
    job = chain(2)
    del job.vertices[1:], job.edges[:], job.vertices[0].outputs[:]
    assert [v.vertex_id for v in job.vertices] == [source("s", 2).vertex_id]
    job.vertices.append(stage("m", 1))
    world = started(job)
    world.run_to_end()
    assert (world.ended, world.committed) == (JobState.FINISHED, None)
