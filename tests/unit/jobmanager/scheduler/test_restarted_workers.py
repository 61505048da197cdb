"""A TaskManager is started again while the job runs, and brings along what it had finished."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdover.ids import AttemptKey
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.failures import RESTART_TIMER
from jobmanager.scheduler.states import ExecutionState
from tests.doubles.scheduler_world import OPTIONS, SchedulerWorld
from tests.unit.jobmanager.scheduler.job_graphs import chain, dealt_out
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
    stored_by,
)


def lose(world: SchedulerWorld, worker_id: str) -> None:
    """A worker dies and its disk lives; the leader knows."""
    world.kill_worker(world.workers[worker_id], with_disk=False)
    world.deliver_pending()


def restart(world: SchedulerWorld, worker_id: str, address: str = "") -> None:
    """A new process registers before anybody has missed the old one."""
    worker = world.workers[worker_id]
    worker.running.clear()
    world.held = {slot: None for slot in world.held if slot.worker_id != worker_id}
    world.deliver(sig.WorkerRestarted(worker_id))
    registered = sig.WorkerRegistered(
        worker_id, address or f"{worker_id}:1", False, tuple(worker.stored.values())
    )
    world.deliver(registered)
    world.deliver_pending()


def test_what_a_lost_worker_brings_back_does_not_run_again() -> None:
    world = started(chain(6))
    finish(world, "s")
    worker, _ = holder_of(world, "s", 0)
    lost = stored_by(world, worker.worker_id, "s")
    lose(world, worker.worker_id)
    assert resets_of(world) == {("s", "WORKER_LOST"): lost}
    register(world, worker.worker_id)
    world.run_to_end()
    finishes = [key for key in world.finishes if key.vertex_id == "s"]
    assert len(finishes) == 6
    assert world.output() == list(range(8))


def test_an_attempt_in_its_stead_is_cancelled() -> None:
    world = started(chain(6))
    finish(world, "s")
    worker, key = holder_of(world, "s", 0)
    lose(world, worker.worker_id)
    in_its_stead = AttemptKey("job", "s", key.subtask, 1, 1)
    assert in_its_stead in [running for _, running in world.tasks()]
    register(world, worker.worker_id)
    assert in_its_stead not in [running for _, running in world.tasks()]
    vertex = graph_of(world).vertex_at("s", key.subtask)
    assert vertex.state is ExecutionState.FINISHED
    assert vertex.key("job") == key
    world.run_to_end()
    assert world.output() == list(range(8))


def test_what_has_finished_anew_stays_and_the_old_output_is_deleted() -> None:
    world = started(chain(6))
    finish(world, "s")
    worker, key = holder_of(world, "s", 0)
    lose(world, worker.worker_id)
    finish(world, "s", [key.subtask])
    register(world, worker.worker_id)
    assert key not in worker.stored
    assert graph_of(world).vertex_at("s", key.subtask).key("job") != key
    world.run_to_end()
    assert world.output() == list(range(8))


def test_the_next_leader_knows_what_was_taken_up_again() -> None:
    world = started(chain(6))
    finish(world, "s")
    worker, _ = holder_of(world, "s", 0)
    lose(world, worker.worker_id)
    register(world, worker.worker_id)
    before = len(world.starts)
    next_leader(world)
    register(world)
    assert all(vertex != "s" for vertex, _ in starts_of(world, before))
    world.run_to_end()
    assert world.output() == list(range(8))


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_two_runs_are_never_mixed(seed: int) -> None:
    """The consumer has read a run of its producer that may not be the one that counts."""
    world = SchedulerWorld(dealt_out(4), seed=seed)
    world.flush_probability = 1.0
    world.lead()
    register(world)
    lost_again: set[str] = set()
    for _ in range(30):
        world.deliver_pending()
        tasks = world.tasks()
        if world.ended is not None or not tasks:
            break
        world.finish(*world.random.choice(tasks))
        if world.random.random() < 0.4:
            worker_id = world.random.choice(sorted(world.workers))
            lose(world, worker_id)
            if lost_again and world.random.random() < 0.7:
                register(world, lost_again.pop())
            lost_again.add(worker_id)
            if len(lost_again) == len(world.workers):
                register(world)
                lost_again.clear()
    world.run_to_end()
    assert world.output() == list(range(8))


def test_a_worker_that_nobody_missed_keeps_its_finished_work_and_loses_its_tasks() -> None:
    """P22: what it offers is there, what it does not offer is missing from that moment."""
    world = started(chain(6))
    finish(world, "s", range(3))
    worker, key = holder_of(world, "s", 0)
    running = [AttemptKey("job", "s", k.subtask, 1, 1) for k in worker.running]
    gone = [k for k in worker.stored if k != key]
    for each in gone:
        worker.delete(each)
    restart(world, worker.worker_id)
    assert graph_of(world).vertex_at("s", key.subtask).available
    assert resets_of(world).get(("s", "PARTITION_MISSING"), []) == [k.subtask for k in gone]
    world.run_to_end()
    assert world.runs_of("s", key.subtask) == 1
    assert all(k in world.starts for k in running)
    assert world.output() == list(range(8))


def test_who_brings_the_last_of_a_vertex_and_has_lost_another_finds_the_inputs_there() -> None:
    """The inventory is judged to its end before anything is deleted by what stands in it."""
    world = started(chain(6))
    finish(world, "s")
    finish(world, "m", range(5))
    [(worker, last)] = [task for task in world.tasks() if task[1].vertex_id == "m"]
    lost = stored_by(world, worker.worker_id, "m")[0]
    world.finish(worker, last)
    world.pending.clear()
    lose_output(world, "m", [lost])
    register(world, worker.worker_id)
    assert resets_of(world) == {("m", "PARTITION_MISSING"): [lost]}
    world.run_to_end()
    assert {starts_of(world).count(("s", subtask)) for subtask in range(6)} == {1}
    assert world.output() == list(range(8))


def test_what_had_come_back_and_is_gone_again_is_missing_when_the_wait_ends() -> None:
    """It registers in time, and is started anew on an empty disk while others are awaited."""
    world = started(chain(6))
    finish(world, "s")
    worker, _ = holder_of(world, "s", 0)
    others = [worker_id for worker_id in world.workers if worker_id != worker.worker_id]
    gone = stored_by(world, worker.worker_id, "s")
    next_leader(world)
    before = len(world.log)
    register(world, worker.worker_id)
    worker.stored.clear()
    restart(world, worker.worker_id)
    register(world, *others)
    assert resets_of(world, before) == {("s", "PARTITION_MISSING"): gone}
    world.run_to_end()
    assert world.output() == list(range(8))


def test_readers_of_a_worker_that_has_moved_are_started_anew() -> None:
    world = started(chain(6))
    finish(world, "s")
    readers = [key for _, key in world.tasks()]
    assert readers
    worker, _ = holder_of(world, "s", 0)
    others = [key for key in readers if key not in worker.running]
    restart(world, worker.worker_id, address="elsewhere:1")
    assert not [key for _, key in world.tasks() if key in others]
    gates = [
        task.deployment.inputs[0] for w in world.workers.values() for task in w.running.values()
    ]
    addresses = {
        location.data_address
        for gate in gates
        for location in gate.locations
        if location.worker_id == worker.worker_id
    }
    assert addresses == {"elsewhere:1"}
    assert resets_of(world) == {}


def released(world: SchedulerWorld, signal: sig.Signal) -> list[AttemptKey]:
    assert world.scheduler is not None
    actions = world.scheduler.handle(signal).actions
    return [k for a in actions if isinstance(a, act.ReleasePartitions) for k in a.keys]


def test_room_is_made_of_what_nobody_needs_oldest_first() -> None:
    world = started(chain(6), options=replace(OPTIONS, release_during_execution=False))
    finish(world, "s")
    worker, _ = holder_of(world, "s", 0)
    oldest = list(worker.stored)
    for vertex in graph_of(world).at_worker(worker.worker_id):
        if vertex.finished is not None:
            vertex.finished.partitions[0].data_bytes = 10
    assert len(oldest) >= 2
    wanted = sig.RoomWanted(worker.worker_id, 5, oldest)
    assert released(world, wanted) == [], "all of it is needed"
    finish(world, "m")
    assert released(world, wanted) == oldest[:1]
    assert released(world, wanted) == [], "it is being deleted already"
    twice = sig.RoomWanted(worker.worker_id, 15, [*oldest, AttemptKey("job", "gone", 0, 0, 1)])
    assert released(world, twice) == oldest[1:2]
    world.run_to_end()
    assert world.output() == list(range(8))


def test_what_has_read_nothing_does_not_count_while_nobody_else_will_read_the_rest() -> None:
    """What another attempt of the same subtask gave back, when all others had heard that there are
    no more splits: with this one finished, the source would be, and those rows lost."""
    world = started(chain(3), workers=4, slots=1)
    running = {key.subtask: (worker, key) for worker, key in world.tasks()}
    for _ in range(7):
        world.draw_split(*running[1])
    world.draw_split(*running[2])
    first, unheard = running[0]
    world.finish(first, unheard)
    world.pending.clear()
    lose(world, first.worker_id)
    register(world, *(set(world.workers) - {worker.worker_id for worker, _ in running.values()}))
    [in_its_stead] = [task for task in world.tasks() if task[1].subtask == 0]
    world.fail(*running[2])
    world.deliver_pending()
    world.draw_split(*in_its_stead)
    fire(world, f"{RESTART_TIMER}s/2")
    finish(world, "s", [1, 2])
    world.fail(*in_its_stead)
    world.deliver_pending()
    register(world, first.worker_id)
    assert unheard not in first.stored
    world.run_to_end()
    assert world.output() == list(range(8))
