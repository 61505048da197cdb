"""The execution graph: a log leads it to the same durable state, at any prefix, by a snapshot too.

Durable is what FLIP-383's job events carry; attempts that merely run are not.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

from holdover.v1 import common_pb2, events_pb2
from jobmanager.scheduler.core import SLOT_TIMER
from jobmanager.scheduler.execution_graph import ExecutionGraph, ReplayError
from jobmanager.scheduler.states import ExecutionState, InvalidTransition, JobState
from tests.doubles.scheduler_world import SchedulerWorld
from tests.unit.jobmanager.scheduler.job_graphs import chain, join
from tests.unit.jobmanager.scheduler.scenes import (
    finish,
    finished,
    graph_of,
    initialized,
    next_leader,
    register,
    replayed,
    reset,
    started,
    state_changed,
)

SEEDS = range(*map(int, os.environ.get("TEST_SEEDS", "0:20").split(":")))
RUNNING = state_changed(JobState.RUNNING)
THREE = [RUNNING, initialized("s", 3, splits=6)]


def durable(graph: ExecutionGraph, *, attempts: bool = True) -> list[Any]:
    """All that a log must bring back. Numbers of attempts that run are not in the log, only in a
    snapshot.
    """
    state: list[Any] = [graph.state, graph.failure, graph.cancel_requested, graph.commit]
    for owner in graph.vertices.values():
        state += [owner.vertex_id, owner.parallelism, owner.input_bounds, list(owner.splits)]
        for vertex in owner.subtasks:
            done = vertex.finished is not None
            splits = tuple(vertex.splits) if done and owner.source else vertex.pinned_splits
            state.append((vertex.subtask, vertex.finished, vertex.stored_at, splits))
            if attempts or done:
                state.append((vertex.attempt, vertex.epoch if done else None))
    return state


def from_snapshot(graph: ExecutionGraph, events: Sequence[events_pb2.JobEvent]) -> ExecutionGraph:
    """A fresh graph after the snapshot of another, whose history is in its events."""
    changes = [e.job_state_changed for e in events if e.HasField("job_state_changed")]
    wire = [e.SerializeToString() for e in graph.snapshot_events(changes)]
    return replayed(graph.job, [events_pb2.JobEvent.FromString(record) for record in wire])


def random_life(seed: int) -> SchedulerWorld:
    """A job with faults, at some moment of its life."""
    choose = random.Random(seed)
    world = SchedulerWorld([chain(3), chain(3, adaptive=True), join(2)][seed % 3], seed=seed)
    world.workers_may_lose = True
    world.lead()
    for _ in range(choose.randrange(10, 120)):
        running = world.tasks()
        timers = [name for name in world.timers if name != SLOT_TIMER]
        idle = [w for w in world.workers.values() if not w.registered]
        dice = choose.random()
        if world.ended is not None:
            break
        if idle and dice < 0.2:
            world.register(choose.choice(idle))
        elif dice < 0.25:
            world.kill_worker(choose.choice(list(world.workers.values())))
        elif dice < 0.28:
            next_leader(world)
        elif dice < 0.32 and timers:
            world.fire(choose.choice(timers))
        elif dice < 0.6 and running:
            world.finish(*choose.choice(running))
        elif world.pending:
            world.deliver(world.pending.pop(0))
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replay_leads_to_the_state_before_the_crash(seed: int) -> None:
    world = random_life(seed)
    assert durable(replayed(world.job, world.log), attempts=False) == durable(
        graph_of(world), attempts=False
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_every_prefix_of_a_log_is_a_state_and_its_snapshot_is_the_same(seed: int) -> None:
    world = random_life(seed)
    graph = ExecutionGraph(world.job)
    for count, event in enumerate(world.log, start=1):
        graph.apply(event)
        again = from_snapshot(graph, world.log[:count])
        assert durable(again) == durable(graph), f"after {count} events"
    assert durable(from_snapshot(graph_of(world), world.log)) == durable(graph_of(world))


def test_a_reset_source_reads_the_same_splits_after_a_snapshot() -> None:
    log = [*THREE, finished("s", 1, splits=(4, 2), attempt=5), reset("s", 1)]
    graph = from_snapshot(replayed(chain(3), log), log)
    vertex = graph.vertex_at("s", 1)
    assert (vertex.state, vertex.pinned_splits) == (ExecutionState.CREATED, (4, 2))
    assert vertex.attempt == 6
    assert from_snapshot(graph, log).vertex_at("s", 1).attempt == 6


def test_cancel_failure_and_commit_survive_a_snapshot() -> None:
    world = started(chain(2))
    for vertex_id in "smk":
        finish(world, vertex_id)
    log = [
        *(e for e in world.log if not e.HasField("commit_started")),
        events_pb2.JobEvent(
            commit_started=events_pb2.JobCommitStarted(
                files=[common_pb2.StagedFile(staged_path="/a", final_path="/b")],
                output_directories=["/out"],
            )
        ),
        events_pb2.JobEvent(cancel_requested=events_pb2.JobCancelRequested()),
        events_pb2.JobEvent(
            failure_recorded=events_pb2.JobFailureRecorded(
                failure=common_pb2.Failure(kind=common_pb2.FAILURE_KIND_JOB, message="why")
            )
        ),
        state_changed(JobState.FAILING),
    ]
    graph = from_snapshot(replayed(world.job, log), log)
    assert graph.state is JobState.FAILING
    assert graph.cancel_requested
    assert graph.failure is not None
    assert graph.failure.message == "why"
    assert graph.commit is not None
    assert list(graph.commit.output_directories) == ["/out"]


def test_a_reset_takes_the_next_attempt() -> None:
    graph = replayed(chain(3), [*THREE, finished("s", 0, attempt=2, epoch=4), reset("s", 0)])
    vertex = graph.vertex_at("s", 0)
    assert (vertex.attempt, vertex.epoch, vertex.finished) == (3, 0, None)
    assert graph.vertices["s"].finished_count == 0


def test_subtasks_are_found_by_the_worker_that_has_them() -> None:
    world = started(chain(4))
    finish(world, "s", [0])
    graph = graph_of(world)
    for worker_id in world.workers:
        there = {v.id for v in graph.at_worker(worker_id)}
        assert there == {v.id for v in graph.all_subtasks() if v.worker_id == worker_id}
    assert graph.at_worker("unknown") == []


def test_only_a_change_of_inputs_asks_for_readiness_anew() -> None:
    graph = replayed(chain(2), [RUNNING, initialized("s", 2), initialized("m", 2, inputs=1)])
    for subtask in range(2):
        graph.apply(finished("s", subtask))
        graph.set_available(graph.vertex_at("s", subtask), True)
        changed = [v.id for v in graph.take_readiness_changes()]
        assert changed == ([] if subtask == 0 else [("m", 0), ("m", 1)])
    graph.set_available(graph.vertex_at("s", 0), True)
    assert graph.take_readiness_changes() == []


def test_an_optional_partition_is_one_whose_consumers_have_all_finished() -> None:
    """FLIP-383: reserve, optional, release."""
    world = started(chain(2))
    finish(world, "s")
    graph = graph_of(world)
    assert graph.needed(graph.vertex_at("s", 0))
    finish(world, "m", [0])
    assert graph.needed(graph.vertex_at("s", 0))
    finish(world, "m", [1])
    assert not graph.needed(graph.vertex_at("s", 0))


def test_what_nobody_has_initialized_yet_may_still_need_its_inputs() -> None:
    world = started(chain(2, adaptive=True))
    finish(world, "s", [0])
    graph = graph_of(world)
    assert not graph.vertices["m"].initialized
    assert graph.needed(graph.vertex_at("s", 0))


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([initialized("s", 1), initialized("s", 1)], "initialized twice"),
        ([initialized("s", 0)], "with no subtask"),
        ([initialized("s", 1, inputs=1)], "has other inputs"),
        ([initialized("x", 1)], "no vertex 'x'"),
        ([*THREE, finished("s", 0), finished("s", 0)], "s/0 finishes twice"),
        ([*THREE, finished("s", 3)], "no subtask 3"),
        ([*THREE, finished("s", -1)], "no subtask -1"),
        ([finished("s", 0)], "no subtask 0"),
        ([*THREE, finished("s", 0, splits=[6])], "unknown splits"),
        ([*THREE, reset("s", 0)], "is reset unfinished"),
        ([state_changed(JobState.RUNNING), events_pb2.JobEvent()], "unknown kind"),
        (
            [events_pb2.JobEvent(job_state_changed=events_pb2.JobStateChanged(state=99))],  # type: ignore[arg-type]
            "unknown state 99",
        ),
        (
            [
                *THREE,
                events_pb2.JobEvent(
                    attempts_raised=events_pb2.ExecutionAttemptsRaised(
                        vertex_id="s", next_attempts=[1, 1]
                    )
                ),
            ],
            "has 3 subtasks, and not 2",
        ),
        (
            [
                events_pb2.JobEvent(
                    vertex_initialized=events_pb2.ExecutionJobVertexInitialized(
                        vertex_id="m",
                        parallelism=2,
                        input_ranges=[events_pb2.InputRanges(bounds=[0, 1])],
                    )
                )
            ],
            "ranges for another parallelism",
        ),
        (
            [*THREE, events_pb2.JobEvent(commit_started=events_pb2.JobCommitStarted())],
            "before every subtask has finished",
        ),
    ],
)
def test_a_log_that_contradicts_itself_is_refused(
    events: list[events_pb2.JobEvent], message: str
) -> None:
    with pytest.raises(ReplayError, match=message):
        replayed(chain(3), events)


def test_a_log_with_an_impossible_change_of_state_is_refused() -> None:
    with pytest.raises(InvalidTransition, match="CANCELLING -> RUNNING"):
        replayed(chain(1), [state_changed(JobState.CANCELLING), RUNNING])


def test_readiness_is_computed_from_state_whatever_led_to_it() -> None:
    """P13: a recovered, a fresh and a never-lost input count the same."""
    for finished_first in ("s1", "s2"):
        world = started(join(2))
        finish(world, finished_first)
        next_leader(world)
        register(world)
        finish(world, "s2" if finished_first == "s1" else "s1")
        assert {key.vertex_id for _, key in world.tasks()} == {"j"}
