"""A large inventory is judged in parts; what comes of it is the same (P53, P55)."""

from __future__ import annotations

import pytest

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, job_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import returning_workers
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.core import Decision
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.failover import RestartStrategy
from jobmanager.scheduler.scheduler import Scheduler
from jobmanager.scheduler.states import JobState
from tests.doubles.scheduler_world import OPTIONS
from tests.unit.jobmanager.scheduler import test_scheduler_world as worlds
from tests.unit.jobmanager.scheduler.job_graphs import FORWARD, connect, source, stage
from tests.unit.jobmanager.scheduler.scenes import finished, initialized, replayed, state_changed

WIDTH = 30
#: Subtasks of s that the log knows; the worker brings back most of them, and more.
LOGGED, KEPT_FROM = 20, 4
WORKER = "tm-0"


def job() -> job_pb2.JobGraph:
    """s -> (forward) m."""
    graph = job_pb2.JobGraph(job_id="job", vertices=[source("s", WIDTH), stage("m", WIDTH)])
    connect(graph, "s", "m", FORWARD, 1)
    return graph


def left_behind() -> ExecutionGraph:
    """The source has finished in part, as the log says."""
    shapes = [initialized("s", WIDTH, splits=WIDTH), initialized("m", WIDTH, inputs=1)]
    done = [finished("s", i, splits=[i]) for i in range(LOGGED)]
    return replayed(job(), [state_changed(JobState.RUNNING), *shapes, *done])


def execution(subtask: int, attempt: int = 0) -> common_pb2.FinishedExecution:
    """An attempt of s that has finished under the first leader."""
    return finished("s", subtask, attempt=attempt, splits=[subtask]).vertex_finished.execution


def brought() -> sig.WorkerRegistered:
    """Known attempts but for the first few, of which one is there by another number, and some that
    no event tells of."""
    offers = [execution(i) for i in range(KEPT_FROM, WIDTH)]
    offers.append(execution(KEPT_FROM, attempt=7))
    return sig.WorkerRegistered(WORKER, f"{WORKER}:1", refreshed=False, finished=offers)


def recovering() -> Scheduler:
    """A leader that awaits the worker."""
    scheduler = Scheduler(left_behind(), 2, OPTIONS, RestartStrategy(3, 1))
    scheduler.handle(sig.RecoveryStarted((WORKER,)))
    return scheduler


def in_parts(scheduler: Scheduler, signal: sig.Signal) -> list[Decision]:
    """What is decided about a signal, part for part."""
    decisions = [scheduler.handle(signal)]
    while decisions[-1].unfinished:
        decisions.append(scheduler.handle(signal))
    return decisions


@pytest.mark.parametrize("offers_a_step", [1, 2, 7, 13])
def test_parts_come_to_the_same_as_the_whole(
    monkeypatch: pytest.MonkeyPatch, offers_a_step: int
) -> None:
    whole = recovering().handle(brought())
    assert not whole.unfinished
    monkeypatch.setattr(returning_workers, "OFFERS_A_STEP", offers_a_step)
    parts = in_parts(recovering(), brought())
    assert len(parts) > WIDTH // offers_a_step
    assert [event for part in parts for event in part.events] == whole.events
    assert [action for part in parts for action in part.actions] == whole.actions
    rejected = [a for a in whole.actions if isinstance(a, act.RejectOffers)]
    assert [key for a in rejected for key in a.keys] == [AttemptKey("job", "s", KEPT_FROM, 7, 1)]


def test_nothing_is_deployed_before_all_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is judged last may be what would run."""
    monkeypatch.setattr(returning_workers, "OFFERS_A_STEP", 1)
    scheduler = recovering()
    scheduler.handle(sig.WorkerRegistered("tm-1", "tm-1:1", refreshed=False))
    scheduler.handle(sig.SlotsGranted((sig.SlotId("tm-1", 0),)))
    *parts, last = in_parts(scheduler, brought())
    deployed = [[a for a in part.actions if isinstance(a, act.Deploy)] for part in parts]
    assert not any(deployed)
    assert any(isinstance(action, act.Deploy) for action in last.actions)


@pytest.mark.parametrize("name", worlds.ALL_JOBS)
def test_any_faults_leave_the_output_as_it_is_in_parts_too(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(returning_workers, "OFFERS_A_STEP", 1)
    worlds.test_any_faults_leave_the_output_as_it_is(name)
