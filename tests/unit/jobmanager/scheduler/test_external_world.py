"""The scheduler with shuffle services under seeded faults: TaskManagers, services and leaders die,
services are full and leave, and the output is that of a run without faults.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.states import JobState
from tests.doubles.scheduler_world import OPTIONS, SchedulerWorld
from tests.unit.jobmanager.scheduler.scenes import resets_of
from tests.unit.jobmanager.scheduler.test_scheduler_world import (
    ALL_JOBS,
    JOBS,
    SEEDS,
    faulty_run,
    gold,
)

EXTERNAL = replace(OPTIONS, shuffle_mode="external")


def external(name: str, seed: int) -> SchedulerWorld:
    return SchedulerWorld(ALL_JOBS[name](), seed=seed, services=2, options=EXTERNAL)


def service_step(world: SchedulerWorld) -> bool:
    """Sometimes a service is full, or is to leave, or neither any more."""
    if world.scheduler is None or world.random.random() > 0.1:
        return False
    services = [w for w in world.workers.values() if w.load is not None and w.registered]
    if not services:
        return False
    load = sig.ShuffleLoad(
        room_bytes=world.random.choice((0, 3, 1000)), draining=world.random.random() < 0.4
    )
    world.tell_load(world.random.choice(services), load)
    return True


def taskmanager_step(world: SchedulerWorld) -> bool:
    """Sometimes a TaskManager is killed with its disk."""
    if world.random.random() > 0.05:
        return False
    taskmanagers = [w for w in world.workers.values() if w.load is None]
    world.kill_worker(world.random.choice(taskmanagers))
    return True


@pytest.mark.parametrize("name", ALL_JOBS)
def test_any_faults_leave_the_output_as_it_is(name: str) -> None:
    expected = gold(ALL_JOBS[name]())
    for seed in SEEDS[: len(SEEDS) // 2]:
        world = external(name, seed)
        try:
            faulty_run(world, worker_faults=True, step=service_step)
        except AssertionError as error:
            raise AssertionError(f"seed {seed} of {name}: {error}") from error
        assert world.ended is JobState.FINISHED, (seed, world.ended, world.failure)
        assert world.output() == expected, f"seed {seed} of {name}"


@pytest.mark.parametrize("name", JOBS)
def test_leaders_and_taskmanagers_die_and_no_finished_work_is_lost(name: str) -> None:
    """P39: services live and come back in time."""
    expected = gold(JOBS[name]())
    for seed in SEEDS[: len(SEEDS) // 2]:
        world = external(name, seed)
        world.flush_probability = 1.0
        faulty_run(world, worker_faults=False, step=taskmanager_step)
        assert world.output() == expected, f"seed {seed} of {name}"
        assert resets_of(world) == {}, f"seed {seed} of {name}"
