"""When the scheduler has its events written at once."""

from __future__ import annotations

from tests.unit.jobmanager.scheduler.job_graphs import chain
from tests.unit.jobmanager.scheduler.scenes import finish, started


def test_the_end_of_a_whole_vertex_is_written_at_once() -> None:
    """Behaviour 3: and that of one of its subtasks is not."""
    world = started(chain(3))
    finish(world, "s", [0, 1])
    assert world.durable < len(world.log), "they wait in the buffer"
    finish(world, "s", [2])
    told = [event.vertex_finished for event in world.log[: world.durable]]
    assert [f.execution.attempt.subtask for f in told if f.execution.attempt.vertex_id] == [0, 1, 2]
