"""Splits of a source: each is read once, by attempts whose answers may get lost."""

from __future__ import annotations

import pytest

from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.splits import SplitEnumerator
from jobmanager.scheduler.states import ExecutionState
from tests.doubles.scheduler_world import SchedulerWorld
from tests.unit.jobmanager.scheduler.job_graphs import chain
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
)


def source_with(*finished_splits: tuple[int, ...], splits: int = 6) -> ExecutionGraph:
    """A source whose first subtasks have finished with these splits."""
    done = [finished("s", i, splits=read) for i, read in enumerate(finished_splits)]
    return replayed(chain(3), [initialized("s", 3, splits=splits), *done])


def enumerator(graph: ExecutionGraph) -> SplitEnumerator:
    return SplitEnumerator(graph.vertices["s"], graph.vertices["s"].splits)


def test_asking_again_gets_the_same_answer() -> None:
    graph = source_with()
    splits, vertex = enumerator(graph), graph.vertex_at("s", 0)
    first = splits.next_split(vertex, 0)
    assert splits.next_split(vertex, 0) == first
    second = splits.next_split(vertex, 1)
    assert splits.next_split(vertex, 1) == second
    assert second != first
    assert splits.next_split(vertex, 0) == first


def test_every_split_is_handed_out_once_and_then_there_are_no_more() -> None:
    graph = source_with()
    splits = enumerator(graph)
    read = [splits.next_split(graph.vertex_at("s", i % 3), i // 3) for i in range(6)]
    assert sorted(s.index for s in read if s is not None) == list(range(6))
    assert splits.next_split(graph.vertex_at("s", 0), 2) is None
    assert splits.next_split(graph.vertex_at("s", 0), 2) is None


def test_splits_given_back_are_read_by_others_in_their_order() -> None:
    graph = source_with()
    splits, vertex = enumerator(graph), graph.vertex_at("s", 0)
    for received in range(3):
        splits.next_split(vertex, received)
    splits.give_back(vertex.splits)
    assert splits.unread() == (0, 1, 2, 3, 4, 5)


def test_a_subtask_that_finished_once_reads_exactly_the_same_again() -> None:
    graph = source_with((5, 0))
    graph.apply(reset("s", 0))
    splits, vertex = enumerator(graph), graph.vertex_at("s", 0)
    read = [splits.next_split(vertex, received) for received in range(3)]
    assert [None if s is None else s.index for s in read] == [5, 0, None]
    assert splits.unread() == (1, 2, 3, 4)


def test_after_a_replay_what_no_finished_subtask_has_read_is_unread() -> None:
    assert enumerator(source_with((1,), (4, 2))).unread() == (0, 3, 5)


def test_an_adopted_attempt_claims_all_of_its_splits_or_none() -> None:
    graph = source_with((1,))
    splits = enumerator(graph)
    assert not splits.finish(graph.vertex_at("s", 1), [0, 1])
    assert splits.unread() == (0, 2, 3, 4, 5)
    assert splits.finish(graph.vertex_at("s", 1), [0, 3])
    assert splits.unread() == (2, 4, 5)
    assert not splits.finish(graph.vertex_at("s", 2), [3])


def test_what_a_finished_attempt_was_given_and_has_not_read_is_read_by_others() -> None:
    graph = source_with((1,))
    splits, vertex = enumerator(graph), graph.vertex_at("s", 1)
    for received in range(2):
        splits.next_split(vertex, received)
    assert splits.finish(vertex, [0])
    assert splits.unread() == (2, 3, 4, 5)


def test_nobody_finishes_while_splits_are_left_that_nobody_else_asks_for() -> None:
    """One has heard that there are no more before another one failed and gave its splits back."""
    graph = source_with((1,), splits=3)
    splits = enumerator(graph)
    told, failed = graph.vertex_at("s", 1), graph.vertex_at("s", 2)
    for received, vertex in enumerate((failed, failed, told)):
        splits.next_split(vertex, received % 2)
    assert splits.next_split(told, 0) is None
    splits.give_back(failed.splits)
    failed.splits = []
    assert not splits.finish(failed, [])
    assert splits.unread() == (0, 2)
    assert splits.finish(told, [])
    assert splits.finish(failed, [2, 0])
    assert splits.unread() == ()


def ask(world: SchedulerWorld, subtask: int) -> tuple[bool, int | None]:
    assert world.scheduler is not None
    key = graph_of(world).vertex_at("s", subtask).key("job")
    current, split = world.scheduler.next_split(key, 0)
    return current, split.index if split is not None else None


def test_only_the_current_attempt_gets_splits() -> None:
    """P15."""
    world = started(chain(2))
    assert world.scheduler is not None
    key = graph_of(world).vertex_at("s", 0).key("job")
    worker = next(w for w, k in world.tasks() if k == key)
    assert ask(world, 0) == (True, 0)
    world.deliver(sig.WorkerLost(worker.worker_id, "gone"))
    assert world.scheduler.next_split(key, 1) == (False, None)


def test_a_failed_attempt_gives_its_splits_back() -> None:
    world = started(chain(2))
    worker, key = next((w, k) for w, k in world.tasks() if k.subtask == 0)
    for _ in range(3):
        world.draw_split(worker, key)
    world.fail(worker, key)
    finish(world, "s", [1])
    assert list(graph_of(world).vertex_at("s", 1).splits) == list(range(8))
    world.run_to_end()
    assert world.output() == list(range(8))


@pytest.mark.parametrize("lost_events", [0, 1])
def test_splits_survive_the_leader_with_the_subtasks_that_read_them(lost_events: int) -> None:
    world = started(chain(2))
    worker, key = next((w, k) for w, k in world.tasks() if k.subtask == 1)
    for _ in range(5):
        world.draw_split(worker, key)
    world.flush_probability = 0.0
    finish(world, "s", [1])
    read = list(graph_of(world).vertex_at("s", 1).splits)
    next_leader(world, lost_events=lost_events)
    register(world)
    vertex = graph_of(world).vertex_at("s", 1)
    assert (vertex.state, list(vertex.splits)) == (ExecutionState.FINISHED, read)
    world.run_to_end()
    assert world.output() == list(range(8))
