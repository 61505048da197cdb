"""A lost TaskManager that is expected to be started again: its finished work waits for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from holdover.v1 import job_pb2
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.restarted_workers import RESTART_WAIT_TIMER
from jobmanager.scheduler.states import ExecutionState, JobState
from tests.doubles.scheduler_world import OPTIONS, SchedulerWorld
from tests.unit.jobmanager.scheduler.job_graphs import (
    FORWARD,
    HASH,
    chain,
    connect,
    sink,
    source,
    stage,
)
from tests.unit.jobmanager.scheduler.scenes import (
    finish,
    fire,
    graph_of,
    holder_of,
    next_leader,
    recovery_of,
    register,
    resets_of,
    started,
    starts_of,
    stored_by,
)

WAITING = replace(OPTIONS, restart_wait_s=20)


def lose(world: SchedulerWorld, worker_id: str) -> None:
    """A worker dies and its disk lives; the leader knows."""
    world.kill_worker(world.workers[worker_id], with_disk=False)
    world.deliver_pending()


def finished_once(world: SchedulerWorld) -> bool:
    """No subtask has finished twice."""
    counts = Counter((key.vertex_id, key.subtask) for key in world.finishes)
    return set(counts.values()) == {1}


def test_finished_work_waits_for_its_worker_and_only_what_ran_there_runs_again() -> None:
    world = started(chain(6), options=WAITING)
    finish(world, "s", [0])
    worker, key = holder_of(world, "s", 0)
    assert worker.running
    lose(world, worker.worker_id)
    assert resets_of(world) == {}
    assert world.timers[RESTART_WAIT_TIMER + worker.worker_id] == 20
    finish(world, "s", range(1, 6))
    register(world, worker.worker_id)
    assert RESTART_WAIT_TIMER + worker.worker_id not in world.timers
    assert graph_of(world).vertex_at("s", key.subtask).available
    world.run_to_end()
    assert finished_once(world)
    assert world.output() == list(range(8))


def test_what_needs_the_awaited_work_waits_and_the_job_says_so() -> None:
    world = started(chain(6), options=WAITING)
    finish(world, "s")
    worker, _ = holder_of(world, "s", 0)
    ran_there = set(worker.running)
    lose(world, worker.worker_id)
    for reader, key in world.tasks():
        world.finish(reader, key)  # it had read everything already
    world.deliver_pending()
    assert [key for _, key in world.tasks()] == []
    assert world.scheduler is not None
    assert world.scheduler.waiting == (
        f"waiting for {worker.worker_id} to be started again with the finished work on its disk"
    )
    register(world, worker.worker_id)
    assert world.scheduler.waiting == ""
    assert {key.subtask for _, key in world.tasks()} == {key.subtask for key in ran_there}
    world.run_to_end()
    assert finished_once(world)


def test_readers_are_started_anew_when_the_worker_is_back() -> None:
    """It serves at another address, and they would go on asking at the old one."""
    world = started(chain(6), options=WAITING)
    finish(world, "s")
    worker, _ = holder_of(world, "s", 0)
    lose(world, worker.worker_id)
    reading = [key for _, key in world.tasks()]
    assert reading
    register(world, worker.worker_id)
    assert not {key for _, key in world.tasks()} & set(reading)
    world.run_to_end()
    assert finished_once(world)


def test_a_job_that_has_ended_waits_for_nobody() -> None:
    world = started(chain(6), options=WAITING)
    finish(world, "s")
    finish(world, "m")
    finish(world, "k", range(5))
    ((last, key),) = world.tasks()
    lose(world, next(worker_id for worker_id in world.workers if worker_id != last.worker_id))
    world.finish(last, key)
    world.deliver_pending()
    assert world.ended is JobState.FINISHED
    assert world.scheduler is not None
    assert world.scheduler.waiting == ""


@pytest.mark.parametrize("vertex_id", ["s", "m"])
def test_what_had_finished_without_anybodys_hearing_of_it_is_taken_up(vertex_id: str) -> None:
    """Its worker died before it could report. Nothing else was free to run it meanwhile."""
    world = started(chain(6), options=WAITING)
    if vertex_id == "m":
        finish(world, "s")
    worker, key = world.tasks()[0]
    assert key.vertex_id == vertex_id
    world.finish(worker, key)
    world.pending.clear()
    lose(world, worker.worker_id)
    register(world, worker.worker_id)
    vertex = graph_of(world).vertex_at(vertex_id, key.subtask)
    assert vertex.state is ExecutionState.FINISHED
    assert vertex.key("job") == key
    world.run_to_end()
    assert finished_once(world)
    assert world.output() == list(range(8))


def test_work_whose_worker_stays_away_runs_again_when_its_time_is_over() -> None:
    world = started(chain(6), options=WAITING)
    finish(world, "s")
    worker, _ = holder_of(world, "s", 0)
    lost = stored_by(world, worker.worker_id, "s")
    lose(world, worker.worker_id)
    assert resets_of(world) == {}
    fire(world, RESTART_WAIT_TIMER + worker.worker_id)
    assert resets_of(world) == {("s", "WORKER_LOST"): lost}
    world.run_to_end()
    assert world.output() == list(range(8))


def last_of_m_finishes_while_others_are_awaited() -> tuple[SchedulerWorld, str]:
    """m is finished, and a lost worker that may come back holds some of it."""
    world = started(chain(6), options=WAITING)
    finish(world, "s")
    finish(world, "m", range(5))
    return world, last_finishes_without_a_holder(world, "m", of="m")


def last_finishes_without_a_holder(world: SchedulerWorld, vertex_id: str, *, of: str) -> str:
    """The last subtask of a vertex finishes while another worker, which holds some output of a
    vertex, is awaited; returns that one."""
    [(last, key)] = [task for task in world.tasks() if task[1].vertex_id == vertex_id]
    others = (name for name in world.workers if name != last.worker_id)
    away = next(name for name in others if stored_by(world, name, of))
    lose(world, away)
    world.finish(last, key)
    world.deliver_pending()
    assert graph_of(world).vertices[vertex_id].all_finished
    return away


def stored_of(world: SchedulerWorld, vertex_id: str) -> list[int]:
    """Subtasks of a vertex whose output is at any living worker."""
    living = [worker_id for worker_id, worker in world.workers.items() if worker.alive]
    return sorted(i for worker_id in living for i in stored_by(world, worker_id, vertex_id))


def test_what_awaited_work_has_read_is_kept_and_makes_it_anew() -> None:
    """Only what is away with the worker is made once more, and not all before it."""
    world, away = last_of_m_finishes_while_others_are_awaited()
    kept, lost = stored_of(world, "s"), stored_by(world, away, "s")
    assert sorted(kept + lost) == list(range(6))
    assert kept
    fire(world, RESTART_WAIT_TIMER + away)
    assert resets_of(world)["m", "WORKER_LOST"] == stored_by(world, away, "m")
    world.run_to_end()
    assert {i for i in range(6) if starts_of(world).count(("s", i)) > 1} == set(lost)
    assert stored_of(world, "s") == []
    assert world.output() == list(range(8))


def test_what_awaited_work_has_read_makes_no_room_for_anything() -> None:
    world, away = last_of_m_finishes_while_others_are_awaited()
    holder = next(
        w for w in world.workers.values() if w.alive and stored_by(world, w.worker_id, "s")
    )
    kept = stored_by(world, holder.worker_id, "s")
    oldest = [key for key in holder.stored if key.vertex_id == "s"]
    assert world.scheduler is not None
    decision = world.scheduler.handle(sig.RoomWanted(holder.worker_id, 1, oldest))
    assert decision.actions == []
    register(world, away)
    assert not set(kept) & set(stored_by(world, holder.worker_id, "s"))


def test_what_awaited_work_has_read_is_deleted_when_it_is_back() -> None:
    """Then, and not only with the job."""
    world, away = last_of_m_finishes_while_others_are_awaited()
    register(world, away)
    assert stored_of(world, "s") == []
    world.run_to_end()
    assert finished_once(world)


def test_what_has_been_read_is_deleted_when_an_awaited_worker_stays_away_and_nobody_cares() -> None:
    """What it holds was read by the only one that reads it."""
    job = job_pb2.JobGraph(job_id="job", vertices=[source("s", 3), stage("m", 3), sink("k", 3)])
    connect(job, "s", "m", HASH, 3)
    connect(job, "m", "k", FORWARD, 1)
    world = started(job, options=WAITING)
    finish(world, "s")
    finish(world, "m", [0])
    finish(world, "k", [0])
    finish(world, "m", [1])
    [(last, key)] = [task for task in world.tasks() if task[1].vertex_id == "m"]
    away, _ = holder_of(world, "m", 0)
    assert away is not last
    lose(world, away.worker_id)
    world.finish(last, key)
    world.deliver_pending()
    assert stored_of(world, "s")
    fire(world, RESTART_WAIT_TIMER + away.worker_id)
    assert stored_of(world, "s") == []
    assert ("m", 0) not in [(v, i) for (v, _), lost in resets_of(world).items() for i in lost]


def test_what_two_read_is_kept_for_the_one_that_is_awaited() -> None:
    """The other is the last to finish, and all of it is there."""
    job = job_pb2.JobGraph(
        job_id="job",
        vertices=[source("s", 3), stage("a", 3), stage("b", 3), sink("k", 3)],
    )
    for producer, consumer in (("s", "a"), ("s", "b"), ("a", "k"), ("b", "k")):
        connect(job, producer, consumer, HASH, 3)
    world = started(job, options=WAITING, workers=4, slots=1)
    finish(world, "s")
    finish(world, "a")
    finish(world, "b", [0, 1])
    last_finishes_without_a_holder(world, "b", of="a")
    assert stored_of(world, "s")


def test_what_the_worker_does_not_bring_back_runs_again_at_once() -> None:
    world = started(chain(6), options=WAITING)
    finish(world, "s")
    worker, key = holder_of(world, "s", 0)
    lose(world, worker.worker_id)
    worker.delete(key)
    register(world, worker.worker_id)
    assert resets_of(world) == {("s", "PARTITION_MISSING"): [key.subtask]}
    world.run_to_end()
    assert world.output() == list(range(8))


def test_a_worker_that_dies_again_during_a_recovery_is_awaited_again() -> None:
    """It had brought its work back to the new leader; another worker keeps the recovery open."""
    world = started(chain(6), options=WAITING)
    finish(world, "s")
    next_leader(world)
    register(world, "tm-0", "tm-1")
    assert graph_of(world).state is JobState.RECONCILING
    lose(world, "tm-0")
    assert {subtask for _, subtask in recovery_of(world).awaited} == {
        *stored_by(world, "tm-0", "s"),
        *stored_by(world, "tm-2", "s"),
    }
    register(world, "tm-2")
    assert graph_of(world).state is JobState.RECONCILING
    register(world, "tm-0")
    assert graph_of(world).state is JobState.RUNNING
    world.run_to_end()
    assert finished_once(world)


def test_a_worker_that_stays_away_during_a_recovery_is_missed_when_its_time_is_over() -> None:
    world = started(chain(6), options=WAITING)
    finish(world, "s")
    next_leader(world)
    register(world, "tm-0", "tm-1")
    lost = stored_by(world, "tm-0", "s")
    lose(world, "tm-0")
    register(world, "tm-2")
    fire(world, RESTART_WAIT_TIMER + "tm-0")
    assert graph_of(world).state is JobState.RUNNING
    assert [subtask for each in resets_of(world).values() for subtask in each] == lost
    world.run_to_end()
    assert world.output() == list(range(8))


@pytest.mark.parametrize("seed", range(30))
def test_reports_that_died_with_their_worker_cost_no_row(seed: int) -> None:
    """Each split is read once, whoever has read what unheard."""
    world = SchedulerWorld(chain(6), seed=seed, options=WAITING)
    world.flush_probability = 1.0
    world.lead()
    register(world)
    for _ in range(40):
        world.deliver_pending()
        tasks = world.tasks()
        if world.ended is not None or not tasks:
            break
        worker, key = world.random.choice(tasks)
        world.finish(worker, key)
        if world.random.random() < 0.5:
            world.pending.pop()
            lose(world, worker.worker_id)
            for other, another in world.tasks()[: world.random.randrange(4)]:
                world.finish(other, another)
                world.deliver_pending()
            register(world, worker.worker_id)
    world.run_to_end()
    assert world.output() == list(range(8))


@pytest.mark.parametrize("seed", range(30))
def test_no_subtask_finishes_twice_however_often_workers_and_leaders_die(seed: int) -> None:
    """As long as each worker comes back with its disk before its time is over."""
    world = SchedulerWorld(chain(6), seed=seed, options=WAITING)
    world.flush_probability = 1.0
    world.lead()
    register(world)
    away: list[str] = []
    for _ in range(60):
        world.deliver_pending()
        tasks = world.tasks()
        if world.ended is not None:
            break
        draw = world.random.random()
        if draw < 0.5 and tasks:
            world.finish(*world.random.choice(tasks))
        elif draw < 0.75 and len(away) < 2:
            away.append(world.random.choice(sorted(set(world.workers) - set(away))))
            lose(world, away[-1])
        elif draw < 0.9 and away:
            register(world, away.pop(0))
        elif draw >= 0.9:
            next_leader(world)
            register(world, *sorted(set(world.workers) - set(away)))
    register(world, *away)
    world.run_to_end()
    assert finished_once(world)
    assert world.output() == list(range(8))
