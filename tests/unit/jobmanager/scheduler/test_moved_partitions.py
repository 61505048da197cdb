"""A shuffle service is to leave: what live jobs need of it is copied to others first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, events_pb2
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.execution_graph import ExecutionGraph, ReplayError
from jobmanager.scheduler.restarted_workers import RESTART_WAIT_TIMER
from jobmanager.scheduler.scheduler import Scheduler
from tests.doubles.scheduler_world import SchedulerWorld
from tests.unit.jobmanager.scheduler.job_graphs import chain
from tests.unit.jobmanager.scheduler.scenes import (
    finish,
    finished,
    fire,
    graph_of,
    initialized,
    next_leader,
    register,
    replayed,
    resets_of,
    stored_by,
)
from tests.unit.jobmanager.scheduler.test_external_shuffle import (
    EXTERNAL,
    ROWS,
    begun,
    kill,
    target_of,
    taskmanagers,
)

LEAVING = sig.ShuffleLoad(room_bytes=1000, draining=True)


def drain(world: SchedulerWorld, worker_id: str, *, deliver: bool = True) -> None:
    """The service says that it is to leave; all that follows arrives."""
    world.tell_load(world.workers[worker_id], LEAVING)
    if deliver:
        world.deliver_pending()


def scheduler_of(world: SchedulerWorld) -> Scheduler:
    assert world.scheduler is not None
    return world.scheduler


def moved(vertex_id: str, subtask: int, worker_id: str, *, attempt: int = 0) -> events_pb2.JobEvent:
    key = AttemptKey("job", vertex_id, subtask, attempt, 1)
    return events_pb2.JobEvent(
        partitions_moved=events_pb2.PartitionsMoved(
            attempt=key.to_proto(), location=common_pb2.PartitionLocation(worker_id=worker_id)
        )
    )


def test_what_is_needed_moves_to_others_and_nothing_runs_again() -> None:
    world = begun(services=3)
    finish(world, "s")
    drain(world, "ss-0")
    assert not graph_of(world).at_worker("ss-0")
    kill(world, "ss-0")
    assert resets_of(world) == {}
    world.run_to_end()
    assert world.output() == ROWS
    assert [world.runs_of("s", subtask) for subtask in range(6)] == [1] * 6


def test_no_new_output_goes_to_a_service_that_is_to_leave() -> None:
    world = begun()
    finish(world, "s")
    drain(world, "ss-0")
    world.run_to_end()
    assert not stored_by(world, "ss-0", "m")


def test_what_awaited_work_has_read_moves_on_too() -> None:
    """A lost service that is expected back holds some of what was made of it."""
    world = begun(services=3, options=replace(EXTERNAL, restart_wait_s=20))
    finish(world, "s")
    finish(world, "m", range(5))
    [(last, key)] = [task for task in world.tasks() if task[1].vertex_id == "m"]
    leaving = target_of(last, key)
    away = next(ss for ss in ("ss-0", "ss-1", "ss-2") if ss != leaving)
    kept, lost = stored_by(world, leaving, "s"), stored_by(world, away, "m")
    assert kept
    assert lost
    world.kill_worker(world.workers[away], with_disk=False)
    world.deliver_pending()
    world.finish(last, key)
    world.deliver_pending()
    assert graph_of(world).vertices["m"].all_finished
    drain(world, leaving)
    assert not graph_of(world).at_worker(leaving)
    kill(world, leaving)
    fire(world, RESTART_WAIT_TIMER + away)
    assert resets_of(world)["m", "WORKER_LOST"] == lost
    world.run_to_end()
    assert world.output() == ROWS
    assert [world.runs_of("s", subtask) for subtask in kept] == [1] * len(kept)


def test_it_may_leave_once_nothing_is_needed_and_its_last_readers_are_over() -> None:
    world = begun(workers=1)
    finish(world, "s")
    scheduler = scheduler_of(world)
    first = [key.subtask for _, key in world.tasks()]
    assert len(first) == 2, "they were told to read there"
    drain(world, "ss-0", deliver=False)
    world.deliver(world.pending.pop(0))
    assert scheduler.needs_worker("ss-0"), "the copies are under way"
    world.deliver_pending()
    assert scheduler.needs_worker("ss-0"), "the readers are at work"
    finish(world, "m", first)
    drain(world, "ss-0")
    assert scheduler.needs_worker("ss-0"), "others have begun meanwhile"
    finish(world, "m", [key.subtask for _, key in world.tasks()])
    assert not scheduler.needs_worker("ss-0")
    assert world.tasks()
    world.run_to_end()
    assert world.output() == ROWS


def test_who_reads_nothing_that_has_moved_does_not_keep_it_from_leaving() -> None:
    world = begun()
    finish(world, "s")
    kill(world, *taskmanagers(world))
    drain(world, "ss-0")
    register(world)
    finish(world, "m")
    assert world.tasks(), "the last stage is at work"
    assert not scheduler_of(world).needs_worker("ss-0")


def test_a_new_leader_knows_where_output_has_moved() -> None:
    world = begun()
    finish(world, "s")
    drain(world, "ss-0")
    world.kill_worker(world.workers["ss-0"])
    next_leader(world)
    register(world, "ss-1", "tm-0")
    assert resets_of(world) == {}
    world.run_to_end()
    assert [world.runs_of("s", subtask) for subtask in range(6)] == [1] * 6


def test_a_copy_counts_though_its_event_was_lost_and_the_original_is_gone() -> None:
    world = begun()
    finish(world, "s")
    durable = len(world.log)
    drain(world, "ss-0")
    world.kill_worker(world.workers["ss-0"])
    next_leader(world, lost_events=len(world.log) - durable)
    assert graph_of(world).at_worker("ss-0"), "the log does not know of the move"
    register(world, "ss-1", "tm-0")
    assert resets_of(world) == {}
    assert not graph_of(world).at_worker("ss-0")
    world.run_to_end()
    assert [world.runs_of("s", subtask) for subtask in range(6)] == [1] * 6


def test_a_target_that_registers_anew_keeps_a_copy_whose_end_was_not_heard() -> None:
    world = begun()
    finish(world, "s")
    drain(world, "ss-0", deliver=False)
    world.deliver(world.pending.pop(0))
    copies, world.pending = world.pending, []
    register(world, "ss-1")
    assert not graph_of(world).at_worker("ss-0")
    world.pending.extend(copies)
    world.run_to_end()
    assert resets_of(world) == {}
    assert world.output() == ROWS


def test_what_cannot_be_copied_because_it_is_damaged_runs_again() -> None:
    world = begun()
    finish(world, "s")
    vertex = graph_of(world).at_worker("ss-0")[0]
    world.workers_may_lose = True
    world.workers["ss-0"].delete(vertex.key("job"))
    drain(world, "ss-0")
    assert resets_of(world) == {("s", "PARTITION_LOST"): [vertex.subtask]}
    world.run_to_end()
    assert world.output() == ROWS


def test_what_finds_no_room_elsewhere_stays_until_there_is_some() -> None:
    world = begun()
    finish(world, "s")
    there = len(graph_of(world).at_worker("ss-0"))
    world.tell_load(world.workers["ss-1"], sig.ShuffleLoad(room_bytes=0))
    drain(world, "ss-0")
    assert len(graph_of(world).at_worker("ss-0")) == there
    assert scheduler_of(world).needs_worker("ss-0")
    world.tell_load(world.workers["ss-1"], sig.ShuffleLoad(room_bytes=1000))
    drain(world, "ss-0")
    assert not graph_of(world).at_worker("ss-0")


def test_a_copy_of_what_does_not_count_any_more_is_deleted() -> None:
    world = begun()
    finish(world, "s")
    vertex = graph_of(world).at_worker("ss-0")[0]
    key = vertex.key("job")
    drain(world, "ss-0", deliver=False)
    world.deliver(world.pending.pop(0))
    assert key in world.workers["ss-1"].stored
    world.deliver(sig.WorkerLost("ss-0", "killed"))
    world.workers["ss-0"].registered = False
    world.deliver_pending()
    assert key not in world.workers["ss-1"].stored
    world.run_to_end()
    assert world.output() == ROWS


def test_a_snapshot_tells_where_output_is_after_it_has_moved() -> None:
    job = chain(1)
    before = [initialized("s", 1, splits=1), finished("s", 0, worker_id="ss-0", splits=[0])]
    graph = replayed(job, [*before, moved("s", 0, "ss-1")])
    again = replayed(job, graph.snapshot_events(()))
    assert again.vertex_at("s", 0).stored_at == "ss-1"
    assert again.workers() == ["ss-1"]


@pytest.mark.parametrize("attempt", [0, 1])
def test_what_is_not_finished_cannot_move(attempt: int) -> None:
    graph: ExecutionGraph = replayed(chain(1), [initialized("s", 1, splits=1)])
    if attempt:
        graph.apply(finished("s", 0, splits=[0]))
    with pytest.raises(ReplayError, match="is not what counts"):
        graph.apply(moved("s", 0, "ss-1", attempt=attempt))
