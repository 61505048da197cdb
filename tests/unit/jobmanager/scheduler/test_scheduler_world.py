"""The scheduler under seeded faults: whatever happens, the output is that of a run without them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest

from holdover.v1 import job_pb2
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.core import SLOT_TIMER
from jobmanager.scheduler.states import JobState
from tests.doubles.scheduler_world import SchedulerWorld
from tests.unit.jobmanager.scheduler.job_graphs import chain, dealt_out, join, unrecorded

#: For more: TEST_SEEDS=5000:9000 in the environment.
SEEDS = range(*map(int, os.environ.get("TEST_SEEDS", "0:50").split(":")))

JOBS = {
    "chain": lambda: chain(4),
    "adaptive chain": lambda: chain(3, adaptive=True),
    "forward chain": lambda: chain(4, forward=True),
    "join": lambda: join(3),
    "indeterminate join": lambda: indeterminate(join(3), "s2"),
    "indeterminate chain": lambda: indeterminate(chain(3, forward=True), "m"),
    "dealt out": lambda: dealt_out(3),
}
#: Of these a leader's death may cost finished work (behaviour 5.7).
UNRECORDED = {
    "unrecorded chain": lambda: unrecorded(chain(4)),
    "unrecorded forward chain": lambda: unrecorded(chain(4, forward=True)),
    "unrecorded join": lambda: unrecorded(join(3), "s1"),
}
ALL_JOBS = JOBS | UNRECORDED

#: Does something of its own to the world, or answers that it has done nothing.
Step = Callable[[SchedulerWorld], bool]


def indeterminate(job: job_pb2.JobGraph, vertex_id: str) -> job_pb2.JobGraph:
    """The job with one vertex that may give other rows when it runs again."""
    vertex = next(v for v in job.vertices if v.vertex_id == vertex_id)
    vertex.operators[0].determinism = job_pb2.DETERMINISM_INDETERMINATE
    return job


def gold(job: job_pb2.JobGraph) -> list[int]:
    """The output of a run without faults."""
    world = SchedulerWorld(job)
    world.lead()
    world.run_to_end()
    assert world.ended is JobState.FINISHED
    return world.output()


@pytest.mark.parametrize("name", JOBS)
def test_a_job_without_faults_runs_every_subtask_once(name: str) -> None:
    world = SchedulerWorld(JOBS[name]())
    world.lead()
    world.run_to_end()
    assert world.ended is JobState.FINISHED
    runs = Counter((key.vertex_id, key.subtask) for key in world.starts)
    assert set(runs.values()) == {1}, runs


@pytest.mark.parametrize("name", ALL_JOBS)
def test_any_faults_leave_the_output_as_it_is(name: str) -> None:
    expected = gold(ALL_JOBS[name]())
    for seed in SEEDS:
        world = SchedulerWorld(ALL_JOBS[name](), seed=seed)
        try:
            faulty_run(world, worker_faults=True)
        except AssertionError as error:
            raise AssertionError(f"seed {seed} of {name}: {error}") from error
        assert world.ended is JobState.FINISHED, (seed, world.ended, world.failure)
        assert world.output() == expected, f"seed {seed} of {name}"


@pytest.mark.parametrize("name", JOBS)
def test_leaders_die_and_no_finished_work_is_lost(name: str) -> None:
    """All workers live and come back in time: what has finished never runs again."""
    expected = gold(JOBS[name]())
    for seed in SEEDS:
        world = SchedulerWorld(JOBS[name](), seed=seed)
        world.flush_probability = 1.0
        faulty_run(world, worker_faults=False)
        assert world.output() == expected, f"seed {seed} of {name}"
        finishes = Counter((key.vertex_id, key.subtask) for key in world.finishes)
        assert set(finishes.values()) == {1}, f"seed {seed} of {name}: {finishes}"


def faulty_run(world: SchedulerWorld, *, worker_faults: bool, step: Step | None = None) -> None:
    """A hundred random steps with faults, then none until the job ends."""
    choose = world.random
    world.workers_may_lose = worker_faults or step is not None
    world.lead()
    for _ in range(choose.randrange(20, 150)):
        if world.ended is not None:
            return
        if world.scheduler is None:
            world.lead()
        if step is None or not step(world):
            random_step(world, worker_faults=worker_faults)
    if world.scheduler is None:
        world.lead()
    for worker in world.workers.values():
        if worker.load is not None:
            world.tell_load(worker, sig.ShuffleLoad(room_bytes=1000))
    world.run_to_end()


def random_step(world: SchedulerWorld, *, worker_faults: bool) -> None:
    """Something happens, or goes wrong."""
    choose = world.random
    dice = choose.random()
    running = world.tasks()
    timers = [name for name in world.timers if name != SLOT_TIMER]
    absent = [w for w in world.workers.values() if not w.registered]
    if dice < 0.03:
        world.lose_leader(lost_events=choose.randrange(6))
    elif dice < 0.06 and worker_faults:
        _worker_fault(world)
    elif dice < 0.09 and worker_faults and running:
        world.fail(*choose.choice(running))
    elif dice < 0.12 and worker_faults and timers:
        world.fire(choose.choice(timers))
    elif dice < 0.3 and absent:
        worker = choose.choice(absent)
        worker.alive = True
        world.register(worker)
        for key in list(worker.stored) if worker.load is None else ():
            if choose.random() < 0.3:
                world.repeat_report(worker, key)
    elif dice < 0.6 and running:
        worker, key = choose.choice(running)
        if key.vertex_id.startswith("s") and choose.random() < 0.6:
            world.draw_split(worker, key)
        else:
            world.finish(worker, key)
    elif world.pending:
        world.deliver(world.pending.pop(0))


def _worker_fault(world: SchedulerWorld) -> None:
    choose = world.random
    worker = choose.choice(list(world.workers.values()))
    if choose.random() < 0.4:
        world.kill_worker(worker, with_disk=choose.random() < 0.7)
    elif choose.random() < 0.5 and worker.registered:
        world.register(worker)  # a second registration of the same incarnation
    elif worker.stored:
        worker.delete(choose.choice(list(worker.stored)))  # a file is gone and nobody knows yet
