"""A consumer of two producers starts, whichever of them was recovered, runs again, or stayed."""

from __future__ import annotations

import pytest

from jobmanager.scheduler.states import JobState
from tests.doubles.scheduler_world import SchedulerWorld
from tests.unit.jobmanager.scheduler.job_graphs import join
from tests.unit.jobmanager.scheduler.scenes import next_leader, register, started


def world_with(events: int, first: str) -> SchedulerWorld:
    """JOIN(3) with so many events in its log, or at its end; one of its sources ran first."""
    world = started(join(3))
    order = [first, "s1", "s2", "j", "k"]
    while len(world.log) < events and world.ended is None:
        running = sorted(world.tasks(), key=lambda task: order.index(task[1].vertex_id))
        world.finish(*running[0])
        world.deliver_pending()
    return world


def goes_on(world: SchedulerWorld, gone: str) -> bool:
    """Another leader leads it to its end; whether any subtask has finished twice."""
    told = f"the leader died after {len(world.log)} events"
    next_leader(world)
    if gone in world.workers:
        world.kill_worker(world.workers[gone])
    register(world)
    world.run_to_end()
    assert world.ended is JobState.FINISHED, f"{told}: {world.describe()}"
    broadcast = [row for row in range(8) for _ in range(3)]
    assert world.output() == sorted([*range(8), *broadcast]), told
    finished = [(key.vertex_id, key.subtask) for key in world.finishes]
    return len(finished) > len(set(finished))


@pytest.mark.parametrize("first", ["s1", "s2"])
@pytest.mark.parametrize("gone", ["nobody", "tm-1"])
def test_a_join_goes_on_wherever_its_leader_dies(first: str, gone: str) -> None:
    """P13: after each event of the job; everybody is back at once, one perhaps on an empty disk."""
    ran_twice = [
        goes_on(world, gone)
        for events in range(len(world_with(1000, first).log))
        if (world := world_with(events, first)).ended is None
    ]
    assert len(ran_twice) > 10, "each subtask has an event of its own"
    assert any(ran_twice) is (gone != "nobody")
